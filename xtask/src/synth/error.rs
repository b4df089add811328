//! Why no model was written.

use std::path::PathBuf;

use goldcrest_format::FormatError;
use goldcrest_format::blocks::BlockError;

use super::{families, mix, shape};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SynthError {
    #[error("{problem}\n\n{}", super::usage())]
    Usage { problem: String },
    #[error(
        "{config}: cannot be read: {error}; give a preset ({}) or the path of a config.json",
        shape::preset_names()
    )]
    Config { config: String, error: std::io::Error },
    #[error("{config}: {error}")]
    Json { config: String, error: serde_json::Error },
    #[error("model_type {model_type} is not known; known are {}", families::model_types())]
    Family { model_type: String },
    #[error("{key} = {value} is not supported: {wanted}")]
    Setting {
        key: &'static str,
        value: String,
        wanted: String,
    },
    #[error("there is no mix {name}; known are {}", mix::names())]
    Mix { name: String },
    #[error("routing {text} is neither uniform nor zipf:S with S from 0 to 10")]
    Routing { text: String },
    #[error("skewed routing needs {need}")]
    Skew { need: String },
    #[error(
        "the tokenizer cannot be read: {0}; `cargo xtask fixtures` fetches one, --tokenizer names another GGUF file"
    )]
    Tokenizer(#[from] FormatError),
    #[error("{} holds no tokenizer: a GGUF file with tokenizer.ggml.tokens and tokenizer.ggml.token_type is needed", path.display())]
    NoTokenizer { path: PathBuf },
    #[error("vocab_size = {vocabulary} is too small for the tokenizer, which has {tokens} tokens")]
    Vocabulary { vocabulary: usize, tokens: usize },
    #[error("tensor {tensor} is too large to count its bytes")]
    TooLarge { tensor: String },
    #[error(transparent)]
    Blocks(#[from] BlockError),
    #[error("{}: {error}", path.display())]
    Write { path: PathBuf, error: std::io::Error },
}
