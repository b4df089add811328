//! Words and token ids: tokenizers, chat templates, streaming text.
//!
//! - [`Tokenizer`]: text to ids and back, from tokenizer.json or a GGUF vocabulary.
//! - [`Detokenizer`]: ids to text as they come, never a part of a character.
//! - [`ChatTemplate`]: conversations to prompts in pieces, message text told apart from the template's.
//! - [`TextStream`]: ids to the text of a reply, ended by stop strings, one record per token.
//!
//! The crate knows no engine and no file format beyond the metadata it is given; it reads no files, no clock and no environment.

mod detokenize;
mod stop;
mod template;
mod tokenizer;

pub use detokenize::Detokenizer;
pub use stop::{Released, StopBuffer, TextStream, TokenText};
pub use template::{ChatTemplate, ControlTexts, DateTime, RenderInput, RenderedPrompt, SpecialTexts, TemplateError};
pub use tokenizer::{HfFiles, Piece, SpecialIds, SpecialTokens, Tokenizer, TokenizerError};
