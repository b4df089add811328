//! Words and token ids: tokenizers, chat templates, streaming text.
//!
//! - [`Tokenizer`]: text to ids and back, from tokenizer.json or a GGUF vocabulary.
//! - [`Detokenizer`]: ids to text as they come, never a part of a character.
//!
//! The crate knows no engine and no file format beyond the metadata it is given; it reads no files, no clock and no environment.

mod detokenize;
mod tokenizer;

pub use detokenize::Detokenizer;
pub use tokenizer::{HfFiles, Piece, SpecialIds, SpecialTokens, Tokenizer, TokenizerError};
