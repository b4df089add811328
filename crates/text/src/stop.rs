//! Stop strings: text that ends a reply and does not belong to it.

use std::collections::VecDeque;

use crate::detokenize::Detokenizer;
use crate::tokenizer::TokenizerError;

/// A token of a reply with the text that became certain with it, and what the caller keeps per token (log-probabilities).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenText<D> {
    /// Token id.
    pub id: u32,
    /// Its part of the text; empty while a character is unfinished.
    pub text: String,
    /// The caller's data.
    pub data: D,
}

/// What a token released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released<D> {
    /// Tokens whose text is certain to belong to the reply, in order. The one in which a stop string begins comes with the text before
    /// it; it and all later ones are left out where nothing remains.
    pub tokens: Vec<TokenText<D>>,
    /// The stop string that ended the reply, by its number.
    pub stop: Option<usize>,
}

/// Holds tokens back while their text may be the beginning of a stop string.
///
/// The reply ends with the first character that completes a stop string; if it completes several, the longest counts. So the reply
/// does not depend on how the text is cut into tokens. Tokens are released whole.
#[derive(Debug, Clone)]
pub struct StopBuffer<D> {
    stops: Vec<String>,
    held: VecDeque<TokenText<D>>,
    /// Text of the held tokens.
    text: String,
    stopped: bool,
}

impl<D> StopBuffer<D> {
    /// Stop strings in the caller's numbering; empty ones never match.
    pub fn new(stops: Vec<String>) -> Self {
        StopBuffer {
            stops,
            held: VecDeque::new(),
            text: String::new(),
            stopped: false,
        }
    }

    /// Takes the next token. After a stop string has matched, tokens are dropped.
    pub fn push(&mut self, token: TokenText<D>) -> Released<D> {
        if self.stopped {
            return Released {
                tokens: Vec::new(),
                stop: None,
            };
        }
        let new_from = self.text.len();
        self.text.push_str(&token.text);
        self.held.push_back(token);
        match self.first_match(new_from) {
            Some((stop, end)) => {
                self.stopped = true;
                let reply = end - self.stops[stop].len();
                Released {
                    tokens: self.release_cut(reply),
                    stop: Some(stop),
                }
            }
            None => Released {
                tokens: self.release(self.text.len() - self.longest_beginning()),
                stop: None,
            },
        }
    }

    /// Ends the reply: all held tokens are released.
    pub fn finish(mut self) -> Vec<TokenText<D>> {
        self.release(self.text.len())
    }

    /// The stop string that is completed first behind `new_from`, and the end of it in the held text.
    fn first_match(&self, new_from: usize) -> Option<(usize, usize)> {
        let ends = self.text[new_from..]
            .char_indices()
            .map(|(at, c)| new_from + at + c.len_utf8());
        ends.into_iter().find_map(|end| {
            let complete = |stop: &String| !stop.is_empty() && self.text[..end].ends_with(stop.as_str());
            let matches = self.stops.iter().enumerate().filter(|(_, stop)| complete(stop));
            // Of equal strings the first counts.
            matches
                .rev()
                .max_by_key(|(_, stop)| stop.len())
                .map(|(number, _)| (number, end))
        })
    }

    /// Bytes at the end of the held text that may be the beginning of a stop string.
    fn longest_beginning(&self) -> usize {
        let beginning = |stop: &String| {
            let cuts = stop.char_indices().map(|(at, _)| at).rev();
            cuts.into_iter()
                .find(|&cut| self.text.ends_with(&stop[..cut]))
                .unwrap_or(0)
        };
        self.stops.iter().map(beginning).max().unwrap_or(0)
    }

    /// Releases the tokens whose text lies within the first `bytes` of the held text.
    fn release(&mut self, bytes: usize) -> Vec<TokenText<D>> {
        let (mut tokens, mut end) = (Vec::new(), 0);
        while let Some(token) = self.held.pop_front() {
            if end + token.text.len() > bytes {
                self.held.push_front(token);
                break;
            }
            end += token.text.len();
            tokens.push(token);
        }
        self.text.drain(..end);
        tokens
    }

    /// Releases the first `bytes` of the held text, the last token cut.
    fn release_cut(&mut self, bytes: usize) -> Vec<TokenText<D>> {
        let (mut tokens, mut left) = (Vec::new(), bytes);
        for mut token in self.held.drain(..) {
            if left == 0 {
                break;
            }
            token.text.truncate(left);
            left -= token.text.len();
            tokens.push(token);
        }
        self.text.clear();
        tokens
    }
}

/// From token ids to the text of a reply: a streaming detokeniser with stop strings behind it.
#[derive(Debug, Clone)]
pub struct TextStream<'t, D> {
    detokenizer: Detokenizer<'t>,
    stops: StopBuffer<D>,
}

