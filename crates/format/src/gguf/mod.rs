//! GGUF, versions 2 and 3, little-endian: header, metadata, tensor table.
//!
//! Layout: `GGUF`, version (u32), tensor count (u64), key count (u64), then per key: name, type (u32), value; per
//! tensor: name, dimension count (u32), dimensions (u64 each, innermost first), type (u32), offset (u64) into the
//! data section, which starts at the next multiple of `general.alignment`. A string is a u64 length and its bytes.
//!
//! Nothing in the file is believed: counts and lengths are compared with the bytes that are left before memory is
//! taken, and tensor ranges with the length of the file.

mod cursor;
mod error;
mod metadata;
mod split;
mod tensors;
mod value;

pub use error::{GgufError, MetadataError, Problem};
pub use metadata::{FromValue, Metadata};
pub(crate) use split::is_first_part;
pub use split::{Parts, open};
pub use value::{Array, Strings, Value};

pub(crate) use error::shown;

use crate::{Source, TensorInfo};
use cursor::Cursor;

/// Longest metadata key (the format's own limit) and longest tensor name.
const NAME_LIMIT_BYTES: u64 = 65_535;
/// Smallest metadata entry: empty key, type, one byte.
const ENTRY_BYTES: u64 = 8 + 4 + 1;
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";

/// The contents of one GGUF file without its data.
#[derive(Debug)]
pub struct Gguf {
    /// 2 or 3.
    pub version: u32,
    /// The key-value section.
    pub metadata: Metadata,
    /// The tensor table in file order. `source` is the number given to [`read`].
    pub tensors: Vec<TensorInfo>,
}

/// Reads header, metadata and tensor table; `number` becomes the `source` of every tensor.
pub fn read(source: &Source, number: usize) -> Result<Gguf, GgufError> {
    let mut cursor = Cursor::new(source);
    let version = read_version(&mut cursor)?;
    let tensor_count = header_field(&mut cursor, "tensor count", Cursor::u64)?;
    let key_count_at = cursor.offset();
    let key_count = header_field(&mut cursor, "key count", Cursor::u64)?;
    cursor
        .check_count(key_count, ENTRY_BYTES)
        .map_err(|problem| problem.at("key count", key_count_at))?;
    let mut metadata = Metadata::default();
    for _ in 0..key_count {
        read_entry(&mut cursor, &mut metadata)?;
    }
    let alignment = alignment(&metadata)?;
    let tensors = tensors::read(
        &mut cursor,
        source,
        tensors::Table {
            tensor_count,
            alignment,
            number,
        },
    )?;
    Ok(Gguf {
        version,
        metadata,
        tensors,
    })
}

/// True if the file starts like a GGUF file.
pub fn is_gguf(source: &Source) -> bool {
    let mut magic = [0; 4];
    source.read_exact_at(0, &mut magic).is_ok() && &magic == b"GGUF"
}

fn header_field<'a, T>(
    cursor: &mut Cursor<'a>,
    name: &str,
    read: impl Fn(&mut Cursor<'a>) -> Result<T, Problem>,
) -> Result<T, GgufError> {
    let offset = cursor.offset();
    read(cursor).map_err(|problem| problem.at(name, offset))
}

fn read_version(cursor: &mut Cursor) -> Result<u32, GgufError> {
    let magic: [u8; 4] = header_field(cursor, "magic", Cursor::array)?;
    if &magic != b"GGUF" {
        return Err(Problem::Magic { found: magic }.at("magic", 0));
    }
    let version = header_field(cursor, "version", Cursor::u32)?;
    match version {
        2 | 3 => Ok(version),
        _ if (1..=3).contains(&version.swap_bytes()) => Err(Problem::BigEndian.at("version", 4)),
        _ => Err(Problem::Version { version }.at("version", 4)),
    }
}

fn read_entry(cursor: &mut Cursor, metadata: &mut Metadata) -> Result<(), GgufError> {
    let start = cursor.offset();
    let key = cursor
        .string(NAME_LIMIT_BYTES)
        .map_err(|problem| problem.at(&format!("name of key {}", metadata.len()), start))?;
    let type_at = cursor.offset();
    let value_type = cursor.u32().map_err(|problem| problem.at(&key, type_at))?;
    let offset = cursor.offset();
    let value = Value::read(cursor, value_type).map_err(|problem| match problem {
        Problem::ValueType { .. } => problem.at(&key, type_at),
        _ => problem.at(&key, offset),
    })?;
    let shown_key = shown(&key);
    metadata
        .add(key, offset, value)
        .map_err(|problem| problem.at(&shown_key, start))
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(alignment)) if alignment.is_power_of_two() => Ok(alignment.into()),
        Some(other) => {
            let offset = metadata.offset(ALIGNMENT_KEY).unwrap_or_default();
            Err(Problem::Alignment {
                found: other.describe(),
            }
            .at(ALIGNMENT_KEY, offset))
        }
    }
}
