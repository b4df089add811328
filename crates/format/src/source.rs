//! Positioned reads over one file. Files are never mapped: a mapped file that is truncated kills the process.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What the offsets, lengths and buffers of direct reads are multiples of: the largest that devices ask for.
pub const DIRECT_ALIGN: usize = 4096;

/// Positioned reads over whatever holds the bytes.
pub trait ReadAt: Debug + Send + Sync {
    /// Reads what comes from byte `offset` on into the front of `out`, and returns how many bytes that were: fewer than asked for if that
    /// is easier, none at the end.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, out, offset)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(offset).map_or(self.len(), |offset| offset.min(self.len()));
        let rest = &self[start..];
        let len = out.len().min(rest.len());
        out[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

/// A file, or another thing that can be read like one, whose length was taken once, at open.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    length: u64,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    File {
        file: File,
        /// The same file for reads past the system's cache, where it can be had.
        direct: OnceLock<Option<File>>,
    },
    Reader(Box<dyn ReadAt>),
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
            backing: Backing::File {
                file,
                direct: OnceLock::new(),
            },
        })
    }

    /// A source over a buffer; `name` stands for the path in errors.
    pub fn memory(name: &str, bytes: Vec<u8>) -> Source {
        Self::reader(name, bytes.len() as u64, Box::new(bytes))
    }

    /// A source of `length` bytes that `reader` reads; `name` stands for the path in errors.
    pub fn reader(name: &str, length: u64, reader: Box<dyn ReadAt>) -> Source {
        Source {
            path: PathBuf::from(name),
            length,
            backing: Backing::Reader(reader),
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
        self.check_range(offset, out.len())?;
        let reader: &dyn ReadAt = match &self.backing {
            Backing::File { file, .. } => file,
            Backing::Reader(reader) => reader.as_ref(),
        };
        let wanted = out.len();
        read_at_least(reader, offset, out, (wanted, 1)).map_err(|error| self.read_error(offset, wanted, error))
    }

    /// Bytes that [`Source::read_uncached`] needs room for to read `len` of them.
    pub const fn uncached_len(len: usize) -> usize {
        len.next_multiple_of(DIRECT_ALIGN) + DIRECT_ALIGN
    }

    /// Reads `len` bytes from byte `offset` on, whole or not at all, without leaving them in the system's cache. They come to lie somewhere
    /// in `room`, of [`Source::uncached_len`] bytes. Past the cache it goes if `room` begins at a multiple of [`DIRECT_ALIGN`] and the
    /// file system can; otherwise what was read is dropped from the cache afterwards.
    ///
    /// # Panics
    /// If `room` is smaller than that: a caller's bug.
    pub fn read_uncached<'a>(&self, offset: u64, len: usize, room: &'a mut [u8]) -> Result<&'a [u8], SourceError> {
        assert!(room.len() >= Self::uncached_len(len), "room for {len} bytes");
        self.check_range(offset, len)?;
        let head = (offset % DIRECT_ALIGN as u64) as usize;
        if let Backing::File { file, direct } = &self.backing
            && room.as_ptr().addr().is_multiple_of(DIRECT_ALIGN)
            && let Some(direct) = direct.get_or_init(|| open_direct(file))
        {
            let units = &mut room[..(head + len).next_multiple_of(DIRECT_ALIGN)];
            match read_at_least(direct, offset - head as u64, units, (head + len, DIRECT_ALIGN)) {
                // Some file systems take the flag and then refuse to read.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                result => {
                    result.map_err(|error| self.read_error(offset, len, error))?;
                    return Ok(&room[head..][..len]);
                }
            }
        }
        self.read_exact_at(offset, &mut room[..len])?;
        self.forget_pages(offset, len as u64);
        Ok(&room[..len])
    }

    /// Tells the system that the pages which it keeps of a range are of no more use. Reading them again reads the disk.
    pub fn forget_pages(&self, offset: u64, bytes: u64) {
        if let Backing::File { file, .. } = &self.backing {
            forget(file, offset, bytes);
        }
    }

    /// Refuses a range that does not lie in the file.
    fn check_range(&self, offset: u64, len: usize) -> Result<(), SourceError> {
        let wanted = len as u64;
        match offset.checked_add(wanted) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(SourceError::PastEnd {
                path: self.path.clone(),
                offset,
                wanted,
                length: self.length,
            }),
        }
    }

    fn read_error(&self, offset: u64, len: usize, error: io::Error) -> SourceError {
        SourceError::Read {
            path: self.path.clone(),
            offset,
            wanted: len as u64,
            error,
        }
    }
}

