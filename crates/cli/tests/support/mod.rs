//! The command as tests run it.
#![allow(dead_code)] // each test binary uses its own part

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

/// A tiny model with a tokenizer and a chat template.
pub fn tiny() -> String {
    goldens().join("llama3").to_str().unwrap().to_owned()
}

/// The command without the user's settings, and without a network.
pub fn goldcrest(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_goldcrest"));
    command
        .args(arguments)
        .env("HF_HUB_OFFLINE", "1")
        .env_remove("HF_HUB_CACHE")
        .stdin(Stdio::null());
    command
}

pub fn output(arguments: &[&str]) -> Output {
    goldcrest(arguments).output().unwrap()
}

pub fn piped(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = goldcrest(arguments);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
pub fn results(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
pub fn json(output: &Output) -> Value {
    serde_json::from_str(&results(output)).unwrap()
}

/// The one line of an error that ends with this exit code.
#[track_caller]
pub fn refusal(output: &Output, code: i32) -> String {
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert!(output.stdout.is_empty());
    let line = told
        .lines()
        .find(|line| line.starts_with("error: "))
        .unwrap_or_else(|| panic!("no error in {told}"));
    if code == 1 {
        assert_eq!(
            told.lines().filter(|line| !line.starts_with("note: ")).count(),
            1,
            "{told}"
        );
    }
    line.to_owned()
}

/// A folder of its own for a test, removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
