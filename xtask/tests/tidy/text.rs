//! Rules about any text.

use crate::source::{Source, has_word};
use crate::{Violation, violation};

/// Rows of Markdown tables are exempt: they cannot be broken.
const MAX_LINE_CHARS: usize = 140;
const MAX_FILE_LINES: usize = 600;
const MAX_KERNEL_FILE_LINES: usize = 1000;

/// Tables of numbers that are longer than a file should be, and why they are one file.
const DATA_TABLES: &[(&str, &str)] = &[(
    "crates/format/src/blocks/grids.rs",
    "the grids of the IQ block types, as published",
)];

pub(crate) fn exempt_paths() -> impl Iterator<Item = &'static str> {
    DATA_TABLES.iter().map(|(path, _)| *path)
}

/// Written by people, as opposed to fixtures and generated files.
fn is_prose_or_code(source: &Source) -> bool {
    let by_ending = [".rs", ".md", ".toml", ".sh", ".py", ".yml"]
        .iter()
        .any(|ending| source.path.ends_with(ending));
    by_ending || source.path == ".ci/run"
}

fn is_data(source: &Source) -> bool {
    exempt_paths().any(|path| path == source.path)
}

pub(crate) fn line_length(source: &Source) -> Vec<Violation> {
    if !is_prose_or_code(source) || is_data(source) {
        return Vec::new();
    }
    let lines = source
        .text
        .lines()
        .enumerate()
        .filter(|(_, line)| !(source.path.ends_with(".md") && line.starts_with('|')))
        .map(|(index, line)| (index + 1, line.chars().count()));
    let long = lines.filter(|(_, chars)| *chars > MAX_LINE_CHARS);
    long.map(|(line, chars)| violation(source, line, format!("{chars} characters, at most {MAX_LINE_CHARS}")))
        .collect()
}

pub(crate) fn file_length(source: &Source) -> Vec<Violation> {
    if !source.is_rust() || is_data(source) {
        return Vec::new();
    }
    let limit = if source.path.starts_with("crates/kernels/") {
        MAX_KERNEL_FILE_LINES
    } else {
        MAX_FILE_LINES
    };
    let lines = source.text.lines().count();
    if lines <= limit {
        Vec::new()
    } else {
        vec![violation(source, 0, format!("{lines} lines, at most {limit}"))]
    }
}

/// Words are written apart here, so that this file does not hold them.
pub(crate) fn unfinished(source: &Source) -> Vec<Violation> {
    const WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    const MACROS: [&str; 3] = [concat!("to", "do!"), concat!("unimple", "mented!"), concat!("db", "g!")];
    if !is_prose_or_code(source) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let words = WORDS.iter().filter(|word| has_word(line, word));
        found.extend(words.map(|word| violation(source, index + 1, format!("unfinished: {word}"))));
    }
    for (index, line) in source.code.lines().enumerate() {
        let macros = MACROS.iter().filter(|name| line.contains(*name));
        found.extend(macros.map(|name| violation(source, index + 1, format!("unfinished: {name}"))));
    }
    found
}

pub(crate) fn machine_paths(source: &Source) -> Vec<Violation> {
    const FOLDERS: [&str; 5] = [
        concat!("/ho", "me/"),
        concat!("/ro", "ot/"),
        concat!("/wo", "rk/"),
        concat!("/Us", "ers/"),
        concat!("/tm", "p/"),
    ];
    const HOSTS: [&str; 4] = [
        concat!("pypi", ".org"),
        concat!("python", "hosted"),
        concat!("index.", "crates.io"),
        concat!("static.", "crates.io"),
    ];
    let begins_a_path = |line: &str, folder: &str| {
        let is_inside =
            |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '~' | '}' | '>' | ')' | '$' | '*');
        line.match_indices(folder)
            .any(|(at, _)| !line[..at].chars().next_back().is_some_and(is_inside))
    };
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let folders = FOLDERS.iter().filter(|folder| begins_a_path(line, folder));
        found.extend(folders.map(|folder| violation(source, index + 1, format!("a machine's path: {folder}"))));
        let hosts = HOSTS.iter().filter(|host| line.contains(*host));
        found.extend(hosts.map(|host| violation(source, index + 1, format!("a registry's host: {host}"))));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&Source) -> Vec<Violation>, path: &str, text: &str) -> usize {
        rule(&Source::new(path, text)).len()
    }

    #[test]
    fn long_lines_are_found_by_characters() {
        assert_eq!(count(line_length, "a.md", &"é".repeat(140)), 0);
        assert_eq!(count(line_length, "a.md", &format!("| {}", "x".repeat(140))), 0);
        assert_eq!(count(line_length, "a.rs", &format!("| {}", "x".repeat(140))), 1);
        assert_eq!(count(line_length, "a.md", &"a".repeat(141)), 1);
        assert_eq!(count(line_length, "a.json", &"a".repeat(141)), 0);
        assert_eq!(count(line_length, DATA_TABLES[0].0, &"a".repeat(141)), 0);
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(count(file_length, "crates/x/src/a.rs", &"\n".repeat(600)), 0);
        assert_eq!(count(file_length, "crates/x/src/a.rs", &"\n".repeat(601)), 1);
        assert_eq!(count(file_length, "crates/kernels/src/a.rs", &"\n".repeat(1000)), 0);
        assert_eq!(count(file_length, "crates/kernels/src/a.rs", &"\n".repeat(1001)), 1);
    }

    #[test]
    fn unfinished_work_is_found() {
        for text in [
            concat!("// TO", "DO: later"),
            concat!("to", "do!()"),
            concat!("unimple", "mented!()"),
            concat!("db", "g!(x)"),
        ] {
            assert_eq!(count(unfinished, "a.rs", text), 1, "{text}");
        }
        assert_eq!(count(unfinished, "a.rs", "let todos = method();"), 0);
    }

    #[test]
    fn paths_and_hosts_are_found() {
        for text in [
            concat!("at /ho", "me/someone/x"),
            concat!("\"/wo", "rk/main\""),
            concat!("https://pypi", ".org/simple"),
        ] {
            assert_eq!(count(machine_paths, "a.md", text), 1, "{text}");
        }
        assert_eq!(count(machine_paths, "a.md", "crates/work/x and frame-work/x"), 0);
    }
}