/// Reads from `offset` on until `wanted` bytes of `out` are there. All reads begin at multiples of `unit` bytes from `offset`.
fn read_at_least(reader: &dyn ReadAt, offset: u64, out: &mut [u8], (wanted, unit): (usize, usize)) -> io::Result<()> {
    let mut got = 0;
    while got < wanted {
        let rest = &mut out[got..];
        match reader.read_at(offset + got as u64, rest) {
            Ok(more) if more > rest.len() => return Err(io::ErrorKind::InvalidData.into()),
            // The end of a file is short of a whole unit, and so is what can be read of it.
            Ok(more) if more > 0 && (got + more >= wanted || more.is_multiple_of(unit)) => got += more,
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The same file, whatever its path names by now.
#[cfg(target_os = "linux")]
fn open_direct(file: &File) -> Option<File> {
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &File) -> Option<File> {
    None
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
    use std::sync::Mutex;

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
    fn uncached_reads_find_the_same_bytes() {
        let bytes: Vec<u8> = (0..5 * DIRECT_ALIGN + 100).map(|i| (i * 7 % 251) as u8).collect();
        let path = std::env::temp_dir().join(format!("goldcrest-source-{}", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let sources = [Source::open(&path).unwrap(), Source::memory("buffer", bytes.clone())];
        let mut room = vec![0; 8 * DIRECT_ALIGN];
        let aligned = room.as_ptr().align_offset(DIRECT_ALIGN);
        for source in &sources {
            for (offset, len) in [
                (0, 1),
                (0, 4096),
                (4095, 2),
                (8192, 4096),
                (5, 4 * 4096),
                (20_000, 580),
                (20_580, 0),
            ] {
                for start in [aligned, aligned + 1] {
                    let read = source.read_uncached(offset, len, &mut room[start..]).unwrap();
                    assert_eq!(read, &bytes[offset as usize..][..len], "{len} from {offset}");
                }
            }
            let past = source.read_uncached(20_580, 1, &mut room[aligned..]);
            assert!(matches!(past, Err(SourceError::PastEnd { .. })));
        }
        // A file that is cut short while it is open.
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(5000)
            .unwrap();
        for start in [aligned, aligned + 1] {
            assert!(sources[0].read_uncached(4990, 10, &mut room[start..]).is_ok());
            for (offset, len) in [(4990, 11), (8192, 1), (5000, 1)] {
                let cut = sources[0].read_uncached(offset, len, &mut room[start..]);
                assert!(matches!(cut, Err(SourceError::Read { .. })), "{len} from {offset}");
            }
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// What the reads of a [`Scripted`] reader return, one after the other: bytes, or an error.
    type Answers = Vec<Result<usize, io::ErrorKind>>;

    /// Bytes that are their own offsets, so many a read as its script says.
    #[derive(Debug)]
    struct Scripted(Mutex<Answers>);

    impl ReadAt for Scripted {
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
            let len = self.0.lock().unwrap().remove(0)?;
            let places = out.iter_mut().take(len).enumerate();
            places.for_each(|(i, byte)| *byte = offset as u8 + i as u8);
            Ok(len)
        }
    }

    fn read(answers: Answers) -> Result<Vec<u8>, io::ErrorKind> {
        let source = Source::reader("scripted", 12, Box::new(Scripted(Mutex::new(answers))));
        let mut out = vec![0; 8];
        match source.read_exact_at(3, &mut out) {
            Ok(()) => Ok(out),
            Err(SourceError::Read {
                path,
                offset: 3,
                wanted: 8,
                error,
            }) if path == Path::new("scripted") => Err(error.kind()),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn readers_may_stop_early_and_fail() {
        use io::ErrorKind::{Interrupted, InvalidData, TimedOut, UnexpectedEof};

        let expected: Vec<u8> = (3..11).collect();
        assert_eq!(read(vec![Ok(8)]).unwrap(), expected);
        assert_eq!(read(vec![Ok(1), Err(Interrupted), Ok(5), Ok(2)]).unwrap(), expected);
        assert_eq!(read(vec![Ok(7), Ok(0)]), Err(UnexpectedEof));
        assert_eq!(read(vec![Ok(7), Err(TimedOut)]), Err(TimedOut));
        assert_eq!(
            read(vec![Ok(7), Ok(2)]),
            Err(InvalidData),
            "more than there is room for"
        );
    }

    #[test]
    fn folders_and_missing_files_are_refused() {
        for path in [std::env::temp_dir(), PathBuf::from("no/such/file")] {
            assert!(matches!(Source::open(&path), Err(SourceError::Open { .. })));
        }
    }
}
