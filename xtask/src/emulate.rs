//! Tests on processors that this machine is not: emulated by QEMU's user mode, bit for bit.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

/// AArch64 with DotProd. Statically linked programs need none of its system's files.
const AARCH64: [(&str, &str); 3] = [
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -cpu max"),
    (
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
        "-C target-feature=+crt-static",
    ),
];

/// x86-64 from before AVX.
const WESTMERE: [(&str, &str); 1] = [(
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
    "qemu-x86_64 -cpu Westmere",
)];

/// Names and values of variables for cargo.
type Variables = &'static [(&'static str, &'static str)];

/// What is run: the variables of the emulated processor and the arguments of `cargo test`.
const RUNS: [(Variables, &[&str]); 3] = [
    (
        &AARCH64,
        &[
            "--target=aarch64-unknown-linux-gnu",
            "--package=goldcrest-kernels",
            "--tests",
        ],
    ),
    (
        &AARCH64,
        &[
            "--target=aarch64-unknown-linux-gnu",
            "--package=goldcrest-engine",
            "--test=golden_hashes",
        ],
    ),
    // Of the workspace and without a target: what `cargo xtask test` built. A few logits, as fma is slow in software.
    (
        &WESTMERE,
        &["--workspace", "--test=golden_hashes", "logits_of_three_kinds"],
    ),
];

/// Programs that the runs need, and Debian's packages with them.
const PROGRAMS: [(&str, &str); 3] = [
    ("qemu-aarch64", "qemu-user"),
    ("qemu-x86_64", "qemu-user"),
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
];

/// Runs the tests; false if one failed.
pub fn test(cargo: &Path, workspace: &Path) -> Result<bool, Box<dyn Error>> {
    for (program, packages) in PROGRAMS {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        found.map_err(|error| format!("{program}: {error}; it is in Debian's {packages}"))?;
    }
    for (variables, arguments) in RUNS {
        let mut command = Command::new(cargo);
        command
            .arg("test")
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(workspace);
        if !command.status()?.success() {
            return Ok(false);
        }
    }
    Ok(true)
}
