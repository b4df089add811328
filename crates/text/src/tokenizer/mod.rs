//! Words to token ids.
//!
//! A [`Tokenizer`] is built from tokenizer.json ([`Tokenizer::from_hf`]) or from a GGUF vocabulary ([`Tokenizer::from_gguf`]); both give
//! equal ids for equal vocabularies. The steps of encoding: added tokens are cut out of the text ([`added`]), the rest goes through the
//! vocabulary's own algorithm ([`pipeline`], the crate `tokenizers`; [`spm`] for pieces with scores).
//!
//! **Control text.** A prompt consists of [`Piece`]s. Text that a template or an API caller wrote is [`Piece::Markup`]: `<|im_end|>` in it
//! is the control token. Text that came from a message is [`Piece::Content`]: it never becomes a control token, it is spelled out. Pieces
//! do not otherwise cut the text: neighbouring texts are tokenised as one, so ordinary content has the ids of the reference.
//! Control tokens are those marked special (HF), of type control (GGUF), or of the form `<|…|>` or `<｜…｜>`.

mod added;
mod decoder;
mod error;
mod gguf;
mod hf;
mod pipeline;
mod pre_tokenizer;
mod spm;

use std::ops::Range;

use added::{AddedToken, Found, Matcher};
pub use error::TokenizerError;
pub use hf::HfFiles;
use pipeline::Pipeline;
use spm::ScoredPieces;

use crate::detokenize::{Detokenizer, Step, char_of_byte};
use crate::template::ControlTexts;

/// A part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text in which control tokens are recognised.
    Markup(&'a str),
    /// Text in which they are not.
    Content(&'a str),
    /// A token as it is.
    Token(u32),
}

/// What becomes of special tokens in decoded text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They appear as their text.
    Keep,
    /// They are left out.
    Skip,
}

/// A vocabulary with its algorithms.
pub struct Tokenizer {
    algorithm: Algorithm,
    /// Tokens to cut out of the raw text.
    added: Matcher,
    /// Tokens to cut out of the normalised text.
    late_added: Matcher,
    tokens: TokenTable,
    decoder: Vec<Step>,
    /// Ids put before and after a text by [`Tokenizer::with_special_tokens`].
    around: (Vec<u32>, Vec<u32>),
    names: SpecialIds,
    /// The ids that end a reply, ascending.
    ends: Vec<u32>,
    /// The control tokens, ascending.
    control: Vec<u32>,
}

enum Algorithm {
    Library(Box<Pipeline>),
    Scores(Box<ScoredPieces>),
}

/// Ids with a role. All lie inside the vocabulary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begin of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// Stands for what the vocabulary cannot express.
    pub unknown: Option<u32>,
    /// Padding.
    pub padding: Option<u32>,
}

/// Token texts by id, with what decoding and byte input need to know of each.
#[derive(Debug, Default)]
struct TokenTable {
    texts: String,
    /// End of each text in `texts`.
    ends: Vec<usize>,
    skipped: Vec<bool>,
    /// Tokens that stand for one byte, by the byte.
    byte_ids: Vec<Option<u32>>,
}

impl TokenTable {
    /// `texts` by id (`None`: no token has the id), `skipped` tells which are left out with [`SpecialTokens::Skip`].
    fn new<'t>(texts: impl Iterator<Item = Option<&'t str>>, skipped: impl Fn(u32) -> bool) -> Self {
        let mut table = TokenTable {
            byte_ids: vec![None; 256],
            ..TokenTable::default()
        };
        for (id, text) in (0..).zip(texts) {
            table.texts.push_str(text.unwrap_or_default());
            table.ends.push(table.texts.len());
            table.skipped.push(text.is_none() || skipped(id));
        }
        table
    }

    fn text(&self, id: u32) -> Option<&str> {
        let index = usize::try_from(id).ok()?;
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.texts.get(start..end)
    }

    /// Fills `byte_ids` with the tokens whose text is `spelling(byte)`.
    fn find_bytes(&mut self, spelling: impl Fn(u8) -> String) {
        let spellings: std::collections::HashMap<String, u8> = (0..=255).map(|b| (spelling(b), b)).collect();
        let longest = spellings.keys().map(String::len).max().unwrap_or(0);
        let mut byte_ids = vec![None; 256];
        for id in 0..u32::try_from(self.ends.len()).unwrap_or(u32::MAX) {
            let text = self.text(id).filter(|text| text.len() <= longest);
            if let Some(&byte) = text.and_then(|text| spellings.get(text)) {
                byte_ids[usize::from(byte)].get_or_insert(id);
            }
        }
        self.byte_ids = byte_ids;
    }
}

