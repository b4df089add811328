//! `tojson` as Python's `json.dumps` writes it: no HTML escaping, the options `ensure_ascii`, `indent`, `separators`, `sort_keys`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Objects inside objects that are written at most; deeper ones are refused.
const DEPTH_LIMIT: usize = 128;

/// How JSON is laid out.
struct Layout {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    /// A character that is not escaped although `ensure_ascii` is set.
    mark: Option<char>,
}

/// The filter `tojson`.
pub(super) fn to_json(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(indent) if !indent.is_none() => Some(indent_text(&indent)?),
        _ => None,
    };
    let (item_separator, key_separator) = match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: separators must be two strings",
            ));
        }
        None => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let layout = Layout {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        mark: state.lookup(super::MARK).and_then(|m| m.as_str()?.chars().next()),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    layout.write(value, 0, &mut out)?;
    Ok(out)
}

fn indent_text(indent: &Value) -> Result<String, Error> {
    const INDENT_LIMIT: usize = 64;
    match (indent.as_str(), indent.as_usize()) {
        (Some(text), _) => Ok(text.into()),
        (None, Some(width)) if width <= INDENT_LIMIT => Ok(" ".repeat(width)),
        _ => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: cannot indent by {indent}"),
        )),
    }
}

impl Layout {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > DEPTH_LIMIT {
            return Err(Error::new(ErrorKind::BadSerialization, "tojson: nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.write_items(('[', ']'), depth, out, &items, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.collect::<Vec<_>>();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items(('{', '}'), depth, out, &keys, |key, out| {
                    self.write_string(&key_text(key)?, out);
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => {
                let message = format!("tojson: a value of kind {kind} has no JSON form");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn write_items(
        &self,
        (open, close): (char, char),
        depth: usize,
        out: &mut String,
        items: &[Value],
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            self.break_line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                '\0'..='\u{1F}' => escape(c, out),
                '\u{7F}'.. if self.ensure_ascii && Some(c) != self.mark => escape(c, out),
                _ => out.push(c),
            }
        }
        out.push('"');
    }
}

fn escape(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().into()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(Error::new(
            ErrorKind::BadSerialization,
            format!("tojson: a key of kind {kind}"),
        )),
    }
}

/// A number as Python writes it: integers whole, floats in the shortest form, with an exponent outside 1e-4 ≤ |x| < 1e16.
pub(super) fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float_text(float),
        _ => value.to_string(),
    }
}

fn float_text(float: f64) -> String {
    if float.is_nan() {
        return "NaN".into();
    }
    if float.is_infinite() {
        return if float > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    // The debug form has these bounds and digits too, but writes 1e-7 for Python's 1e-07.
    let text = format!("{float:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}
