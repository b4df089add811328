//! Rules about functions, by braces and brackets: no parser is needed for text that rustfmt has been through.

use crate::source::{Source, has_word};
use crate::{Violation, violation};

const MAX_FUNCTION_LINES: usize = 70;
const MAX_PARAMETERS: usize = 6;

struct Function {
    name: String,
    line: usize,
    /// Without a receiver.
    parameters: usize,
    lines: usize,
}

pub(crate) fn length(source: &Source) -> Vec<Violation> {
    let long = functions(&source.code)
        .into_iter()
        .filter(|function| function.lines > MAX_FUNCTION_LINES);
    long.map(|Function { name, line, lines, .. }| {
        violation(
            source,
            line,
            format!("fn {name} has {lines} lines, at most {MAX_FUNCTION_LINES}"),
        )
    })
    .collect()
}

pub(crate) fn parameters(source: &Source) -> Vec<Violation> {
    let wide = functions(&source.code)
        .into_iter()
        .filter(|function| function.parameters > MAX_PARAMETERS);
    wide.map(
        |Function {
             name, line, parameters, ..
         }| {
            violation(
                source,
                line,
                format!("fn {name} has {parameters} parameters, at most {MAX_PARAMETERS}"),
            )
        },
    )
    .collect()
}

fn functions(code: &str) -> Vec<Function> {
    let starts = code.match_indices("fn ").map(|(at, _)| at);
    let starts = starts.filter(|&at| at == 0 || code[..at].ends_with([' ', '\n', '(', '{']));
    starts.filter_map(|at| function(code, at)).collect()
}

/// The function whose `fn` is at a place; function types have no name and are none.
fn function(code: &str, at: usize) -> Option<Function> {
    let rest = &code[at + 3..];
    let name_bytes = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    let name = rest.get(..name_bytes).filter(|name| !name.is_empty())?;
    let open = parameter_list(rest, name_bytes)?;
    let close = open + closing(&rest[open..])?;
    let after = &rest[close..];
    let lines = match after.find(['{', ';']) {
        Some(body) if after[body..].starts_with('{') => {
            let end = close + body + closing(&rest[close + body..])?;
            rest[..end].matches('\n').count() + 1
        }
        _ => 1,
    };
    Some(Function {
        name: name.to_owned(),
        line: code[..at].matches('\n').count() + 1,
        parameters: parameter_count(&rest[open + 1..close]),
        lines,
    })
}

/// Where the parameters begin: after the generic ones, whose bounds may hold brackets of their own.
fn parameter_list(rest: &str, from: usize) -> Option<usize> {
    let mut depth = 0;
    let mut previous = ' ';
    for (at, c) in rest[from..].char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' && previous != '=' => depth -= 1,
            '(' if depth == 0 => return Some(from + at),
            _ => {}
        }
        previous = c;
    }
    None
}

/// Offset of the bracket that closes the one at the start.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn parameter_count(list: &str) -> usize {
    let (mut depth, mut previous) = (0, ' ');
    let mut parts = vec![String::new()];
    for c in list.chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if previous != '-' && previous != '=' => depth -= 1,
            ',' if depth == 0 => parts.push(String::new()),
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
        previous = c;
    }
    let is_receiver =
        |part: &str| has_word(part, "self") && (!part.contains(':') || part.trim_start().starts_with("self"));
    parts
        .iter()
        .map(|part| part.trim_start_matches(',').trim())
        .filter(|part| !part.is_empty() && !is_receiver(part))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_functions_are_found() {
        let body = |lines: usize| {
            format!(
                "impl A {{\n    pub fn f<F: Fn(u8) -> u8>(x: F) -> u8 {{\n{}    }}\n}}\n",
                "        x;\n".repeat(lines)
            )
        };
        assert!(length(&Source::new("a.rs", &body(68))).is_empty());
        let found = length(&Source::new("a.rs", &body(69)));
        assert_eq!((found.len(), found[0].line), (1, 2));
    }

    #[test]
    fn many_parameters_are_found() {
        let wide = "fn f<T: Fn(a, b)>(&mut self, a: (u8, u8), b: [u8; 2], c: A<B, C>, d: fn(u8, u8) -> u8, e: u8, g: u8, h: u8,) {}";
        assert_eq!(parameters(&Source::new("a.rs", wide)).len(), 1);
        let fits = "fn f(&mut self, a: (u8, u8), b: [u8; 2], c: A<B, C>, d: fn(u8, u8) -> u8, e: u8, g: u8) {}";
        assert!(parameters(&Source::new("a.rs", fits)).is_empty());
        assert!(
            parameters(&Source::new(
                "a.rs",
                "fn f(self: Box<Self>, a: u8, b: u8, c: u8, d: u8, e: u8, g: u8);"
            ))
            .is_empty()
        );
    }
}
