//! `cargo xtask count`: instructions of prefill and decode, which unlike times are the same in every run on every machine. callgrind counts
//! them on the path of AVX2, with one thread.

mod recorded;
#[cfg(test)]
mod whole_models;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::synth;
use recorded::{Change, Count, Recorded};

/// A synthetic model (preset and mix), and arguments of `goldcrest bench` that say how it is computed with and what it does.
struct Case {
    name: &'static str,
    model: (&'static str, &'static str),
    arguments: &'static [&'static str],
}

const fn case(name: &'static str, model: (&'static str, &'static str), arguments: &'static [&'static str]) -> Case {
    Case { name, model, arguments }
}

const PREFILL: &[&str] = &["--prompt", "64", "--reply", "0", "--activations", "q8"];
/// The context before fills a segment of attention.
const DECODE: &[&str] = &["--prompt", "0", "--reply", "8", "--depth", "300", "--activations", "q8"];
/// Shorter: valgrind computes each lane of a fused multiply-add by a call.
const PREFILL_F32: &[&str] = &["--prompt", "16", "--reply", "0", "--activations", "f32"];
const DECODE_F32: &[&str] = &["--prompt", "0", "--reply", "2", "--activations", "f32"];

const CASES: [Case; 8] = [
    case("Q4_K_M, prefill of 64", ("tiny", "Q4_K_M"), PREFILL),
    case("Q4_K_M, decode of 8 after 300", ("tiny", "Q4_K_M"), DECODE),
    case(
        "Q4_K_M, f32 activations, prefill of 16",
        ("tiny", "Q4_K_M"),
        PREFILL_F32,
    ),
    case("Q4_K_M, f32 activations, decode of 2", ("tiny", "Q4_K_M"), DECODE_F32),
    case("Q8_0, prefill of 64", ("tiny", "Q8_0"), PREFILL),
    case("Q8_0, decode of 8 after 300", ("tiny", "Q8_0"), DECODE),
    case("Q4_K_M experts, prefill of 64", ("tiny-moe", "Q4_K_M"), PREFILL),
    case("Q4_K_M experts, decode of 8 after 300", ("tiny-moe", "Q4_K_M"), DECODE),
];

/// A file of operations on registers like those of AVX-512, and the package and test that print them.
struct Operations {
    file: &'static str,
    package: &'static str,
    target: &'static str,
    print: &'static str,
}

const KERNEL_OPERATIONS: Operations = Operations {
    file: "avx512",
    package: "goldcrest-kernels",
    target: "--lib",
    print: "counts::print_operations",
};

const MODEL_OPERATIONS: Operations = Operations {
    file: "avx512-models",
    package: "xtask",
    target: "--bins",
    print: "count::whole_models::print_operations",
};

/// Counts, and compares with what is recorded: false if something became slower.
pub fn check(cargo: &Path, workspace: &Path) -> Result<bool, Box<dyn Error>> {
    let recorded = Recorded::open(&file(workspace, "avx2"))?;
    let counts = instructions(cargo, workspace)?;
    let mut passed = true;
    for change in recorded.changes(&counts) {
        println!("{change}");
        passed &= !change.fails();
    }
    let compiler = compiler()?;
    if !passed {
        println!("If it has to be: cargo xtask count --record \"REASON\".");
    }
    if !passed && recorded.compiler() != Some(&*compiler) {
        let before = recorded.compiler().unwrap_or("another compiler");
        println!("Recorded with {before}, counted with {compiler}: that may be the reason.");
    }
    Ok(passed)
}

/// Counts, and records with the reason what differs from before; the operations of AVX-512 too.
pub fn record(cargo: &Path, workspace: &Path, reason: &str) -> Result<(), Box<dyn Error>> {
    if reason.trim().is_empty() || reason.contains(['\t', '\n']) {
        return Err("--record needs a reason, in one line and without tabs".into());
    }
    let mut kinds = Vec::new();
    for kind in [KERNEL_OPERATIONS, MODEL_OPERATIONS] {
        kinds.push((kind.file, operations(cargo, workspace, &kind)?, None));
    }
    kinds.push(("avx2", instructions(cargo, workspace)?, Some(compiler()?)));
    for (name, counts, compiler) in kinds {
        let path = file(workspace, name);
        let mut recorded = Recorded::open(&path)?;
        let changes: Vec<String> = recorded.changes(&counts).iter().map(Change::to_string).collect();
        println!("{}\n{}", path.display(), changes.join("\n"));
        recorded.renew(&counts, reason, compiler);
        recorded.write()?;
    }
    Ok(())
}

fn file(workspace: &Path, name: &str) -> PathBuf {
    workspace.join("tests/counts").join(name).with_extension("tsv")
}

/// The version of the compiler, which decides what instructions there are.
fn compiler() -> Result<String, Box<dyn Error>> {
    let output = Command::new("rustc").arg("--version").output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Vector operations, by a test that prints them.
fn operations(cargo: &Path, workspace: &Path, kind: &Operations) -> Result<Vec<Count>, Box<dyn Error>> {
    let output = Command::new(cargo)
        .args(["test", "--quiet", "--package", kind.package, kind.target, "--"])
        .args(["--ignored", "--exact", "--nocapture", kind.print])
        .current_dir(workspace)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{} failed", kind.print).into());
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().filter_map(Count::parse).collect())
}

/// Instructions of every case.
fn instructions(cargo: &Path, workspace: &Path) -> Result<Vec<Count>, Box<dyn Error>> {
    let found = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    found.map_err(|error| format!("valgrind: {error}; it is in Debian's valgrind"))?;
    let folder = workspace.join("target/count");
    std::fs::create_dir_all(&folder)?;
    let count = |case: Case| -> Result<Count, Box<dyn Error>> {
        let (preset, mix) = case.model;
        let model = folder.join(format!("{preset}-{mix}.gguf"));
        synth::write_small(preset, mix, &model)?;
        let run = Run {
            cargo,
            workspace,
            model: &model,
            arguments: case.arguments,
        };
        // The same but for one repetition more: what differs is a repetition.
        let [once, twice] = [run.instructions("1")?, run.instructions("2")?];
        Ok(Count {
            name: case.name.to_owned(),
            count: twice.saturating_sub(once),
        })
    };
    CASES.into_iter().map(count).collect()
}

/// A run of `goldcrest bench`, the plain release build, under callgrind.
struct Run<'a> {
    cargo: &'a Path,
    workspace: &'a Path,
    model: &'a Path,
    arguments: &'a [&'a str],
}

impl Run<'_> {
    fn instructions(&self, repetitions: &str) -> Result<u64, Box<dyn Error>> {
        // Relative, as cargo takes a runner apart at blanks.
        let out = "target/count/callgrind.out";
        let runner = format!("valgrind --quiet --tool=callgrind --callgrind-out-file={out}");
        let status = Command::new(self.cargo)
            .args(["run", "--quiet", "--release", "--", "bench"])
            .arg(self.model)
            .args(self.arguments)
            .args([
                "--repetitions",
                repetitions,
                "--threads",
                "1",
                "--isa",
                "avx2",
                "--json",
            ])
            .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner)
            .current_dir(self.workspace)
            .stdout(Stdio::null())
            .status()?;
        if !status.success() {
            return Err(format!("`goldcrest bench {}` failed under callgrind", self.arguments.join(" ")).into());
        }
        let text = std::fs::read_to_string(self.workspace.join(out))?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let total = total.ok_or_else(|| format!("{out} has no line of totals"))?;
        Ok(total.trim().parse()?)
    }
}
