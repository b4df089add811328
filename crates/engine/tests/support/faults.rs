//! Files of which reads fail when a test says so.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};

use goldcrest_format::{Checkpoint, ReadAt, Source};

/// What becomes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Done,
    /// It gives the first half of what was asked for.
    Half,
    /// The file ends before it.
    End,
    /// The device has an error.
    Error,
}

/// What becomes of the read of an ordinal.
type Judge = Box<dyn Fn(usize) -> Verdict + Send>;

/// The reads of some files, counted and judged.
#[derive(Default)]
pub struct Reads {
    judge: Mutex<(usize, Option<Judge>)>,
}

impl Reads {
    /// Counts reads from 0 on again, and lets `judge` decide about each.
    pub fn judge_by(&self, judge: impl Fn(usize) -> Verdict + Send + 'static) {
        *self.judge.lock().unwrap() = (0, Some(Box::new(judge)));
    }

    /// Reads since somebody judges them.
    pub fn count(&self) -> usize {
        self.judge.lock().unwrap().0
    }

    fn next_verdict(&self) -> Verdict {
        let (count, judge) = &mut *self.judge.lock().unwrap();
        *count += 1;
        judge.as_ref().map_or(Verdict::Done, |judge| judge(*count - 1))
    }
}

struct JudgedFile {
    file: File,
    reads: Arc<Reads>,
}

impl std::fmt::Debug for JudgedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl ReadAt for JudgedFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        match self.reads.next_verdict() {
            Verdict::Done => self.file.read_at(offset, out),
            Verdict::Half => {
                let half = out.len().div_ceil(2);
                self.file.read_at(offset, &mut out[..half])
            }
            Verdict::End => Ok(0),
            Verdict::Error => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// The same model with its weights read under judgement.
pub fn judged(checkpoint: Checkpoint, reads: &Arc<Reads>) -> Checkpoint {
    checkpoint.map_sources(|source| {
        let file = JudgedFile {
            file: File::open(source.path()).unwrap(),
            reads: Arc::clone(reads),
        };
        Source::reader(&source.path().display().to_string(), source.length(), Box::new(file))
    })
}
