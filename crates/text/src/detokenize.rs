//! Token ids back to text, whole or streamed, by one and the same chain of steps.

use std::borrow::Cow;

use crate::tokenizer::{SpecialTokens, Tokenizer, TokenizerError};

/// One step of a decoder chain as tokenizer.json describes it. A step takes token texts in order and passes texts on; what it must
/// see more of before it can decide, it holds back.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Characters stand for bytes (GPT-2's byte map); the bytes of all tokens form UTF-8.
    ByteLevel { held: Vec<u8> },
    /// `<0xNN>` stands for a byte.
    ByteFallback { held: Vec<u8>, rule: ByteRule },
    /// Every occurrence of a text becomes another.
    Replace { from: String, to: String },
    /// SentencePiece's space mark becomes a space; the first token loses its marks where `strip_first`.
    Metaspace {
        mark: char,
        strip_first: bool,
        started: bool,
    },
    /// One leading mark of the text is dropped, or one of each leading token while they are nothing else (`all`).
    DropPrefix { mark: char, all: bool, done: bool },
    /// Up to `left` copies of a character are dropped from the start of the whole text.
    StripStart { character: char, left: usize },
    /// Words are separated by spaces, continuations start with `prefix`.
    WordPiece {
        prefix: String,
        cleanup: bool,
        started: bool,
    },
    /// Tokens are separated by spaces.
    Spaced { started: bool },
}

/// What becomes of byte tokens that form no valid UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRule {
    /// As the crate `tokenizers`: a run with a fault anywhere becomes one U+FFFD per byte, so a run is held until it ends.
    WholeRun,
    /// As SentencePiece: valid characters stay, every other byte becomes U+FFFD.
    PerCharacter,
}

/// A streaming detokeniser: feed ids one by one, text comes out as soon as it is certain, never a part of a character. The texts
/// joined, [`finish`](Detokenizer::finish) included, equal [`Tokenizer::decode`] of all the ids.
#[derive(Debug, Clone)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    special: SpecialTokens,
    steps: Vec<Step>,
}

impl<'t> Detokenizer<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer, special: SpecialTokens, steps: Vec<Step>) -> Self {
        Detokenizer {
            tokenizer,
            special,
            steps,
        }
    }

    /// Takes the next id and returns the text that is now certain; often a whole word, at times nothing.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`] for an id outside the vocabulary; the state is then unchanged.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let mut text = String::new();
        if let Some(token) = self.tokenizer.text_to_decode(id, self.special)? {
            feed(&mut self.steps, Cow::Borrowed(token), &mut text);
        }
        Ok(text)
    }

    /// Ends the stream and returns what was held back; bytes of an unfinished character become U+FFFD.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        for index in 0..self.steps.len() {
            let (head, rest) = self.steps.split_at_mut(index + 1);
            if let Some(step) = head.last_mut() {
                step.finish(&mut |token| feed(rest, token, &mut text));
            }
        }
        text
    }
}

fn feed(steps: &mut [Step], token: Cow<'_, str>, text: &mut String) {
    match steps.split_first_mut() {
        None => text.push_str(&token),
        Some((step, rest)) => step.push(token, &mut |token| feed(rest, token, text)),
    }
}

impl Step {
    fn push(&mut self, token: Cow<'_, str>, pass: &mut dyn FnMut(Cow<'_, str>)) {
        match self {
            Step::ByteLevel { held } => {
                append_bytes(&token, held);
                pass(Cow::Owned(take_certain(held)));
            }
            Step::ByteFallback { held, rule } => match byte_of(&token) {
                Some(byte) => {
                    held.push(byte);
                    if *rule == ByteRule::PerCharacter {
                        let (certain, rest) = decode_per_character(held, false);
                        *held = rest;
                        pass_unless_empty(certain, pass);
                    }
                }
                None => {
                    pass_unless_empty(end_of_run(held, *rule), pass);
                    pass(token);
                }
            },
            Step::Replace { from, to } => pass(if token.contains(from.as_str()) {
                token.replace(from.as_str(), to).into()
            } else {
                token
            }),
            Step::Metaspace {
                mark,
                strip_first,
                started,
            } => {
                let first = !std::mem::replace(started, true);
                let space = if first && *strip_first { "" } else { " " };
                pass(token.replace(*mark, space).into());
            }
            Step::DropPrefix { mark, all, done } => {
                let stripped = if *done { None } else { token.strip_prefix(*mark) };
                *done |= (stripped.is_some() && !*all) || !stripped.unwrap_or(&token).is_empty();
                match stripped {
                    Some(rest) => pass(rest.to_owned().into()),
                    None => pass(token),
                }
            }
            Step::StripStart { character, left } => {
                let mut rest = &*token;
                while *left > 0 && !rest.is_empty() {
                    match rest.strip_prefix(*character) {
                        Some(stripped) => (rest, *left) = (stripped, *left - 1),
                        None => *left = 0,
                    }
                }
                pass(rest.to_owned().into());
            }
            Step::WordPiece {
                prefix,
                cleanup,
                started,
            } => {
                let word = match (std::mem::replace(started, true), token.strip_prefix(prefix.as_str())) {
                    (false, _) => token,
                    (true, Some(rest)) => rest.to_owned().into(),
                    (true, None) => format!(" {token}").into(),
                };
                pass(if *cleanup { cleaned(&word).into() } else { word });
            }
            Step::Spaced { started } => {
                let first = !std::mem::replace(started, true);
                pass(if first { token } else { format!(" {token}").into() });
            }
        }
    }

    fn finish(&mut self, pass: &mut dyn FnMut(Cow<'_, str>)) {
        match self {
            Step::ByteLevel { held } => {
                pass_unless_empty(String::from_utf8_lossy(&std::mem::take(held)).into_owned(), pass)
            }
            Step::ByteFallback { held, rule } => pass_unless_empty(end_of_run(held, *rule), pass),
            Step::Replace { .. }
            | Step::Metaspace { .. }
            | Step::DropPrefix { .. }
            | Step::StripStart { .. }
            | Step::WordPiece { .. }
            | Step::Spaced { .. } => {}
        }
    }
}

