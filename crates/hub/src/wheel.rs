//! One member of a Python wheel, which is a ZIP archive: found by the central directory, stored or deflated, without encryption and
//! below 4 GiB. The format is that of PKWARE's APPNOTE 6.3; the only module that names the inflating crate.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};

use crate::cache::CacheError;

const END_BYTES: usize = 22;
const MAX_COMMENT_BYTES: u64 = 0xffff;
const ENTRY_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;
const BUFFER_BYTES: usize = 1 << 18;

/// Why a member could not be taken out of a wheel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WheelError {
    /// The archive breaks its format or uses a part of it that wheels do not.
    #[error("{path}: {reason} (at byte {offset})")]
    Malformed {
        /// The wheel.
        path: PathBuf,
        /// What is wrong.
        reason: &'static str,
        /// Where.
        offset: u64,
    },
    /// It has no such member.
    #[error("{path} holds no {member}")]
    NoMember {
        /// The wheel.
        path: PathBuf,
        /// Wanted member.
        member: String,
    },
    /// Reading it or writing the member failed.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Where the bytes of a member go.
pub(crate) type Sink<'a> = dyn FnMut(&[u8]) -> Result<(), CacheError> + 'a;

/// Passes the bytes of one member on, which are exactly `bytes` many.
pub(crate) fn extract(path: &Path, member: &str, bytes: u64, sink: &mut Sink<'_>) -> Result<(), WheelError> {
    let mut wheel = Wheel::open(path)?;
    let entry = wheel.find(member)?;
    if entry.bytes != bytes {
        return Err(wheel.malformed("the member has another size than expected", entry.header));
    }
    wheel.seek_to_data(&entry)?;
    match entry.method {
        0 if entry.packed_bytes == bytes => wheel.copy(&entry, sink),
        8 => wheel.inflate(&entry, sink),
        _ => Err(wheel.malformed("the member is neither stored nor deflated", entry.header)),
    }
}

struct Wheel {
    path: PathBuf,
    file: File,
    bytes: u64,
}

struct Entry {
    method: u16,
    packed_bytes: u64,
    bytes: u64,
    /// Offset of the local header.
    header: u64,
}

