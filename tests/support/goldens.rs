//! Where the golden cases lie: a module of the tests of every crate that runs on them.
#![allow(dead_code)] // each test binary uses its own part

use std::path::{Path, PathBuf};

/// Cases whose GGUF file lacks a key of the configuration (`tests/goldens-gguf/README.md`) that no fact of the family stands for: from it
/// they are another model.
const UNFAITHFUL_GGUF: &[&str] = &[
    "gemma2",
    "gemma3",
    "llama4",
    "llama_dynamic_ntk",
    "mistral4",
    "mistral_swa",
    "phimoe",
    "qwen2_swa",
    "qwen3_moe_nonorm",
    "starcoder2",
];

/// The folder of what all crates' tests read.
pub fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// The folder of a case.
pub fn golden_folder(case: &str) -> PathBuf {
    tests_folder().join("goldens").join(case)
}

/// The names of all cases, sorted.
pub fn golden_cases() -> Vec<String> {
    let folder = std::fs::read_dir(tests_folder().join("goldens")).unwrap();
    let entries = folder
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("case.json").exists());
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= 91, "golden cases are missing: {names:?}");
    names
}

/// A case as another program converted it, if one could.
pub fn golden_gguf_path(case: &str) -> Option<PathBuf> {
    let path = tests_folder().join(format!("goldens-gguf/{case}.gguf"));
    path.exists().then_some(path)
}

/// As [`golden_gguf_path`], where the file says all that the configuration says.
pub fn faithful_gguf_path(case: &str) -> Option<PathBuf> {
    golden_gguf_path(case).filter(|_| !UNFAITHFUL_GGUF.contains(&case))
}