fn pass_unless_empty(text: String, pass: &mut dyn FnMut(Cow<'_, str>)) {
    if !text.is_empty() {
        pass(text.into());
    }
}

/// The bytes that a token of a byte-level vocabulary stands for: by the byte map, or its own where a character is not in the map.
fn append_bytes(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for c in token.chars() {
        match byte_of_char(c) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// Takes the text that no later byte can change: all but an unfinished character at the end.
fn take_certain(held: &mut Vec<u8>) -> String {
    let unfinished = match std::str::from_utf8(held) {
        Ok(_) => 0,
        Err(_) => unfinished_len(held),
    };
    let rest = held.split_off(held.len() - unfinished);
    let certain = std::mem::replace(held, rest);
    String::from_utf8_lossy(&certain).into_owned()
}

/// Length of the suffix of `bytes` that may become a character with more bytes (0 to 3).
fn unfinished_len(bytes: &[u8]) -> usize {
    (1..=bytes.len().min(3))
        .rev()
        .find(|&len| matches!(std::str::from_utf8(&bytes[bytes.len() - len..]), Err(e) if e.valid_up_to() == 0 && e.error_len().is_none()))
        .unwrap_or(0)
}

fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok())?
}

fn end_of_run(held: &mut Vec<u8>, rule: ByteRule) -> String {
    let bytes = std::mem::take(held);
    match rule {
        ByteRule::PerCharacter => decode_per_character(&bytes, true).0,
        ByteRule::WholeRun => String::from_utf8(bytes).unwrap_or_else(|e| "\u{FFFD}".repeat(e.as_bytes().len())),
    }
}

/// Valid characters, and U+FFFD for every other byte; unless `last`, an unfinished character at the end is returned as the rest.
fn decode_per_character(mut bytes: &[u8], last: bool) -> (String, Vec<u8>) {
    let mut text = String::new();
    while let Some(chunk) = bytes.utf8_chunks().next() {
        text.push_str(chunk.valid());
        bytes = &bytes[chunk.valid().len()..];
        if bytes.is_empty() || (!last && unfinished_len(bytes) == bytes.len()) {
            break;
        }
        text.push('\u{FFFD}');
        bytes = &bytes[1..];
    }
    (text, bytes.to_vec())
}

/// The English clean-up of the WordPiece decoder, in its order.
fn cleaned(word: &str) -> String {
    const RULES: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    RULES
        .iter()
        .fold(word.to_owned(), |word, (from, to)| word.replace(from, to))
}

/// The byte that a character of GPT-2's byte map stands for.
///
/// Printable Latin-1 characters stand for themselves; the other 68 bytes, ascending, are the characters from U+0100 on.
pub(crate) fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The character of GPT-2's byte map for a byte: the inverse of [`byte_of_char`].
pub(crate) fn char_of_byte(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match code {
        0x00..=0x20 => 0x100 + code,
        0x7F..=0xA0 => 0x121 + code - 0x7F,
        0xAD => 0x143,
        _ => code,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_map_is_total_and_invertible() {
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=255 {
            let c = char_of_byte(byte);
            assert_eq!(byte_of_char(c), Some(byte));
            assert!(seen.insert(c));
            assert!(!c.is_whitespace() && !c.is_control());
        }
        assert_eq!(
            (0..0x400)
                .filter_map(char::from_u32)
                .filter(|&c| byte_of_char(c).is_some())
                .count(),
            256
        );
    }

    #[test]
    fn unfinished_characters_are_recognised() {
        assert_eq!(unfinished_len(b""), 0);
        assert_eq!(unfinished_len("€".as_bytes()), 0);
        assert_eq!(unfinished_len(&"€".as_bytes()[..2]), 2);
        assert_eq!(unfinished_len(b"ab\xF0\x9F\x98"), 3);
        assert_eq!(unfinished_len(b"\x98"), 0);
        assert_eq!(unfinished_len(b"\xED\xA0"), 0);
        assert_eq!(unfinished_len(b"\xF0\xF0"), 1);
    }

    #[test]
    fn per_character_keeps_what_is_valid() {
        assert_eq!(decode_per_character(b"a\xE4\xBD\xA0\xFFb", true).0, "a你\u{FFFD}b");
        assert_eq!(decode_per_character(b"\xE4\xBD", true).0, "\u{FFFD}\u{FFFD}");
        assert_eq!(
            decode_per_character(b"\xE4\xBD", false),
            (String::new(), b"\xE4\xBD".to_vec())
        );
        assert_eq!(
            decode_per_character(b"x\xE4\xE4\xBD", false),
            ("x\u{FFFD}".into(), b"\xE4\xBD".to_vec())
        );
    }
}
