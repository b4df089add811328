//! The `decoder` field of tokenizer.json as a chain of streaming steps.

use serde_json::Value;

use super::error::TokenizerError;
use crate::detokenize::{ByteRule, Step};

/// The chain that `decoder` describes; null joins tokens with spaces.
///
/// # Errors
/// [`TokenizerError::Unsupported`] for a decoder, or an order of decoders, that cannot be streamed faithfully.
pub(crate) fn steps(decoder: &Value) -> Result<Vec<Step>, TokenizerError> {
    if decoder.is_null() {
        return Ok(vec![Step::Spaced { started: false }]);
    }
    let mut chain = Chain {
        steps: Vec::new(),
        fused: false,
    };
    chain.append(decoder)?;
    Ok(chain.steps)
}

struct Chain {
    steps: Vec<Step>,
    /// All tokens have become one text, so that the next steps act on the whole of it.
    fused: bool,
}

impl Chain {
    fn append(&mut self, decoder: &Value) -> Result<(), TokenizerError> {
        let kind = decoder["type"].as_str().unwrap_or("of no type");
        let text = |key: &str| decoder[key].as_str().unwrap_or_default().to_owned();
        match (kind, self.fused) {
            ("Sequence", _) => {
                for part in decoder["decoders"].as_array().into_iter().flatten() {
                    self.append(part)?;
                }
                return Ok(());
            }
            ("Fuse", _) => self.fused = true,
            ("ByteLevel", false) => {
                self.steps.push(Step::ByteLevel { held: Vec::new() });
                self.fused = true;
            }
            ("ByteFallback", false) => self.steps.push(Step::ByteFallback {
                held: Vec::new(),
                rule: ByteRule::WholeRun,
            }),
            ("Metaspace", false) => {
                let mark = single_character(&text("replacement"))?;
                let strip_first = decoder["prepend_scheme"] != "never";
                self.steps.push(Step::Metaspace {
                    mark,
                    strip_first,
                    started: false,
                });
            }
            ("WordPiece", false) => {
                let cleanup = decoder["cleanup"].as_bool().unwrap_or(true);
                self.steps.push(Step::WordPiece {
                    prefix: text("prefix"),
                    cleanup,
                    started: false,
                });
            }
            ("Replace", _) => self.steps.push(self.replace(&decoder["pattern"], text("content"))?),
            ("Strip", true) => {
                if decoder["stop"].as_u64() != Some(0) {
                    return Err(TokenizerError::Unsupported {
                        feature: "a decoder that strips the end of the text".into(),
                    });
                }
                let left = decoder["start"]
                    .as_u64()
                    .and_then(|n| usize::try_from(n).ok())
                    .unwrap_or(0);
                self.steps.push(Step::StripStart {
                    character: single_character(&text("content"))?,
                    left,
                });
            }
            _ => {
                return Err(TokenizerError::Unsupported {
                    feature: format!("the decoder {kind} at this place"),
                });
            }
        }
        Ok(())
    }

    fn replace(&self, pattern: &Value, to: String) -> Result<Step, TokenizerError> {
        match pattern["String"].as_str() {
            // In one long text an occurrence of several characters could span two streamed parts.
            Some(from) if !from.is_empty() && (!self.fused || from.chars().count() == 1) => {
                Ok(Step::Replace { from: from.into(), to })
            }
            _ => Err(TokenizerError::Unsupported {
                feature: format!("a decoder that replaces {pattern}"),
            }),
        }
    }
}

fn single_character(text: &str) -> Result<char, TokenizerError> {
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(TokenizerError::Unsupported {
            feature: format!("`{text}` where one character is expected"),
        }),
    }
}
