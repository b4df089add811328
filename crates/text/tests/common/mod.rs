//! What the tests of this crate share: where the fixtures lie and how to open them.
#![allow(dead_code)]

pub mod strings;

use std::path::{Path, PathBuf};

use goldcrest_format::gguf::Metadata;
use goldcrest_format::{Source, gguf};
use goldcrest_text::{HfFiles, Tokenizer};
use serde_json::Value;

/// The kinds of tokenizer that come with a tokenizer.json.
pub const KINDS: [&str; 11] = [
    "bpe_gpt2",
    "bpe_llama3",
    "bpe_qwen2",
    "bpe_o200k",
    "bpe_deepseek",
    "spm_llama2",
    "spm_mistral",
    "spm_gemma",
    "wordpiece_bert",
    "sentencepiece_unigram",
    "sentencepiece_unigram_bytes",
];

/// The folder `tests` of the repository.
pub fn repository_tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

pub fn goldens() -> PathBuf {
    repository_tests().join("goldens")
}

pub fn json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The tokenizer of a folder with tokenizer.json and tokenizer_config.json.
pub fn from_folder(folder: &Path) -> Tokenizer {
    let tokenizer = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let config = json(&folder.join("tokenizer_config.json"));
    let files = HfFiles {
        tokenizer: &tokenizer,
        tokenizer_config: &config,
        generation_config: &Value::Null,
    };
    Tokenizer::from_hf(&files).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
}

pub fn gguf_metadata(path: &Path) -> Metadata {
    let source = Source::open(path).unwrap();
    gguf::read(&source, 0).unwrap().metadata
}

pub fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}