/// The spelling of a byte in vocabularies with byte fallback.
fn byte_piece(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// The spelling of a byte in byte-level vocabularies.
fn byte_char(byte: u8) -> String {
    char_of_byte(byte).to_string()
}

/// Ids of the control tokens among `tokens`, ascending.
fn control_ids(tokens: &[AddedToken]) -> Vec<u32> {
    let mut ids: Vec<u32> = tokens.iter().filter(|t| t.control).map(|t| t.id).collect();
    ids.sort_unstable();
    ids
}

/// Whether a token's text has the form that models reserve for control tokens.
fn looks_like_control(text: &str) -> bool {
    [("<|", "|>"), ("<｜", "｜>")]
        .iter()
        .any(|(open, close)| text.len() > open.len() + close.len() && text.starts_with(open) && text.ends_with(close))
}

/// A whole prompt as one text, with what is already known about parts of it.
#[derive(Default)]
struct Prompt {
    text: String,
    /// Tokens that are given; each stands in the text as some placeholder.
    tokens: Vec<Found>,
    /// Where control tokens are recognised, ascending, merged when they touch.
    markup: Vec<Range<usize>>,
}

impl Prompt {
    fn push_markup(&mut self, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        match self.markup.last_mut() {
            Some(last) if last.end == start => last.end = self.text.len(),
            _ => self.markup.push(start..self.text.len()),
        }
    }

    fn push_token(&mut self, id: u32) {
        let start = self.text.len();
        self.text.push('\u{FFFD}');
        self.tokens.push(Found {
            range: start..self.text.len(),
            id,
        });
    }

    fn is_markup(&self, range: &Range<usize>) -> bool {
        let after = self.markup.partition_point(|m| m.start <= range.start);
        after
            .checked_sub(1)
            .is_some_and(|index| self.markup[index].end >= range.end)
    }
}

impl Tokenizer {
    /// Number of ids: one more than the largest. A model may have more rows; ids from this number on have no text.
    pub fn vocabulary_len(&self) -> usize {
        self.tokens.ends.len()
    }

    /// Ids with a role.
    pub fn special_ids(&self) -> SpecialIds {
        self.names
    }

    /// The ids that end a reply: end of sequence, of turn, of message, and those that the generation configuration lists. Ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.ends
    }

    /// The token that stands for one byte; byte-level and byte-fallback vocabularies have most or all of them.
    pub fn byte_token(&self, byte: u8) -> Option<u32> {
        self.tokens.byte_ids.get(usize::from(byte)).copied().flatten()
    }

    /// Whether a token is one that message content never becomes.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.binary_search(&id).is_ok()
    }

    /// The texts of all control tokens, for [`ChatTemplate::render_prompt`](crate::ChatTemplate::render_prompt).
    pub fn control_texts(&self) -> ControlTexts {
        self.added_tokens()
            .filter(|token| token.control)
            .map(|token| token.content.as_str())
            .collect()
    }

    fn added_tokens(&self) -> impl Iterator<Item = &AddedToken> {
        self.added.tokens().iter().chain(self.late_added.tokens())
    }

    /// The vocabulary's own spelling of a token (byte-level characters, `▁` for space), or `None` where no token has the id.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.tokens.text(id).filter(|text| !text.is_empty())
    }

    /// The ids of all tokens whose text contains one of `parts`, control tokens excepted; rising. Bytes that are no whole character count
    /// as U+FFFD, and what a vocabulary drops at the start of a text (its space) does not count. Decodes the whole vocabulary once.
    pub fn ids_with(&self, parts: &[&str]) -> Vec<u32> {
        let ids = (0..self.vocabulary_len() as u32).filter(|&id| !self.is_control(id));
        let contains = |id: &u32| {
            let text = self.decode(&[*id], SpecialTokens::Keep);
            text.is_ok_and(|text| parts.iter().any(|part| text.contains(part)))
        };
        ids.filter(contains).collect()
    }

    /// Ids of `text`, control tokens recognised, nothing put around it. What a vocabulary has no token for becomes its unknown token,
    /// or is left out where it has none, as in the reference.
    ///
    /// # Errors
    /// [`TokenizerError::Library`] when the library refuses the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_pieces(&[Piece::Markup(text)])
    }

    /// Ids of a prompt in pieces, nothing put around it.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] for a token outside the vocabulary, [`TokenizerError::Library`] as in [`Tokenizer::encode`].
    pub fn encode_pieces(&self, pieces: &[Piece<'_>]) -> Result<Vec<u32>, TokenizerError> {
        let mut prompt = Prompt::default();
        for piece in pieces {
            match *piece {
                Piece::Markup(text) => prompt.push_markup(text),
                Piece::Content(text) => prompt.text.push_str(text),
                Piece::Token(id) => {
                    self.check_id(id)?;
                    prompt.push_token(id);
                }
            }
        }
        self.encode_prompt_text(&prompt)
    }

    /// Ids of any bytes, control tokens recognised. A byte that belongs to no valid UTF-8 becomes its byte token where the vocabulary
    /// has one, so that decoding gives it back to a byte-level vocabulary without loss; elsewhere it becomes U+FFFD. The text after
    /// such a byte is treated like text after a special token (in vocabularies that put a space before a text, it gets one).
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        let mut prompt = Prompt::default();
        for chunk in bytes.utf8_chunks() {
            prompt.push_markup(chunk.valid());
            for &byte in chunk.invalid() {
                match self.byte_token(byte) {
                    Some(id) => prompt.push_token(id),
                    None => prompt.push_markup("\u{FFFD}"),
                }
            }
        }
        self.encode_prompt_text(&prompt)
    }

    /// `ids` with what the vocabulary puts around a text: begin of sequence, separators, end of sequence.
    pub fn with_special_tokens(&self, ids: &[u32]) -> Vec<u32> {
        [&self.around.0, ids, &self.around.1].concat()
    }

    /// Ids that a model continues: the pieces, after begin of sequence if the vocabulary wants it and the pieces do not already start
    /// with it (as when a chat template writes it). The end marks of [`Tokenizer::with_special_tokens`] are not added.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_pieces`].
    pub fn encode_prompt(&self, pieces: &[Piece<'_>]) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.encode_pieces(pieces)?;
        let before = &self.around.0;
        Ok(if ids.starts_with(before) {
            ids
        } else {
            [before, ids.as_slice()].concat()
        })
    }

    /// Text of `ids`. Bytes that form no valid UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> Result<String, TokenizerError> {
        let mut stream = self.detokenizer(special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id)?);
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// A streaming decoder that starts a new text.
    pub fn detokenizer(&self, special: SpecialTokens) -> Detokenizer<'_> {
        Detokenizer::new(self, special, self.decoder.clone())
    }

    pub(crate) fn text_to_decode(&self, id: u32, special: SpecialTokens) -> Result<Option<&str>, TokenizerError> {
        self.check_id(id)?;
        let skipped = self.tokens.skipped[id as usize];
        Ok(self
            .token_text(id)
            .filter(|_| !(skipped && special == SpecialTokens::Skip)))
    }

    fn check_id(&self, id: u32) -> Result<(), TokenizerError> {
        let tokens = self.vocabulary_len();
        if (id as usize) < tokens {
            Ok(())
        } else {
            Err(TokenizerError::UnknownToken { id, tokens })
        }
    }

    fn encode_prompt_text(&self, prompt: &Prompt) -> Result<Vec<u32>, TokenizerError> {
        let cuts = self.cuts(prompt);
        let is_markup = |range: &Range<usize>| prompt.is_markup(range);
        match &self.algorithm {
            Algorithm::Library(pipeline) => pipeline.encode(&prompt.text, &cuts, &self.late_added, &is_markup),
            Algorithm::Scores(pieces) => {
                let (mut ids, mut done) = (Vec::new(), 0);
                for cut in &cuts {
                    pieces.encode(&prompt.text[done..cut.range.start], &mut ids);
                    ids.push(cut.id);
                    done = cut.range.end;
                }
                pieces.encode(&prompt.text[done..], &mut ids);
                Ok(ids)
            }
        }
    }

    /// Given tokens and added tokens of the raw text, in order.
    fn cuts(&self, prompt: &Prompt) -> Vec<Found> {
        let (mut cuts, mut done) = (Vec::new(), 0);
        let end = Found {
            range: prompt.text.len()..prompt.text.len(),
            id: 0,
        };
        for given in prompt.tokens.iter().chain([&end]) {
            let between = &prompt.text[done..given.range.start];
            let allowed = |range: &Range<usize>| prompt.is_markup(&(range.start + done..range.end + done));
            let found = self.added.find(between, &allowed);
            cuts.extend(found.into_iter().map(|f| Found {
                range: f.range.start + done..f.range.end + done,
                id: f.id,
            }));
            cuts.extend((!given.range.is_empty()).then(|| given.clone()));
            done = given.range.end;
        }
        cuts
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary_len", &self.vocabulary_len())
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
