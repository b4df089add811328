//! `cargo xtask`: the chores of this repository.

mod count;
mod emulate;
mod fixtures;
mod soak;
mod synth;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask fixtures [--dir DIR]   fetch the models that tests run on, checked by SHA-256
       cargo xtask test [ARGS...]         fetch them, then run all tests: cargo test --workspace ARGS
       cargo xtask synth CONFIG OUT.gguf  write a model of real shape with random weights (alone: its options)
       cargo xtask emulate                run kernels and recorded logits on emulated AArch64 and x86-64 without AVX
       cargo xtask count                  count instructions of prefill and decode; fail if they grew by over 5 %
       cargo xtask count --record REASON  record how many there are now, and why
       cargo xtask soak [--minutes N] [--seed N] [MODEL]
                                          use a model with experts in all ways for 5 minutes; fail if memory grows

DIR is target/fixtures of this workspace, or GOLDCREST_FIXTURES where that is set.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["fixtures"] => fixtures::fetch_all(&folder())?,
        ["fixtures", "--dir", folder] => fixtures::fetch_all(Path::new(folder))?,
        ["test", rest @ ..] => return test(rest),
        ["synth", rest @ ..] => synth::run(rest, &folder())?,
        ["emulate"] => return Ok(exit_code(emulate::test(&cargo(), workspace())?)),
        ["count"] => return Ok(exit_code(count::check(&cargo(), workspace())?)),
        ["count", "--record", reason] => count::record(&cargo(), workspace(), reason)?,
        ["soak", rest @ ..] => return Ok(exit_code(soak::run(&cargo(), workspace(), rest)?)),
        _ => {
            eprintln!("{USAGE}");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn test(arguments: &[&str]) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let folder = folder();
    fixtures::fetch_all(&folder)?;
    let mut command = Command::new(cargo());
    command
        .args(["test", "--workspace"])
        .args(arguments)
        .current_dir(workspace())
        .env("GOLDCREST_FIXTURES", folder);
    Ok(exit_code(command.status()?.success()))
}

fn exit_code(success: bool) -> ExitCode {
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

/// The folder of the fixtures.
fn folder() -> PathBuf {
    let named = std::env::var_os("GOLDCREST_FIXTURES").filter(|value| !value.is_empty());
    named.map_or_else(|| workspace().join("target/fixtures"), PathBuf::from)
}

fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}
