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

/// Stretches of tensors, each read at once: one that is large, and one beside it.
pub struct Window {
    main: Stretch,
    side: Stretch,
    bytes_read: u64,
}

/// Bytes of a tensor in memory that direct reads go to.
struct Stretch {
    room: HugeBuffer<u8>,
    /// The file of the tensor, and where in it the bytes begin.
    place: (usize, u64),
    /// Where they lie in `room`.
    filled: Range<usize>,
}

impl Stretch {
    /// For at most `bytes`.
    fn new(bytes: usize) -> Result<Stretch, AllocError> {
        Ok(Stretch {
            room: HugeBuffer::zeroed(Source::uncached_len(bytes))?,
            place: (0, 0),
            filled: 0..0,
        })
    }

    fn has_room_for(&self, len: usize) -> bool {
        Source::uncached_len(len) <= self.room.len()
    }

    /// Reads `len` bytes, `start` counted from the start of the tensor.
    fn load(&mut self, files: &TensorFiles, info: &TensorInfo, start: u64, len: usize) -> Result<&[u8], FormatError> {
        self.filled = 0..0;
        let room = self.room.as_ptr().addr();
        let found = files.read_uncached(info, start, len, &mut self.room)?;
        let at = found.as_ptr().addr() - room;
        self.filled = at..at + len;
        self.place = (info.source, info.offset + start);
        Ok(&self.room[self.filled.clone()])
    }

    fn find(&self, info: &TensorInfo, offset: u64, len: usize) -> Option<&[u8]> {
        let (source, start) = self.place;
        if source != info.source {
            return None;
        }
        let from = usize::try_from((info.offset + offset).checked_sub(start)?).ok()?;
        self.room[self.filled.clone()].get(from..from.checked_add(len)?)
    }
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
            main: Stretch::new(bytes)?,
            side: Stretch::new(SIDE_BYTES)?,
            bytes_read: 0,
        })
    }

    /// Reads a stretch, bytes counted from the start of the tensor. A longer one than there is room for is left to [`Window::read`].
    pub fn load(&mut self, files: &TensorFiles, info: &TensorInfo, stretch: Range<u64>) -> Result<(), FormatError> {
        Self::load_into(&mut self.main, &mut self.bytes_read, (files, info), stretch)
    }

    /// As [`Window::load`], for a short stretch of another tensor that is wanted together with it.
    pub fn load_beside(
        &mut self,
        files: &TensorFiles,
        info: &TensorInfo,
        stretch: Range<u64>,
    ) -> Result<(), FormatError> {
        Self::load_into(&mut self.side, &mut self.bytes_read, (files, info), stretch)
    }

    fn load_into(
        to: &mut Stretch,
        bytes_read: &mut u64,
        (files, info): (&TensorFiles, &TensorInfo),
        stretch: Range<u64>,
    ) -> Result<(), FormatError> {
        let len = (stretch.end - stretch.start) as usize;
        to.filled = 0..0;
        if to.has_room_for(len) {
            to.load(files, info, stretch.start, len)?;
            *bytes_read += len as u64;
        }
        Ok(())
    }

    /// Fills `out` with bytes of a tensor, from a stretch if they lie in one.
    fn read(&mut self, files: &TensorFiles, info: &TensorInfo, offset: u64, out: &mut [u8]) -> Result<(), FormatError> {
        let stretches = [&self.main, &self.side];
        if let Some(found) = stretches
            .iter()
            .find_map(|stretch| stretch.find(info, offset, out.len()))
        {
            out.copy_from_slice(found);
            return Ok(());
        }
        self.bytes_read += out.len() as u64;
        if self.side.has_room_for(out.len()) {
            out.copy_from_slice(self.side.load(files, info, offset, out.len())?);
            return Ok(());
        }
        files.read(info, offset, out)?;
        files.forget_pages(info);
        Ok(())
    }

    /// Bytes that were asked of files since the last call.
    pub fn take_bytes_read(&mut self) -> u64 {
        std::mem::take(&mut self.bytes_read)
    }
}
