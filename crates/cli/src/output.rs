//! What is told to people: notes and errors on standard error, sizes and times in words.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// A mistake in what was typed that only shows later: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Writes a line to standard error. Nothing can be told to who does not listen, so failures are ignored.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes a note to standard error.
pub fn note(text: impl Display) {
    tell(format_args!("note: {text}"));
}

/// An error and its causes as one line. Many errors tell their cause themselves; it is not told twice.
pub fn error_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the reader of standard output has gone away. Errors of other files are of types of their own.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether bars may be drawn on standard error.
pub fn can_draw() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A size in decimal units.
pub fn size(bytes: u64) -> String {
    decimal(bytes as f64, &["B", "kB", "MB", "GB", "TB"])
}

/// A count with a decimal prefix.
pub fn count(count: u64) -> String {
    decimal(count as f64, &["", "k", "M", "G", "T"]).trim_end().to_owned()
}

fn decimal(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

/// How many things a second.
pub fn rate(things: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { things as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_or_three_digits() {
        let sizes = [
            0,
            999,
            1000,
            98_362_432,
            253_113_024,
            999_950_000,
            5_000_000_000_000_000,
        ]
        .map(size);
        assert_eq!(
            sizes,
            ["0 B", "999 B", "1.0 kB", "98.4 MB", "253 MB", "1.0 GB", "5000 TB"]
        );
        assert_eq!([5, 134_515_008].map(count), ["5", "135 M"]);
    }

    #[test]
    fn causes_are_told_once_and_on_one_line() {
        let source = io::Error::other("disk\non fire");
        let told = anyhow::Error::new(source).context("cannot read x");
        assert_eq!(error_line(&told), "cannot read x: disk on fire");
        let told_twice = anyhow::anyhow!("inner").context("outer: inner");
        assert_eq!(error_line(&told_twice), "outer: inner");
    }
}
