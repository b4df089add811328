//! What can be wrong with a GGUF file. Every error says where: the key or tensor, and the byte offset.

use crate::{DType, DTypeError, SourceError};

/// A refusal of a GGUF file.
#[derive(Debug, thiserror::Error)]
#[error("{at} at byte {offset}: {problem}")]
pub struct GgufError {
    /// The metadata key, tensor name or part of the header, shortened and with control characters escaped.
    pub at: String,
    /// Offset in the file of the value that is wrong.
    pub offset: u64,
    /// What is wrong.
    #[source]
    pub problem: Problem,
}

/// What is wrong, and what to do where there is something to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages are the documentation
pub enum Problem {
    #[error(transparent)]
    Read(#[from] SourceError),
    #[error(transparent)]
    Type(#[from] DTypeError),
    #[error("not a GGUF file: it starts with {found:02x?}")]
    Magic { found: [u8; 4] },
    #[error(
        "the file is big-endian; only little-endian files are supported: convert it again on or for a little-endian machine"
    )]
    BigEndian,
    #[error("GGUF version {version} is not supported (2 and 3 are)")]
    Version { version: u32 },
    #[error("{wanted} bytes are announced but {left} are left: the file is truncated or damaged")]
    Truncated { wanted: u64, left: u64 },
    #[error("a count of {count} cannot be true: {left} bytes are left")]
    Count { count: u64, left: u64 },
    #[error("value type {id} is unknown")]
    ValueType { id: u32 },
    #[error("arrays are nested deeper than {limit}")]
    Depth { limit: usize },
    #[error("{length} bytes are too long for a name (the limit is {limit})")]
    NameTooLong { length: u64, limit: u64 },
    #[error("the strings of the array are longer than 4 GiB")]
    ArrayTooLong,
    #[error("string {index} is not valid UTF-8")]
    Utf8 { index: usize },
    #[error("a truth value is {found}, not 0 or 1")]
    Bool { found: u8 },
    #[error("the name occurs twice")]
    Duplicate,
    #[error("the alignment must be a power of two stored as an unsigned 32-bit integer, not {found}")]
    Alignment { found: String },
    #[error("{dims} dimensions are more than {limit}")]
    Dims { dims: u32, limit: u32 },
    #[error("a dimension is 0")]
    EmptyDim,
    #[error("the number of elements overflows")]
    Elements,
    #[error("the rows of {row} elements are not whole blocks of {dtype}")]
    Row { row: u64, dtype: DType },
    #[error("the data offset {value} is not a multiple of the alignment {alignment}")]
    Misaligned { value: u64, alignment: u64 },
    #[error(
        "the data ({bytes} bytes from offset {start}) reaches past the end of the file ({length} bytes): it is truncated"
    )]
    DataPastEnd { start: u64, bytes: u64, length: u64 },
    #[error("the data overlaps that of tensor {other}")]
    Overlap { other: String },
    #[error("the file is part {found} of {count}, but its name says part {named}")]
    SplitPart { found: u64, named: u64, count: u64 },
    #[error("the file is one of {count} parts, so its name must end in -00001-of-{count:05}.gguf")]
    SplitName { count: u64 },
    #[error("the parts hold {found} tensors together, but {wanted} are announced")]
    SplitTensors { found: u64, wanted: u64 },
}

impl Problem {
    /// Adds the place to a problem.
    pub(super) fn at(self, name: &str, offset: u64) -> GgufError {
        GgufError {
            at: shown(name),
            offset,
            problem: self,
        }
    }
}

/// A name from a file, fit for a message: control characters escaped, at most 80 characters.
pub(crate) fn shown(name: &str) -> String {
    const LIMIT: usize = 80;
    let mut text: String = name.chars().take(LIMIT).flat_map(char::escape_debug).collect();
    if name.chars().nth(LIMIT).is_some() {
        text.push('…');
    }
    text
}

/// Why a metadata value could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The file lacks the key.
    #[error("metadata key {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// The value has another type, or does not fit the type asked for.
    #[error("metadata key {key} (byte {offset}): {found} is not {wanted}")]
    Mismatch {
        /// The key.
        key: String,
        /// Offset of the value in the file.
        offset: u64,
        /// What the file holds.
        found: String,
        /// What is needed.
        wanted: &'static str,
    },
}