impl Wheel {
    fn open(path: &Path) -> Result<Self, WheelError> {
        let file = File::open(path).map_err(CacheError::at("opening", path))?;
        let bytes = file.metadata().map_err(CacheError::at("reading", path))?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
        })
    }

    fn malformed(&self, reason: &'static str, offset: u64) -> WheelError {
        WheelError::Malformed {
            path: self.path.clone(),
            reason,
            offset,
        }
    }

    fn io(&self, error: io::Error) -> WheelError {
        CacheError::at("reading", &self.path)(error).into()
    }

    fn seek(&mut self, offset: u64) -> Result<(), WheelError> {
        self.file
            .seek(SeekFrom::Start(offset))
            .map(|_| ())
            .map_err(|error| self.io(error))
    }

    /// `count` bytes at `offset`, of which the file must hold all.
    fn read_at(&mut self, offset: u64, count: u64) -> Result<Vec<u8>, WheelError> {
        if offset.checked_add(count).is_none_or(|end| end > self.bytes) {
            return Err(self.malformed("the archive is cut off", offset));
        }
        self.seek(offset)?;
        let mut buffer = Vec::new();
        (&self.file)
            .take(count)
            .read_to_end(&mut buffer)
            .map_err(|error| self.io(error))?;
        if (buffer.len() as u64) < count {
            Err(self.malformed("the archive is cut off", offset))
        } else {
            Ok(buffer)
        }
    }

    /// Reads the central directory up to the member.
    fn find(&mut self, member: &str) -> Result<Entry, WheelError> {
        let tail_at = self.bytes.saturating_sub(END_BYTES as u64 + MAX_COMMENT_BYTES);
        let tail = self.read_at(tail_at, self.bytes - tail_at)?;
        let end = (0..tail.len().saturating_sub(END_BYTES - 1))
            .rev()
            .find(|&at| u32_at(&tail, at) == Some(0x0605_4b50));
        let end = end.ok_or_else(|| self.malformed("no end of a central directory", tail_at))?;
        let (Some(size), Some(start)) = (u32_at(&tail, end + 12), u32_at(&tail, end + 16)) else {
            return Err(self.malformed("the archive is cut off", tail_at));
        };
        let directory = self.read_at(start.into(), size.into())?;
        let mut at = 0;
        while at < directory.len() {
            let offset = u64::from(start) + at as u64;
            let (entry, name, next) =
                parse_entry(&directory, at).ok_or_else(|| self.malformed("a broken directory entry", offset))?;
            if name == member.as_bytes() {
                return Ok(entry);
            }
            at = next;
        }
        Err(WheelError::NoMember {
            path: self.path.clone(),
            member: member.to_owned(),
        })
    }

    /// The local header repeats the name and has extra fields of its own length.
    fn seek_to_data(&mut self, entry: &Entry) -> Result<(), WheelError> {
        let local = self.read_at(entry.header, LOCAL_BYTES as u64)?;
        let (Some(0x0403_4b50), Some(name), Some(extra)) = (u32_at(&local, 0), u16_at(&local, 26), u16_at(&local, 28))
        else {
            return Err(self.malformed("a broken local header", entry.header));
        };
        let data = entry.header + LOCAL_BYTES as u64 + u64::from(name) + u64::from(extra);
        if data.checked_add(entry.packed_bytes).is_none_or(|end| end > self.bytes) {
            return Err(self.malformed("the archive is cut off", entry.header));
        }
        self.seek(data)
    }

    fn copy(&mut self, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WheelError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut left = entry.bytes;
        while left > 0 {
            let count = self.read_some(&mut buffer, left)?;
            if count == 0 {
                return Err(self.malformed("the member is cut off", entry.header));
            }
            sink(buffer.get(..count).unwrap_or_default())?;
            left -= count as u64;
        }
        Ok(())
    }

    fn inflate(&mut self, entry: &Entry, sink: &mut Sink<'_>) -> Result<(), WheelError> {
        let mut state = InflateState::new_boxed(DataFormat::Raw);
        let (mut packed, mut plain) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
        let (mut from, mut to) = (0, 0);
        let (mut packed_left, mut plain_left) = (entry.packed_bytes, entry.bytes);
        loop {
            if from == to && packed_left > 0 {
                (from, to) = (0, self.read_some(&mut packed, packed_left)?);
                packed_left -= to as u64;
            }
            let step = inflate(
                &mut state,
                packed.get(from..to).unwrap_or_default(),
                &mut plain,
                MZFlush::None,
            );
            from += step.bytes_consumed;
            let fresh = plain.get(..step.bytes_written).unwrap_or_default();
            plain_left = plain_left
                .checked_sub(fresh.len() as u64)
                .ok_or_else(|| self.malformed("the member is longer than announced", entry.header))?;
            sink(fresh)?;
            let idle = step.bytes_consumed == 0 && step.bytes_written == 0;
            match step.status {
                Ok(MZStatus::StreamEnd) if plain_left == 0 => return Ok(()),
                Ok(MZStatus::Ok) | Err(MZError::Buf) if !idle || (from == to && packed_left > 0) => {}
                _ => return Err(self.malformed("the deflated data is broken or cut off", entry.header)),
            }
        }
    }

    fn read_some(&mut self, buffer: &mut [u8], at_most: u64) -> Result<usize, WheelError> {
        let count = usize::try_from(at_most).unwrap_or(usize::MAX).min(buffer.len());
        self.file
            .read(buffer.get_mut(..count).unwrap_or_default())
            .map_err(|error| self.io(error))
    }
}

/// An entry of the central directory, its name, and where the next begins.
fn parse_entry(directory: &[u8], at: usize) -> Option<(Entry, &[u8], usize)> {
    if u32_at(directory, at)? != 0x0201_4b50 {
        return None;
    }
    let name_bytes = usize::from(u16_at(directory, at + 28)?);
    let after_name = at + ENTRY_BYTES + name_bytes;
    let name = directory.get(at + ENTRY_BYTES..after_name)?;
    let next = after_name + usize::from(u16_at(directory, at + 30)?) + usize::from(u16_at(directory, at + 32)?);
    let entry = Entry {
        method: u16_at(directory, at + 10)?,
        packed_bytes: u32_at(directory, at + 20)?.into(),
        bytes: u32_at(directory, at + 24)?.into(),
        header: u32_at(directory, at + 42)?.into(),
    };
    Some((entry, name, next))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests;
