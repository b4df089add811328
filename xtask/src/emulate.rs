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

/// What is run: the variables of the emulated processor and the arguments of cargo.
const RUNS: [(Variables, &[&str]); 4] = [
    // What no other machine's lints see.
    (
        &AARCH64,
        &[
            "clippy",
            "--quiet",
            "--target=aarch64-unknown-linux-gnu",
            "--package=goldcrest-kernels",
            "--",
            "--deny=warnings",
        ],
    ),
    (
        &AARCH64,
        &[
            "test",
            "--target=aarch64-unknown-linux-gnu",
            "--package=goldcrest-kernels",
            "--tests",
        ],
    ),
    (
        &AARCH64,
        &[
            "test",
            "--target=aarch64-unknown-linux-gnu",
            "--package=goldcrest-engine",
            "--test=golden_hashes",
        ],
    ),
    // Of the workspace and without a target: what `cargo xtask test` built. A few logits, as fma is slow in software.
    (
        &WESTMERE,
        &["test", "--workspace", "--test=golden_hashes", "logits_of_three_kinds"],
    ),
];

/// What the plain release binary is asked on x86-64 from before AVX: to go on with a text, by a model of quantised
/// blocks and in both arithmetics.
const MODEL: &str = "tests/goldens-gguf/llama_quant256.gguf";
const ACTIVATIONS: [&str; 2] = ["q8", "f32"];

/// Programs that the runs need, and Debian's packages with them.
const PROGRAMS: [(&str, &str); 3] = [
    ("qemu-aarch64", "qemu-user"),
    ("qemu-x86_64", "qemu-user"),
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
];

/// Runs the tests, and the plain binary; false if one failed.
pub fn test(cargo: &Path, workspace: &Path) -> Result<bool, Box<dyn Error>> {
    for (program, packages) in PROGRAMS {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        found.map_err(|error| format!("{program}: {error}; it is in Debian's {packages}"))?;
    }
    for (variables, arguments) in RUNS {
        let mut command = Command::new(cargo);
        command
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(workspace);
        if !command.status()?.success() {
            return Ok(false);
        }
    }
    plain_binary(cargo, workspace)
}

/// Whether the binary that users build, which chooses its instructions at run time, replies with the same bytes as on this machine.
fn plain_binary(cargo: &Path, workspace: &Path) -> Result<bool, Box<dyn Error>> {
    for activations in ACTIVATIONS {
        let reply = |variables: Variables| -> Result<Vec<u8>, Box<dyn Error>> {
            let output = Command::new(cargo)
                .args(["run", "--quiet", "--release", "--", "run", MODEL, "The goldcrest"])
                .args(["--raw", "--max-tokens", "16", "--activations", activations])
                .envs(variables.iter().copied())
                .env_remove("RUSTFLAGS")
                .current_dir(workspace)
                .stdin(Stdio::null())
                .stderr(Stdio::inherit())
                .output()?;
            match output.status.success() {
                true => Ok(output.stdout),
                false => Err(format!("`goldcrest run {MODEL}` failed").into()),
            }
        };
        let (here, emulated) = (reply(&[])?, reply(&WESTMERE)?);
        let [here, emulated] = [here, emulated].map(|reply| String::from_utf8_lossy(&reply).into_owned());
        println!("plain binary without AVX, {activations} activations: {emulated:?}");
        if here != emulated {
            println!("on this machine it is {here:?}");
            return Ok(false);
        }
    }
    Ok(true)
}
