//! One module a command.

mod bench;
mod capture;
mod list;
mod logits;
mod perplexity;
mod plan;
mod pull;
mod run;
mod show;
mod steer;
mod tokenize;
mod verify;

use std::io;

use clap::CommandFactory;

use crate::args::{Arguments, Command};

/// How a command ended that met no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should.
    Done,
    /// What was judged did not pass.
    Failed,
    /// By Ctrl-C.
    Interrupted,
}

/// Runs a command.
pub fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Run(args) => return run::run(&args),
        Command::Verify(args) => return verify::run(&args),
        Command::Perplexity(args) => return perplexity::run(&args),
        Command::Show(args) => show::run(&args)?,
        Command::Plan(args) => plan::run(&args)?,
        Command::Tokenize(args) => tokenize::run(&args)?,
        Command::Logits(args) => logits::run(&args)?,
        Command::Capture(args) => capture::run(&args)?,
        Command::Steer { command } => steer::run(&command)?,
        Command::Bench(args) => bench::run(&args)?,
        Command::Pull(args) => pull::run(&args)?,
        Command::List(args) => list::run(&args)?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "goldcrest", &mut script);
            io::Write::write_all(&mut io::stdout(), &script)?;
        }
    }
    Ok(Outcome::Done)
}
