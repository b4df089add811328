//! Counts as they are recorded in `tests/counts`: a line each of name, count and why it is what it is, with tabs between.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// By how much a count may grow without being recorded.
const MOST_GROWTH: f64 = 1.05;
/// What counts differ by for no reason: on another machine the C library takes other paths.
const NOISE: f64 = 0.01;
/// Begins the line that says what the counts are made with.
const COMPILER: &str = "# ";

/// How many instructions or operations something takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    pub name: String,
    pub count: u64,
}

impl Count {
    /// Of a line that begins with name and count.
    pub fn parse(line: &str) -> Option<Count> {
        let mut fields = line.split('\t');
        Some(Count {
            name: fields.next()?.to_owned(),
            count: fields.next()?.parse().ok()?,
        })
    }
}

/// A count, and why it is so large.
struct Entry {
    count: Count,
    reason: String,
}

/// A file of counts.
pub struct Recorded {
    path: PathBuf,
    compiler: Option<String>,
    entries: Vec<Entry>,
}

/// How a count differs from the recorded one.
#[derive(Debug, PartialEq)]
pub enum Change {
    /// Not by more than is allowed.
    None { count: Count, before: u64 },
    /// By more.
    Grown { count: Count, before: u64 },
    /// Fewer than recorded, by as much as may not be added: worth recording, so that it stays.
    Shrunk { count: Count, before: u64 },
    /// Nothing is recorded.
    Unknown { count: Count },
    /// Recorded, but not counted.
    Gone { name: String },
}

impl Change {
    /// Whether it has to be recorded before anything passes.
    pub fn fails(&self) -> bool {
        matches!(
            self,
            Change::Grown { .. } | Change::Unknown { .. } | Change::Gone { .. }
        )
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut compare = |count: &Count, before: u64, verdict: &str| {
            let ratio = count.count as f64 / before as f64;
            write!(
                f,
                "{}: {before} recorded, {} now, x {ratio:.4}{verdict}",
                count.name, count.count
            )
        };
        match self {
            Change::None { count, before } => compare(count, *before, ""),
            Change::Grown { count, before } => compare(count, *before, ": too many"),
            Change::Shrunk { count, before } => {
                compare(count, *before, ": fewer; `cargo xtask count --record` keeps it so")
            }
            Change::Unknown { count } => write!(f, "{}: {} now, none recorded", count.name, count.count),
            Change::Gone { name } => write!(f, "{name}: recorded, but not counted any more"),
        }
    }
}

impl Recorded {
    /// Reads a file; one that is not there has no counts.
    pub fn open(path: &Path) -> Result<Recorded, io::Error> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        Ok(Recorded::parse(path, &text))
    }

    fn parse(path: &Path, text: &str) -> Recorded {
        let entry = |line: &str| {
            let reason = line.split('\t').nth(2).unwrap_or_default().to_owned();
            Some(Entry {
                count: Count::parse(line)?,
                reason,
            })
        };
        Recorded {
            path: path.to_owned(),
            compiler: text
                .lines()
                .find_map(|line| line.strip_prefix(COMPILER))
                .map(str::to_owned),
            entries: text.lines().filter_map(entry).collect(),
        }
    }

    /// What the counts were made with when they were last recorded, where that matters.
    pub fn compiler(&self) -> Option<&str> {
        self.compiler.as_deref()
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.count.name == name)
    }

    /// How each of all counts differs from what is recorded, and what is missing among them.
    pub fn changes(&self, counts: &[Count]) -> Vec<Change> {
        let change = |count: &Count| {
            let count = count.clone();
            let Some(Entry { count: before, .. }) = self.entry(&count.name) else {
                return Change::Unknown { count };
            };
            let (before, ratio) = (before.count, count.count as f64 / before.count as f64);
            if ratio > MOST_GROWTH {
                Change::Grown { count, before }
            } else if ratio < 1.0 / MOST_GROWTH {
                Change::Shrunk { count, before }
            } else {
                Change::None { count, before }
            }
        };
        let names = self.entries.iter().map(|entry| &entry.count.name);
        let gone = names.filter(|name| counts.iter().all(|count| count.name != **name));
        let gone = gone.map(|name| Change::Gone { name: name.clone() });
        counts.iter().map(change).chain(gone).collect()
    }

    /// Takes over all counts. The reason is that of those which differ by more than noise; the others stay as they are.
    pub fn renew(&mut self, counts: &[Count], reason: &str, compiler: Option<String>) {
        let entry = |count: &Count| {
            let before = self.entry(&count.name);
            let same =
                before.filter(|before| before.count.count.abs_diff(count.count) as f64 <= NOISE * count.count as f64);
            Entry {
                count: same.map_or(count, |before| &before.count).clone(),
                reason: same.map_or(reason, |before| &before.reason).to_owned(),
            }
        };
        self.entries = counts.iter().map(entry).collect();
        self.compiler = compiler;
    }

    pub fn write(&self) -> io::Result<()> {
        std::fs::write(&self.path, self.to_string())
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if let Some(compiler) = &self.compiler {
            writeln!(f, "{COMPILER}{compiler}")?;
        }
        for Entry { count, reason } in &self.entries {
            writeln!(f, "{}\t{}\t{reason}", count.name, count.count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(text: &str) -> Recorded {
        Recorded::parse(Path::new("counts.tsv"), text)
    }

    fn count(name: &str, count: u64) -> Count {
        Count {
            name: name.to_owned(),
            count,
        }
    }

    #[test]
    fn more_than_a_twentieth_is_too_many() {
        let recorded = recorded("# rustc 1\na\t1000\tfirst\nb\t1000\tfirst\nc\t1000\tfirst\ngone\t1\tfirst\n");
        let now = [count("a", 1050), count("b", 1051), count("c", 950), count("new", 1)];
        let before = 1000;
        let [a, b, c, new] = now.clone();
        let expected = [
            Change::None { count: a, before },
            Change::Grown { count: b, before },
            Change::Shrunk { count: c, before },
            Change::Unknown { count: new },
            Change::Gone {
                name: "gone".to_owned(),
            },
        ];
        assert_eq!(recorded.changes(&now), expected);
    }

    #[test]
    fn a_reason_is_that_of_what_changed() {
        let mut recorded = recorded("# rustc 1\na\t1000\tfirst\nb\t1000\tfirst\ngone\t1\tfirst\n");
        recorded.renew(
            &[count("b", 1200), count("a", 1001), count("new", 7)],
            "exact sums",
            Some("rustc 2".to_owned()),
        );
        let expected = "# rustc 2\nb\t1200\texact sums\na\t1000\tfirst\nnew\t7\texact sums\n";
        assert_eq!(recorded.to_string(), expected);
        assert_eq!(self::recorded(expected).to_string(), expected);
    }
}
