//! Telling template text and message text apart in a rendered prompt.
//!
//! Templates are programs: they trim, split, compare and escape messages, so positions of message text in the result cannot be
//! computed. Instead a mark, a character that occurs nowhere in the conversation, is put into the strings of the conversation behind
//! each character with which some control token begins, and the conversation is rendered once more. If the result without the marks
//! is the plain rendering, each mark shows a character that came from the conversation: no control token can begin there.
//! A template that looks for tags in messages may notice the marks and render something else; then only real occurrences of
//! control-token text are marked, which no template but one that looks for just those can notice. If the renderings still differ, the
//! conversation is refused.

use std::collections::HashSet;
use std::ops::Range;

use serde_json::Value;

use super::{ChatTemplate, RenderInput, TemplateError};
use crate::tokenizer::Piece;

/// The texts of the tokens that message text must not become.
#[derive(Debug, Default)]
pub struct ControlTexts {
    texts: HashSet<String>,
    /// First characters.
    initials: HashSet<char>,
    /// Proper prefixes and proper suffixes: what strings can contribute to a token that spans them.
    prefixes: HashSet<String>,
    suffixes: HashSet<String>,
    longest_bytes: usize,
}

impl<S: AsRef<str>> FromIterator<S> for ControlTexts {
    fn from_iter<I: IntoIterator<Item = S>>(texts: I) -> Self {
        let mut control = ControlTexts::default();
        for text in texts {
            let text = text.as_ref();
            let Some(initial) = text.chars().next() else { continue };
            control.initials.insert(initial);
            control.longest_bytes = control.longest_bytes.max(text.len());
            for (cut, _) in text.char_indices().skip(1) {
                control.prefixes.insert(text[..cut].into());
                control.suffixes.insert(text[cut..].into());
            }
            control.texts.insert(text.into());
        }
        control
    }
}

impl ControlTexts {
    /// Whether a control token begins at `at` in `text`, wholly or up to the end of the text.
    fn begins(&self, text: &str, at: usize) -> bool {
        let rest = &text[at..];
        let ends = rest
            .char_indices()
            .map(|(end, c)| end + c.len_utf8())
            .take_while(|&end| end <= self.longest_bytes);
        ends.into_iter().any(|end| self.texts.contains(&rest[..end])) || self.prefixes.contains(rest)
    }

    /// Whether `text` begins with the end of a control token.
    fn completes(&self, text: &str) -> bool {
        let ends = text
            .char_indices()
            .map(|(end, c)| end + c.len_utf8())
            .take_while(|&end| end < self.longest_bytes);
        ends.into_iter().any(|end| self.suffixes.contains(&text[..end]))
    }
}

/// A prompt, and where its text came from the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    /// Parts at which no control token may begin or end, ascending and disjoint.
    content: Vec<Range<usize>>,
}

impl RenderedPrompt {
    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text in pieces for [`Tokenizer::encode_prompt`](crate::Tokenizer::encode_prompt).
    pub fn pieces(&self) -> Vec<Piece<'_>> {
        let (mut pieces, mut done) = (Vec::with_capacity(2 * self.content.len() + 1), 0);
        for content in &self.content {
            pieces.push(Piece::Markup(&self.text[done..content.start]));
            pieces.push(Piece::Content(&self.text[content.clone()]));
            done = content.end;
        }
        pieces.push(Piece::Markup(&self.text[done..]));
        pieces
    }

    /// Takes the marks out of `marked` and notes the characters before them.
    fn unmarked(marked: &str, mark: char) -> RenderedPrompt {
        let mut text = String::with_capacity(marked.len());
        let mut content: Vec<Range<usize>> = Vec::new();
        let mut previous = 0;
        for c in marked.chars() {
            if c != mark {
                previous = text.len();
                text.push(c);
            } else if content.last().is_none_or(|last| last.end < text.len()) {
                content.push(previous..text.len());
            }
        }
        RenderedPrompt { text, content }
    }
}

/// What is marked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caution {
    /// Every character with which a control token could begin.
    EveryInitial,
    /// Characters with which one does begin.
    Occurrences,
}

pub(super) fn render(
    template: &ChatTemplate,
    input: &RenderInput<'_>,
    control: &ControlTexts,
) -> Result<RenderedPrompt, TemplateError> {
    let plain = template.render(input)?;
    let conversation = Conversation::of(input);
    let mark = conversation.unused_character();
    for caution in [Caution::EveryInitial, Caution::Occurrences] {
        let mut marked = conversation.clone();
        if !marked.mark(&Marker { control, mark, caution }) {
            return Ok(RenderedPrompt {
                text: plain,
                content: Vec::new(),
            });
        }
        // A template may refuse or fail because of the marks.
        if let Ok(text) = template.render_marked(&marked.input(input), Some(mark)) {
            let prompt = RenderedPrompt::unmarked(&text, mark);
            if prompt.text == plain {
                return Ok(prompt);
            }
        }
    }
    Err(TemplateError::InseparableControlText)
}

