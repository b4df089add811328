//! Numbers that are not finite, as Python's `json` writes them: bare words, which JSON does not know.

use std::ops::Range;

/// Configurations have one or two. The object in its place takes much more memory than a word.
pub const MOST_WORDS: usize = 64;

/// Where such words stand outside of strings, in rising order; no more than one beyond [`MOST_WORDS`].
pub fn words(text: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() && found.len() <= MOST_WORDS {
        let start = at;
        at = match text[start] {
            b'"' => string_end(text, start),
            byte if is_of_word(byte) => {
                let len = text[start..].iter().take_while(|byte| is_of_word(**byte)).count();
                start + len
            }
            _ => start + 1,
        };
        if matches!(&text[start..at], b"NaN" | b"Infinity" | b"-Infinity") {
            found.push(start..at);
        }
    }
    found
}

/// The text with numbers, as long, in place of the words.
pub fn as_numbers(text: &[u8], words: &[Range<usize>]) -> Vec<u8> {
    let mut text = text.to_vec();
    for word in words {
        text[word.clone()].fill(b'1');
    }
    text
}

/// The text with an object `{"__float__": word}` in place of each word.
pub fn as_objects(text: &[u8], words: &[Range<usize>]) -> Vec<u8> {
    let mut written = Vec::with_capacity(text.len());
    let mut copied = 0;
    for word in words {
        written.extend_from_slice(&text[copied..word.start]);
        written.extend_from_slice(br#"{"__float__":""#);
        written.extend_from_slice(&text[word.clone()]);
        written.extend_from_slice(br#""}"#);
        copied = word.end;
    }
    written.extend_from_slice(&text[copied..]);
    written
}

/// The end of the string that begins at `start`; that of the text if it has none.
fn string_end(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// Whether the byte may stand in a number or a word: only a whole one counts.
fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_')
}
