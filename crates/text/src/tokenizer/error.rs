use goldcrest_format::gguf::MetadataError;
use thiserror::Error;

/// Why a vocabulary cannot be used, or a text or id cannot be converted.
#[derive(Debug, Error)]
pub enum TokenizerError {
    /// A metadata key is missing or has another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// An array that must run parallel to the tokens has another length.
    #[error("`{key}` has {found} entries for {tokens} tokens")]
    LengthMismatch {
        /// Metadata key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Number of tokens.
        tokens: usize,
    },
    /// `tokenizer.ggml.model` names an algorithm that is not implemented.
    #[error("tokenizer model `{name}` is not supported; known are gpt2, llama, t5 and bert")]
    UnknownModel {
        /// Value of `tokenizer.ggml.model`.
        name: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not in the table.
    #[error("pre-tokenizer `{name}` is not supported: with another one the token ids would be wrong")]
    UnknownPreTokenizer {
        /// Value of `tokenizer.ggml.pre`.
        name: String,
    },
    /// A special-token id lies outside the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {tokens} tokens")]
    SpecialOutOfRange {
        /// Key that holds the id.
        key: &'static str,
        /// The id.
        id: i64,
        /// Number of tokens.
        tokens: usize,
    },
    /// A merge rule is malformed or names tokens that do not exist.
    #[error("merge {index} (`{text}`) does not join two known tokens into a known token")]
    BadMerge {
        /// Position in `tokenizer.ggml.merges`.
        index: usize,
        /// The rule.
        text: String,
    },
    /// A piece score is not a number.
    #[error("the score of token {id} is not a number")]
    BadScore {
        /// Token id.
        id: usize,
    },
    /// A token type outside 1..=6.
    #[error("token {id} has the unknown type {kind}")]
    BadTokenType {
        /// Token id.
        id: usize,
        /// Type number.
        kind: i64,
    },
    /// A file is not valid JSON of the expected form.
    #[error("{file}: {message}")]
    BadFile {
        /// File name.
        file: &'static str,
        /// What the parser said.
        message: String,
    },
    /// tokenizer.json asks for something that this crate does not do.
    #[error("tokenizer.json: {feature} is not supported")]
    Unsupported {
        /// The feature, with its value.
        feature: String,
    },
    /// Token ids are so sparse that a table over them would be out of proportion to the file.
    #[error("token id {id} is out of proportion to a vocabulary of {tokens} tokens")]
    SparseIds {
        /// Largest id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
    /// The tokenizer library refused a text.
    #[error("tokenizing failed: {message}")]
    Library {
        /// What the library said.
        message: String,
    },
    /// An id is not in the vocabulary.
    #[error("token id {id} is outside the vocabulary of {tokens} tokens")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
}