/// The parts of the input that are not the template's or the model's own.
#[derive(Clone)]
struct Conversation {
    messages: Value,
    tools: Option<Value>,
    documents: Option<Value>,
    extra: Option<Value>,
}

impl Conversation {
    fn of(input: &RenderInput<'_>) -> Self {
        let list = |values: &[Value]| Value::Array(values.to_vec());
        Conversation {
            messages: list(input.messages),
            tools: input.tools.map(list),
            documents: input.documents.map(list),
            extra: input.extra.map(|extra| Value::Object(extra.clone())),
        }
    }

    fn input<'a>(&'a self, plain: &RenderInput<'a>) -> RenderInput<'a> {
        let list = |value: &'a Value| value.as_array().map(Vec::as_slice);
        RenderInput {
            messages: list(&self.messages).unwrap_or_default(),
            tools: self.tools.as_ref().and_then(list),
            documents: self.documents.as_ref().and_then(list),
            extra: self.extra.as_ref().and_then(Value::as_object),
            ..*plain
        }
    }

    fn parts(&self) -> impl Iterator<Item = &Value> {
        [
            Some(&self.messages),
            self.tools.as_ref(),
            self.documents.as_ref(),
            self.extra.as_ref(),
        ]
        .into_iter()
        .flatten()
    }

    /// A private-use character that does not occur.
    fn unused_character(&self) -> char {
        let mut used = HashSet::new();
        self.parts().for_each(|part| collect_private(part, &mut used));
        ('\u{F0000}'..='\u{FFFFD}')
            .find(|c| !used.contains(c))
            .unwrap_or('\u{100000}')
    }

    /// Marks all strings; tells whether there was anything to mark.
    fn mark(&mut self, marker: &Marker<'_>) -> bool {
        let mut changed = false;
        let parts = [
            Some(&mut self.messages),
            self.tools.as_mut(),
            self.documents.as_mut(),
            self.extra.as_mut(),
        ];
        for part in parts.into_iter().flatten() {
            changed |= marker.mark_value(part);
        }
        changed
    }
}

fn collect_private(value: &Value, used: &mut HashSet<char>) {
    let mut collect = |text: &str| used.extend(text.chars().filter(|&c| c >= '\u{F0000}'));
    match value {
        Value::String(text) => collect(text),
        Value::Array(items) => items.iter().for_each(|item| collect_private(item, used)),
        Value::Object(map) => {
            map.keys().for_each(|key| collect(key));
            map.values().for_each(|item| collect_private(item, used));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

struct Marker<'c> {
    control: &'c ControlTexts,
    mark: char,
    caution: Caution,
}

impl Marker<'_> {
    fn mark_value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => match self.marked(text) {
                Some(marked) => {
                    *text = marked;
                    true
                }
                None => false,
            },
            Value::Array(items) => items
                .iter_mut()
                .fold(false, |changed, item| self.mark_value(item) | changed),
            Value::Object(map) => {
                let mut changed = false;
                let entries = std::mem::take(map).into_iter().map(|(key, mut item)| {
                    // Field names, roles and part types are the template's vocabulary, as long as they are plain words.
                    let is_word = matches!(key.as_str(), "role" | "type") && item.as_str().is_some_and(is_plain_word);
                    changed |= !is_word && self.mark_value(&mut item);
                    let marked = if is_plain_word(&key) { None } else { self.marked(&key) };
                    changed |= marked.is_some();
                    (marked.unwrap_or(key), item)
                });
                *map = entries.collect();
                changed
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => false,
        }
    }

    /// `text` with marks, or `None` where there is nothing to mark.
    fn marked(&self, text: &str) -> Option<String> {
        let completes = self.control.completes(text);
        let mut marked = String::with_capacity(text.len() + 8);
        let mut changed = false;
        for (at, c) in text.char_indices() {
            marked.push(c);
            let begins = self.control.initials.contains(&c)
                && (self.caution == Caution::EveryInitial || self.control.begins(text, at));
            if begins || (at == 0 && completes) {
                marked.push(self.mark);
                changed = true;
            }
        }
        changed.then_some(marked)
    }
}

fn is_plain_word(text: &str) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}
