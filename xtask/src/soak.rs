//! `cargo xtask soak`: minutes of everything that may happen to sessions of a model whose experts are read when they are wanted.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::synth;

/// Runs the soak of the engine, on a small synthetic model unless another is named; false if it failed.
pub fn run(cargo: &Path, workspace: &Path, arguments: &[&str]) -> Result<bool, Box<dyn Error>> {
    let (options, model) = match arguments.len().is_multiple_of(2) {
        true => (arguments, synthetic(workspace)?),
        // Options have values, so this one is the model.
        false => (
            &arguments[..arguments.len() - 1],
            PathBuf::from(arguments[arguments.len() - 1]),
        ),
    };
    let status = Command::new(cargo)
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "goldcrest-engine",
            "--example",
            "soak",
            "--",
        ])
        .arg(model)
        .args(options)
        // Threads come and go with engines. glibc gives them memory from several arenas, each of which keeps the most that it ever had: all
        // of them are full after many minutes, one after seconds.
        .env("MALLOC_ARENA_MAX", "1")
        .current_dir(workspace)
        .status()?;
    Ok(status.success())
}

fn synthetic(workspace: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let folder = workspace.join("target/soak");
    std::fs::create_dir_all(&folder)?;
    let model = folder.join("tiny-moe.gguf");
    synth::write_small("tiny-moe", "Q4_K_M", &model)?;
    Ok(model)
}
