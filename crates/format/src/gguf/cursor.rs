//! Reads a source from front to back through one bounded window; every length is checked before memory is taken.

use super::error::Problem;
use crate::Source;

/// Large enough that a vocabulary takes few system calls, small enough to stay in the second-level cache.
const WINDOW_BYTES: u64 = 256 << 10;

pub(super) struct Cursor<'a> {
    source: &'a Source,
    window: Vec<u8>,
    /// Offset in the file of the window's first byte.
    window_start: u64,
    /// Bytes of the window already taken.
    taken: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(source: &'a Source) -> Cursor<'a> {
        Cursor {
            source,
            window: Vec::new(),
            window_start: 0,
            taken: 0,
        }
    }

    /// Offset in the file of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.window_start + self.taken as u64
    }

    /// Bytes between the next byte and the end of the file.
    pub(super) fn left(&self) -> u64 {
        self.source.length() - self.offset()
    }

    /// Checks that `count` items of at least `item_bytes` each can still follow.
    pub(super) fn check_count(&self, count: u64, item_bytes: u64) -> Result<usize, Problem> {
        let left = self.left();
        let fits = count.checked_mul(item_bytes).is_some_and(|bytes| bytes <= left);
        match usize::try_from(count) {
            Ok(count) if fits => Ok(count),
            _ => Err(Problem::Count { count, left }),
        }
    }

    /// Moves the window so that `wanted` (at most `WINDOW_BYTES`) bytes lie in it, and takes them.
    fn take(&mut self, wanted: usize) -> Result<&[u8], Problem> {
        if self.window.len() - self.taken < wanted {
            let left = self.left();
            if (wanted as u64) > left {
                return Err(Problem::Truncated {
                    wanted: wanted as u64,
                    left,
                });
            }
            let start = self.offset();
            self.window.resize(left.min(WINDOW_BYTES) as usize, 0);
            self.source.read_exact_at(start, &mut self.window)?;
            self.window_start = start;
            self.taken = 0;
        }
        let from = self.taken;
        self.taken += wanted;
        self.window.get(from..self.taken).ok_or(Problem::Truncated {
            wanted: wanted as u64,
            left: 0,
        })
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Problem> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Problem> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Appends the next `bytes` bytes to `out`.
    pub(super) fn append(&mut self, bytes: u64, out: &mut Vec<u8>) -> Result<(), Problem> {
        let left = self.left();
        if bytes > left {
            return Err(Problem::Truncated { wanted: bytes, left });
        }
        let mut wanted = bytes;
        while wanted > 0 {
            let piece = wanted.min(WINDOW_BYTES);
            out.extend_from_slice(self.take(piece as usize)?);
            wanted -= piece;
        }
        Ok(())
    }

    /// `count` little-endian values of `N` bytes.
    pub(super) fn values<const N: usize, T>(
        &mut self,
        count: u64,
        from_bytes: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Problem> {
        let count = self.check_count(count, N as u64)?;
        let mut out = Vec::with_capacity(count);
        let most = WINDOW_BYTES as usize / N;
        while out.len() < count {
            let piece = self.take((count - out.len()).min(most) * N)?;
            out.extend(piece.as_chunks::<N>().0.iter().map(|&bytes| from_bytes(bytes)));
        }
        Ok(out)
    }

    /// A string with its 64-bit length in front, of at most `limit` bytes.
    pub(super) fn string(&mut self, limit: u64) -> Result<String, Problem> {
        let length = self.u64()?;
        if length > limit {
            return Err(Problem::NameTooLong { length, limit });
        }
        let mut bytes = Vec::new();
        let left = self.left();
        if length > left {
            return Err(Problem::Truncated { wanted: length, left });
        }
        bytes.reserve_exact(length as usize);
        self.append(length, &mut bytes)?;
        String::from_utf8(bytes).map_err(|_| Problem::Utf8 { index: 0 })
    }
}
