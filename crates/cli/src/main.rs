//! The `goldcrest` command. Results go to standard output, everything else to standard error.

mod args;
mod chat;
mod commands;
mod engine_args;
mod input;
mod interrupt;
mod memory;
mod model;
mod output;
mod progress;
mod ranges;
mod reply;
mod router_stats;

use std::process::ExitCode;

use clap::Parser;

use args::Arguments;
use commands::Outcome;
use output::{UsageError, error_line, is_closed_pipe, note, tell};

const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 2;
/// 128 and the number of SIGINT, as shells tell it.
const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Err(error) = interrupt::install() {
        note(format_args!("Ctrl-C will end this at once: {}", error_line(&error)));
    }
    match commands::run(arguments.command) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(EXIT_FAILURE),
        Ok(Outcome::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(format_args!("error: {}", error_line(&error)));
            ExitCode::from(if error.is::<UsageError>() {
                EXIT_USAGE
            } else {
                EXIT_FAILURE
            })
        }
    }
}
