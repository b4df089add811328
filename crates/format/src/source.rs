//! Positioned reads over one file. Files are never mapped: a mapped file that is truncated kills the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file (or a buffer, in tests and fuzzing) whose length was taken once, at open.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    length: u64,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    File(File),
    Memory(Vec<u8>),
}

/// Why bytes could not be had.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file is missing, not readable or not a regular file.
    #[error("cannot open {}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        error: io::Error,
    },
    /// A range that reaches past the length found at open.
    #[error("{}: {wanted} bytes at offset {offset} reach past the end ({length} bytes); the file is truncated", path.display())]
    PastEnd {
        /// The file.
        path: PathBuf,
        /// Where the read starts.
        offset: u64,
        /// Bytes asked for.
        wanted: u64,
        /// Length of the file.
        length: u64,
    },
    /// The system refused the read, or the file shrank after it was opened.
    #[error("{}: cannot read {wanted} bytes at offset {offset}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the read starts.
        offset: u64,
        /// Bytes asked for.
        wanted: u64,
        /// The system's reason.
        #[source]
        error: io::Error,
    },
}

impl Source {
    /// Opens a regular file. Links are followed (a hub cache consists of links); pipes and devices are refused.
    pub fn open(path: &Path) -> Result<Source, SourceError> {
        let fail = |error| SourceError::Open {
            path: path.to_owned(),
            error,
        };
        let before = std::fs::metadata(path).map_err(fail)?;
        if !before.is_file() {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let file = File::open(path).map_err(fail)?;
        let length = file.metadata().map_err(fail)?.len();
        Ok(Source {
            path: path.to_owned(),
            length,
            backing: Backing::File(file),
        })
    }

    /// A source over a buffer; `name` stands for the path in errors.
    pub fn memory(name: &str, bytes: Vec<u8>) -> Source {
        Source {
            path: PathBuf::from(name),
            length: bytes.len() as u64,
            backing: Backing::Memory(bytes),
        }
    }

    /// The path given at open.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length in bytes, taken at open.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Fills `out` from byte `offset`, whole or not at all.
    pub fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let wanted = out.len() as u64;
        let end = offset.checked_add(wanted).filter(|&end| end <= self.length);
        let Some(end) = end else {
            return Err(SourceError::PastEnd {
                path: self.path.clone(),
                offset,
                wanted,
                length: self.length,
            });
        };
        match &self.backing {
            Backing::File(file) => file.read_exact_at(out, offset),
            Backing::Memory(bytes) => match bytes.get(offset as usize..end as usize) {
                Some(range) => {
                    out.copy_from_slice(range);
                    Ok(())
                }
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        }
        .map_err(|error| SourceError::Read {
            path: self.path.clone(),
            offset,
            wanted,
            error,
        })
    }

    /// Tells the system that the pages which it keeps of a range are of no more use. Reading them again reads the disk.
    pub fn forget_pages(&self, offset: u64, bytes: u64) {
        if let Backing::File(file) = &self.backing {
            forget(file, offset, bytes);
        }
    }
}

#[cfg(target_os = "linux")]
fn forget(file: &File, offset: u64, bytes: u64) {
    use rustix::fs::{Advice, fadvise};

    // A length of zero would mean all of the file. The advice is a courtesy: where it is refused, the system finds out by itself.
    if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
        let _ = fadvise(file, offset, Some(bytes), Advice::DontNeed);
    }
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &File, _: u64, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_against_the_length() {
        let source = Source::memory("buffer", vec![1, 2, 3, 4]);
        let mut two = [0; 2];
        source.read_exact_at(2, &mut two).unwrap();
        assert_eq!(two, [3, 4]);
        for offset in [3, 4, u64::MAX - 1, u64::MAX] {
            match source.read_exact_at(offset, &mut two) {
                Err(SourceError::PastEnd {
                    offset: at,
                    wanted: 2,
                    length: 4,
                    ..
                }) => assert_eq!(at, offset),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn folders_and_missing_files_are_refused() {
        for path in [std::env::temp_dir(), PathBuf::from("no/such/file")] {
            assert!(matches!(Source::open(&path), Err(SourceError::Open { .. })));
        }
    }
}
