//! The files of the repository, and Rust text with its comments and strings taken out.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// A text file.
pub(crate) struct Source {
    /// Relative to the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Rust only: comments and the insides of literals are blanks, lines stay.
    pub(crate) code: String,
    /// Rust only: comments are blanks, literals stay.
    pub(crate) uncommented: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let (code, uncommented) = if path.ends_with(".rs") {
            blank(text)
        } else {
            (String::new(), String::new())
        };
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code,
            uncommented,
        }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// A file of tests only.
    pub(crate) fn is_test(&self) -> bool {
        let in_folder = self
            .path
            .split('/')
            .any(|part| part == "tests" || part == "benches" || part == "fuzz_targets");
        in_folder || self.path.ends_with("/tests.rs")
    }

    /// Lines of code before a module of tests, numbered from 1.
    pub(crate) fn product_lines<'a>(&'a self, code: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        let end = self.code.find("#[cfg(test)]\nmod tests {").unwrap_or(self.code.len());
        let lines = self.code.get(..end).map_or(0, |text| text.lines().count());
        let lines = if self.is_test() { 0 } else { lines };
        code.lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .take(lines)
    }
}

/// All text files that git knows or would add, read once.
pub(crate) fn repository() -> &'static [Source] {
    static FILES: OnceLock<Vec<Source>> = OnceLock::new();
    FILES.get_or_init(read_repository)
}

fn read_repository() -> Vec<Source> {
    let root = root();
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output()
        .expect("git");
    assert!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout).expect("names in UTF-8");
    let read = |name: &str| Some(Source::new(name, &std::fs::read_to_string(root.join(name)).ok()?));
    names
        .split('\0')
        .filter(|name| !name.is_empty())
        .filter_map(read)
        .collect()
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// Whether a word stands in a line, not as a part of a longer one.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Blanks (comments and insides of literals, comments alone).
fn blank(text: &str) -> (String, String) {
    let mut lexer = Lexer {
        rest: text,
        code: String::new(),
        uncommented: String::new(),
    };
    while !lexer.rest.is_empty() {
        lexer.step();
    }
    (lexer.code, lexer.uncommented)
}

struct Lexer<'a> {
    rest: &'a str,
    code: String,
    uncommented: String,
}

impl Lexer<'_> {
    fn step(&mut self) {
        let after_word = self
            .code
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_');
        if self.rest.starts_with("//") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.take(end, false, false);
        } else if self.rest.starts_with("/*") {
            self.take(block_comment_bytes(self.rest), false, false);
        } else if self.rest.starts_with('"') {
            self.take(string_bytes(self.rest), false, true);
        } else if let Some(bytes) = raw_string_bytes(self.rest).filter(|_| !after_word) {
            self.take(bytes, false, true);
        } else if let Some(bytes) = char_bytes(self.rest) {
            self.take(bytes, false, true);
        } else {
            let bytes = self.rest.chars().next().map_or(0, char::len_utf8);
            self.take(bytes, true, true);
        }
    }

    fn take(&mut self, bytes: usize, in_code: bool, in_uncommented: bool) {
        let (taken, rest) = self.rest.split_at(bytes);
        let blanked = || {
            taken
                .chars()
                .map(|c| if c == '\n' { '\n' } else { ' ' })
                .collect::<String>()
        };
        self.code += &if in_code { taken.to_owned() } else { blanked() };
        self.uncommented += &if in_uncommented { taken.to_owned() } else { blanked() };
        self.rest = rest;
    }
}

fn block_comment_bytes(text: &str) -> usize {
    let mut depth = 0;
    for (at, _) in text.char_indices() {
        if text[at..].starts_with("/*") {
            depth += 1;
        } else if at > 0 && text[..=at].ends_with("*/") {
            depth -= 1;
            if depth == 0 {
                return at + 1;
            }
        }
    }
    text.len()
}

fn string_bytes(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn raw_string_bytes(text: &str) -> Option<usize> {
    let after = ["r", "br", "cr"].iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// A character literal; a lifetime has no closing quote.
fn char_bytes(text: &str) -> Option<usize> {
    let body = text.strip_prefix('\'')?;
    if body.starts_with('\\') {
        return body[2..].find('\'').map(|at| at + 4);
    }
    let first = body.chars().next()?.len_utf8();
    body[first..].starts_with('\'').then_some(first + 2)
}

#[test]
fn comments_and_literals_become_blanks() {
    let text = "a(\"x // y\\\"z\"); // c\n'q' 'l r#\"raw \" \"# /* a /* b */ c */ d b'\\'' e\n";
    let source = Source::new("a.rs", text);
    assert_eq!(
        source.code.split_whitespace().collect::<Vec<_>>(),
        ["a(", ");", "'l", "d", "b", "e"]
    );
    assert_eq!(source.code.lines().count(), 2);
    assert!(source.uncommented.contains("x // y") && !source.uncommented.contains("// c"));
}

#[test]
fn words_are_whole() {
    assert!(has_word("use libm::exp", "libm") && !has_word("use libmath", "libm") && !has_word("a_libm", "libm"));
}

#[test]
fn product_lines_end_where_tests_begin() {
    let text = "a\n#[cfg(test)]\nmod tests {\n}\n";
    let lines = |path: &str| Source::new(path, text).product_lines(text).count();
    assert_eq!(
        (
            lines("crates/x/src/a.rs"),
            lines("crates/x/tests/a.rs"),
            lines("crates/x/src/a/tests.rs")
        ),
        (1, 0, 0)
    );
}
