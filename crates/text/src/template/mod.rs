//! Chat templates: conversations to prompts.
//!
//! Templates are rendered as transformers renders them ([`jinja`]). [`ChatTemplate::render_prompt`] also tells which parts of the result
//! came from a message, so that control-token text inside a message stays text ([`separate`]).

mod clock;
mod jinja;
mod separate;

use serde_json::{Map, Value};
use thiserror::Error;

pub use clock::DateTime;
pub use separate::{ControlTexts, RenderedPrompt};

/// Why a conversation could not be rendered.
#[derive(Debug, Error)]
pub enum TemplateError {
    /// The template is not valid Jinja, or uses something that is not supported.
    #[error("chat template, line {}: {message}", line.map_or("?".into(), |l| l.to_string()))]
    Syntax {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// The template does not accept this conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template failed on this conversation, as when a message lacks a field.
    #[error("the chat template failed in line {}: {message}", line.map_or("?".into(), |l| l.to_string()))]
    Failed {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What went wrong.
        message: String,
    },
    /// The template ran longer than any honest template.
    #[error("the chat template does not end within its limit of work")]
    TooMuchWork,
    /// The last message cannot be continued: there is none with text, or the template does not show it.
    #[error("the last message cannot be continued: it has no text, or the chat template does not show it")]
    NothingToContinue,
    /// A generation prompt was asked for together with the continuation of the last message.
    #[error("add_generation_prompt and continue_final_message exclude each other")]
    ContradictoryOptions,
    /// A message contains the text of a control token, and the template transforms messages in a way that hides where it ends up.
    #[error(
        "a message contains control-token text that this chat template does not keep apart; remove it from the message"
    )]
    InseparableControlText,
}

/// A conversation and the options of its rendering. Field names are those of transformers' `apply_chat_template`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderInput<'a> {
    /// The messages: objects with `role`, `content` and what else the template knows.
    pub messages: &'a [Value],
    /// Tool definitions as JSON schemas.
    pub tools: Option<&'a [Value]>,
    /// Documents for grounded answers.
    pub documents: Option<&'a [Value]>,
    /// Ends the prompt with the start of a reply.
    pub add_generation_prompt: bool,
    /// Cuts the prompt behind the text of the last message, so that the model continues it.
    pub continue_final_message: bool,
    /// More variables; they go before the special tokens.
    pub extra: Option<&'a Map<String, Value>>,
    /// Texts of the special tokens.
    pub special: SpecialTexts<'a>,
    /// What `strftime_now` tells; without a time the template finds the function undefined.
    pub now: Option<DateTime>,
}

/// Texts of special tokens that templates name; absent ones are undefined in the template.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpecialTexts<'a> {
    /// `bos_token`.
    pub bos: Option<&'a str>,
    /// `eos_token`.
    pub eos: Option<&'a str>,
    /// `unk_token`.
    pub unknown: Option<&'a str>,
    /// `pad_token`.
    pub padding: Option<&'a str>,
}

/// A compiled chat template.
pub struct ChatTemplate {
    template: jinja::Template,
    source: String,
}

/// Marks the end of the last message while it is rendered; a private-use character that no model writes.
const CONTINUE_MARK: char = '\u{10FFFD}';

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        Ok(ChatTemplate {
            template: jinja::Template::new(source)?,
            source: source.into(),
        })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation to plain text.
    ///
    /// # Errors
    /// Any of [`TemplateError`] but `Syntax` and `InseparableControlText`.
    pub fn render(&self, input: &RenderInput<'_>) -> Result<String, TemplateError> {
        self.render_marked(input, None)
    }

    /// Renders a conversation and tells which parts of the text came from messages, tools, documents or extra variables.
    /// The text is that of [`ChatTemplate::render`]. `control` holds the tokens that such parts must not become.
    ///
    /// Only what could become a control token is told apart: a text without control tokens needs no separation. Where a template
    /// builds a control token around a string (`'<|' + role + '|>'`), the token counts as the template's.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and [`TemplateError::InseparableControlText`].
    pub fn render_prompt(
        &self,
        input: &RenderInput<'_>,
        control: &ControlTexts,
    ) -> Result<RenderedPrompt, TemplateError> {
        separate::render(self, input, control)
    }

    fn render_marked(&self, input: &RenderInput<'_>, mark: Option<char>) -> Result<String, TemplateError> {
        if input.continue_final_message {
            return self.render_continued(input, mark);
        }
        let mut variables = jinja::Variables::default();
        let special = &input.special;
        let names = ["bos_token", "eos_token", "unk_token", "pad_token"];
        for (name, text) in names
            .into_iter()
            .zip([special.bos, special.eos, special.unknown, special.padding])
        {
            if let Some(text) = text {
                variables.set(name, &Value::from(text));
            }
        }
        for (name, value) in input.extra.into_iter().flatten() {
            variables.set(name, value);
        }
        let list = |values: Option<&[Value]>| values.map_or(Value::Null, |v| Value::Array(v.to_vec()));
        variables.set("messages", &list(Some(input.messages)));
        variables.set("tools", &list(input.tools));
        variables.set("documents", &list(input.documents));
        variables.set("add_generation_prompt", &Value::Bool(input.add_generation_prompt));
        if let Some(now) = input.now {
            variables.set_clock(now);
        }
        if let Some(mark) = mark {
            variables.set(jinja::MARK, &Value::from(mark.to_string()));
        }
        self.template.render(variables)
    }

    /// Renders with a mark behind the last message's text, and cuts there. A space behind the mark tells whether the template strips
    /// white space from messages; then the cut text loses its own too.
    fn render_continued(&self, input: &RenderInput<'_>, mark: Option<char>) -> Result<String, TemplateError> {
        if input.add_generation_prompt {
            return Err(TemplateError::ContradictoryOptions);
        }
        let mut messages = input.messages.to_vec();
        let text = messages
            .last_mut()
            .and_then(final_text)
            .ok_or(TemplateError::NothingToContinue)?;
        text.push(CONTINUE_MARK);
        text.push(' ');
        let marked = RenderInput {
            messages: &messages,
            continue_final_message: false,
            ..*input
        };
        let rendered = self.render_marked(&marked, mark)?;
        let (before, after) = rendered
            .rsplit_once(CONTINUE_MARK)
            .ok_or(TemplateError::NothingToContinue)?;
        Ok(if after.starts_with(' ') {
            before
        } else {
            before.trim_end()
        }
        .into())
    }
}

/// The text of a message: its content, or the last part of it that has a text.
fn final_text(message: &mut Value) -> Option<&mut String> {
    match message.get_mut("content")? {
        Value::String(text) => Some(text),
        Value::Array(parts) => parts.iter_mut().rev().find_map(|part| match part.get_mut("text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }),
        _ => None,
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
