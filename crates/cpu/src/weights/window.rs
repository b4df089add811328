//! Stored bytes on their way from a file that is to leave nothing in the system's cache.

use std::ops::Range;

use goldcrest_format::{FormatError, Source, TensorFiles, TensorInfo};

use crate::buffer::{AllocError, HUGE_PAGE_BYTES, HugeBuffer};

/// Bytes that a window has room for beside its stretch: for what lies elsewhere and is small.
const SIDE_BYTES: usize = 256 << 10;

/// Most bytes of a tensor that are read at once.
pub const MOST_WINDOW_BYTES: u64 = 4 << 20;

/// Fills `out` with bytes of a tensor: through a window, or else through the system's cache.
pub fn read(
    window: Option<&mut Window>,
    files: &TensorFiles,
    info: &TensorInfo,
    offset: u64,
    out: &mut [u8],
) -> Result<(), FormatError> {
    match window {
        Some(window) => window.read(files, info, offset, out),
        None => files.read(info, offset, out),
    }
}

/// A stretch of a tensor, read at once.
pub struct Window {
    room: HugeBuffer<u8>,
    side: HugeBuffer<u8>,
    /// The file of the tensor, and where in it the stretch begins.
    place: (usize, u64),
    /// Where the stretch lies in `room`.
    filled: Range<usize>,
    bytes_read: u64,
}

impl Window {
    /// Memory that one for stretches of at most `bytes` takes: whole huge pages.
    pub fn memory_bytes(bytes: usize) -> usize {
        let rooms = [bytes, SIDE_BYTES].map(|bytes| Source::uncached_len(bytes).next_multiple_of(HUGE_PAGE_BYTES));
        rooms.iter().sum()
    }

    /// One for stretches of at most `bytes`.
    pub fn new(bytes: usize) -> Result<Window, AllocError> {
        Ok(Window {
            room: HugeBuffer::zeroed(Source::uncached_len(bytes))?,
            side: HugeBuffer::zeroed(Source::uncached_len(SIDE_BYTES))?,
            place: (0, 0),
            filled: 0..0,
            bytes_read: 0,
        })
    }

    /// Reads a stretch, bytes counted from the start of the tensor. A longer one than there is room for is left to [`Window::read`].
    pub fn load(&mut self, files: &TensorFiles, info: &TensorInfo, stretch: Range<u64>) -> Result<(), FormatError> {
        self.filled = 0..0;
        let len = (stretch.end - stretch.start) as usize;
        if Source::uncached_len(len) > self.room.len() {
            return Ok(());
        }
        let start = self.room.as_ptr().addr();
        let found = files.read_uncached(info, stretch.start, len, &mut self.room)?;
        let at = found.as_ptr().addr() - start;
        self.filled = at..at + len;
        self.place = (info.source, info.offset + stretch.start);
        self.bytes_read += len as u64;
        Ok(())
    }

    /// Fills `out` with bytes of a tensor, from the stretch if they lie in it.
    fn read(&mut self, files: &TensorFiles, info: &TensorInfo, offset: u64, out: &mut [u8]) -> Result<(), FormatError> {
        if let Some(found) = self.find(info, offset, out.len()) {
            out.copy_from_slice(found);
            return Ok(());
        }
        self.bytes_read += out.len() as u64;
        if out.len() <= SIDE_BYTES {
            out.copy_from_slice(files.read_uncached(info, offset, out.len(), &mut self.side)?);
            return Ok(());
        }
        files.read(info, offset, out)?;
        files.forget_pages(info);
        Ok(())
    }

    fn find(&self, info: &TensorInfo, offset: u64, len: usize) -> Option<&[u8]> {
        let (source, start) = self.place;
        if source != info.source {
            return None;
        }
        let from = usize::try_from((info.offset + offset).checked_sub(start)?).ok()?;
        self.room[self.filled.clone()].get(from..from.checked_add(len)?)
    }

    /// Bytes that were asked of files since the last call.
    pub fn take_bytes_read(&mut self) -> u64 {
        std::mem::take(&mut self.bytes_read)
    }
}