impl<'t, D> TextStream<'t, D> {
    /// A stream over a fresh detokeniser.
    pub fn new(detokenizer: Detokenizer<'t>, stops: Vec<String>) -> Self {
        TextStream {
            detokenizer,
            stops: StopBuffer::new(stops),
        }
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownToken`]; the stream is then unchanged.
    pub fn push(&mut self, id: u32, data: D) -> Result<Released<D>, TokenizerError> {
        let text = self.detokenizer.push(id)?;
        Ok(self.stops.push(TokenText { id, text, data }))
    }

    /// Ends the reply. The last text, that of an unfinished character, goes to the last held token, or is returned alone.
    pub fn finish(self) -> (Vec<TokenText<D>>, String) {
        let stopped = self.stops.stopped;
        let mut tokens = self.stops.finish();
        let tail = if stopped {
            String::new()
        } else {
            self.detokenizer.finish()
        };
        match tokens.last_mut() {
            Some(last) => {
                last.text.push_str(&tail);
                (tokens, String::new())
            }
            None => (tokens, tail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts `text` into tokens at `cuts`, pushes them, and returns the reply's tokens and the stop.
    fn run(stops: &[&str], parts: &[&str]) -> (Vec<(u32, String)>, Option<usize>) {
        let mut buffer = StopBuffer::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let (mut tokens, mut stop) = (Vec::new(), None);
        for (id, part) in (0..).zip(parts) {
            let released = buffer.push(TokenText {
                id,
                text: (*part).into(),
                data: id,
            });
            tokens.extend(released.tokens);
            stop = stop.or(released.stop);
        }
        tokens.extend(buffer.finish());
        assert!(tokens.iter().all(|t| t.id == t.data));
        (tokens.into_iter().map(|t| (t.id, t.text)).collect(), stop)
    }

    /// The reply by definition: character by character.
    fn expected(stops: &[&str], text: &str) -> (String, Option<usize>) {
        for end in text.char_indices().map(|(at, c)| at + c.len_utf8()) {
            let complete = (0..stops.len()).filter(|&s| !stops[s].is_empty() && text[..end].ends_with(stops[s]));
            if let Some(stop) = complete.rev().max_by_key(|&s| stops[s].len()) {
                return (text[..end - stops[stop].len()].into(), Some(stop));
            }
        }
        (text.into(), None)
    }

    fn partitions(text: &str) -> Vec<Vec<&str>> {
        let Some(first) = text.chars().next() else {
            return vec![vec![]];
        };
        let mut all = Vec::new();
        for end in text
            .char_indices()
            .map(|(at, c)| at + c.len_utf8())
            .filter(|&end| end >= first.len_utf8())
        {
            for mut rest in partitions(&text[end..]) {
                rest.insert(0, &text[..end]);
                all.push(rest);
            }
        }
        all
    }

    #[test]
    fn every_partition_of_every_short_text_gives_the_same_reply() {
        let stop_sets: [&[&str]; 7] = [
            &["ab"],
            &["aab", "ab"],
            &["aba"],
            &["abab", "ba"],
            &["bc", "abcd"],
            &["", "é"],
            &["é€", "b"],
        ];
        let letters = ["a", "b", "c", "d", "é", "€"];
        let mut texts = vec![String::new()];
        for round in 0..6 {
            let wide = if round < 4 { 6 } else { 2 };
            let longer: Vec<String> = texts
                .iter()
                .flat_map(|t| letters[..wide].iter().map(move |l| format!("{t}{l}")))
                .collect();
            for text in longer.iter().step_by(if round < 4 { 1 } else { 7 }) {
                for stops in stop_sets {
                    let want = expected(stops, text);
                    for parts in partitions(text) {
                        let (tokens, stop) = run(stops, &parts);
                        let reply: String = tokens.iter().map(|t| t.1.as_str()).collect();
                        assert_eq!((reply, stop), want, "{text} {parts:?} {stops:?}");
                        let ids: Vec<u32> = tokens.iter().map(|t| t.0).collect();
                        assert_eq!(ids, (0..ids.len() as u32).collect::<Vec<_>>());
                    }
                }
            }
            texts = longer;
        }
    }

    #[test]
    fn the_beginning_of_a_stop_string_is_held_and_no_more() {
        let mut buffer = StopBuffer::new(vec!["DEFGHIJ".into()]);
        let mut push = |text: &str| {
            buffer.push(TokenText {
                id: 0,
                text: text.into(),
                data: (),
            })
        };
        assert_eq!(push("ABC").tokens.len(), 1);
        assert_eq!(push("DEF").tokens.len(), 0);
        assert_eq!(push("").tokens.len(), 0);
        assert_eq!(push("GX").tokens.len(), 3);
        assert_eq!(push("DEFGHI").tokens.len(), 0);
        let last = push("J and more");
        assert_eq!((last.tokens.len(), last.stop), (0, Some(0)));
        assert_eq!(push("after").tokens.len(), 0);
    }
}
