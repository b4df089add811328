//! The crate `minijinja`, wrapped: an environment that renders chat templates as transformers does.

mod json;

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde_json::Value as Json;

use super::{DateTime, TemplateError};

/// Name of the variable that holds the mark of message text, for `tojson`.
pub(super) const MARK: &str = "__goldcrest_mark";

/// Work that one rendering may do: about this many instructions, or 64 bytes of data each.
const FUEL: u64 = 5_000_000;
const RECURSION_LIMIT: usize = 200;
const NAME: &str = "chat template";

/// A compiled template.
pub(super) struct Template {
    environment: Environment<'static>,
}

/// The variables of one rendering.
#[derive(Default)]
pub(super) struct Variables(BTreeMap<String, Value>);

impl Variables {
    pub fn set(&mut self, name: &str, value: &Json) {
        self.0.insert(name.into(), to_value(value));
    }

    /// Defines `strftime_now`, which always tells `now`.
    pub fn set_clock(&mut self, now: DateTime) {
        let strftime = move |format: String| {
            let unknown = |d| Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know {d}"));
            now.format(&format).map_err(unknown)
        };
        self.0.insert("strftime_now".into(), Value::from_function(strftime));
    }
}

/// What a template said when it refused the conversation.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

impl Template {
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(failure)?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.set_formatter(write_value);
        environment.add_filter("escape", escaped);
        environment.add_filter("e", escaped);
        environment.add_filter("tojson", |state: &State<'_, '_>, value: Value, options: Kwargs| {
            json::to_json(state, &value, options)
        });
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(
                Error::new(ErrorKind::InvalidOperation, "the template raised an exception")
                    .with_source(Refusal(message)),
            )
        });
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(failure)?;
        Ok(Template { environment })
    }

    pub fn render(&self, variables: Variables) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(failure)?;
        template.render(Value::from(variables.0)).map_err(failure)
    }
}

/// Writes the value of an expression; floats as Python does.
fn write_value(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.is_number() && !value.is_integer() {
        return out.write_str(&json::number(value)).map_err(Error::from);
    }
    minijinja::escape_formatter(out, state, value)
}

/// HTML escapes in the numeric form that Jinja2 uses for quotes.
fn escaped(value: &Value) -> Value {
    let mut text = String::new();
    for c in value.to_string().chars() {
        match c {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '\'' => text.push_str("&#39;"),
            '"' => text.push_str("&#34;"),
            _ => text.push(c),
        }
    }
    if value.is_safe() {
        value.clone()
    } else {
        Value::from_safe_string(text)
    }
}

fn failure(error: Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(Refusal(message)) = cause.downcast_ref() {
            return TemplateError::Refused {
                message: message.clone(),
            };
        }
        source = cause.source();
    }
    let line = error.line();
    let message = error.to_string();
    match error.kind() {
        ErrorKind::SyntaxError | ErrorKind::BadEscape => TemplateError::Syntax { line, message },
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork,
        _ => TemplateError::Failed { line, message },
    }
}

/// `{% generation %}` marks the assistant's part for training; here it is a plain scope.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let body = tag[2..].trim_start_matches(['-', '+']);
        let sign = &tag[2..tag.len() - body.len()];
        let name = body.trim_start();
        let (replacement, word) = match name {
            _ if is_tag(name, "generation") => ("with", "generation"),
            _ if is_tag(name, "endgeneration") => ("endwith", "endgeneration"),
            _ => {
                result.push_str("{%");
                rest = &tag[2..];
                continue;
            }
        };
        result.push_str("{%");
        result.push_str(sign);
        result.push(' ');
        result.push_str(replacement);
        if replacement == "with" {
            result.push_str(" __generation = true");
        }
        rest = &name[word.len()..];
    }
    result.push_str(rest);
    result
}

fn is_tag(body: &str, word: &str) -> bool {
    body.strip_prefix(word).is_some_and(|after| {
        let after = after.trim_start();
        ["%}", "-%}", "+%}"].iter().any(|end| after.starts_with(end))
    })
}

/// JSON as a template value; nesting is bounded by the JSON parser that made it.
fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
            (Some(n), _, _) => Value::from(n),
            (_, Some(n), _) => Value::from(n),
            (_, _, Some(n)) => Value::from(n),
            _ => Value::from(n.to_string()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(to_value).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), to_value(value)))),
    }
}
