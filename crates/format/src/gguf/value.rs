//! Metadata values as a file stores them.

use super::cursor::Cursor;
use super::error::Problem;

/// Arrays inside arrays are allowed by the format and used by nobody; this bounds the recursion.
const DEPTH_LIMIT: usize = 8;

/// Smallest size of an array inside an array: type and count.
const ARRAY_HEAD_BYTES: u64 = 12;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    Array(Array),
}

/// An array, typed as a whole.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Str(Strings),
    Nested(Vec<Array>),
}

/// Many strings in one buffer: a vocabulary of 262,144 tokens is two allocations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strings {
    text: String,
    /// End of each string in `text`.
    ends: Vec<u32>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there is no string.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize,
            None => 0,
        };
        self.text.get(start..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }

    /// Takes raw strings that lie end to end in `bytes`; checks that each is UTF-8.
    fn from_parts(bytes: Vec<u8>, ends: Vec<u32>) -> Result<Strings, Problem> {
        // The whole is checked once, then every end must be a character boundary: both together say that each
        // string is valid.
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            Problem::Utf8 {
                index: ends.partition_point(|&end| end as usize <= valid),
            }
        })?;
        match ends.iter().position(|&end| !text.is_char_boundary(end as usize)) {
            Some(index) => Err(Problem::Utf8 { index }),
            None => Ok(Strings { text, ends }),
        }
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    /// Strings beyond 4 GiB of text are dropped: the file format's reader refuses such arrays.
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Strings {
        let mut all = Strings::default();
        for string in strings {
            let Ok(end) = u32::try_from(all.text.len() + string.as_ref().len()) else {
                break;
            };
            all.text.push_str(string.as_ref());
            all.ends.push(end);
        }
        all
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(values) => values.len(),
            Array::I8(values) => values.len(),
            Array::U16(values) => values.len(),
            Array::I16(values) => values.len(),
            Array::U32(values) => values.len(),
            Array::I32(values) => values.len(),
            Array::U64(values) => values.len(),
            Array::I64(values) => values.len(),
            Array::F32(values) => values.len(),
            Array::F64(values) => values.len(),
            Array::Bool(values) => values.len(),
            Array::Str(values) => values.len(),
            Array::Nested(values) => values.len(),
        }
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn element_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::Str(_) => "string",
            Array::Nested(_) => "array",
        }
    }

    /// The integers of an array of any integer type, if all fit `T`.
    pub fn integers<T: TryFrom<i128>>(&self) -> Option<Vec<T>> {
        fn fit<T: TryFrom<i128>, S: Copy + Into<i128>>(values: &[S]) -> Option<Vec<T>> {
            values.iter().map(|&value| T::try_from(value.into()).ok()).collect()
        }
        match self {
            Array::U8(values) => fit(values),
            Array::I8(values) => fit(values),
            Array::U16(values) => fit(values),
            Array::I16(values) => fit(values),
            Array::U32(values) => fit(values),
            Array::I32(values) => fit(values),
            Array::U64(values) => fit(values),
            Array::I64(values) => fit(values),
            _ => None,
        }
    }
}

impl Value {
    /// The value of any integer type.
    pub fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(value) => value.into(),
            Value::I8(value) => value.into(),
            Value::U16(value) => value.into(),
            Value::I16(value) => value.into(),
            Value::U32(value) => value.into(),
            Value::I32(value) => value.into(),
            Value::U64(value) => value.into(),
            Value::I64(value) => value.into(),
            _ => return None,
        })
    }

    /// Type and value in a few words, for messages.
    pub fn describe(&self) -> String {
        match self {
            Value::Str(text) => format!("the string \"{}\"", super::error::shown(text)),
            Value::Array(array) => format!("an array of {} {} values", array.len(), array.element_name()),
            Value::Bool(value) => format!("the truth value {value}"),
            Value::F32(value) => format!("the f32 number {value}"),
            Value::F64(value) => format!("the f64 number {value}"),
            Value::U8(_) | Value::U16(_) | Value::U32(_) | Value::U64(_) => {
                format!("the unsigned integer {}", self.integer().unwrap_or_default())
            }
            _ => format!("the signed integer {}", self.integer().unwrap_or_default()),
        }
    }

    /// Reads a value whose type has already been read.
    pub(super) fn read(cursor: &mut Cursor, type_id: u32) -> Result<Value, Problem> {
        Ok(match type_id {
            0 => Value::U8(u8::from_le_bytes(cursor.array()?)),
            1 => Value::I8(i8::from_le_bytes(cursor.array()?)),
            2 => Value::U16(u16::from_le_bytes(cursor.array()?)),
            3 => Value::I16(i16::from_le_bytes(cursor.array()?)),
            4 => Value::U32(cursor.u32()?),
            5 => Value::I32(i32::from_le_bytes(cursor.array()?)),
            6 => Value::F32(f32::from_le_bytes(cursor.array()?)),
            7 => match u8::from_le_bytes(cursor.array()?) {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                found => return Err(Problem::Bool { found }),
            },
            8 => Value::Str(cursor.string(u64::MAX)?),
            9 => Value::Array(Array::read(cursor, DEPTH_LIMIT)?),
            10 => Value::U64(cursor.u64()?),
            11 => Value::I64(i64::from_le_bytes(cursor.array()?)),
            12 => Value::F64(f64::from_le_bytes(cursor.array()?)),
            id => return Err(Problem::ValueType { id }),
        })
    }
}

impl Array {
    /// Reads an array that may hold `depth` - 1 further levels.
    fn read(cursor: &mut Cursor, depth: usize) -> Result<Array, Problem> {
        let Some(deeper) = depth.checked_sub(1) else {
            return Err(Problem::Depth { limit: DEPTH_LIMIT });
        };
        let type_id = cursor.u32()?;
        let count = cursor.u64()?;
        Ok(match type_id {
            0 => Array::U8(cursor.values(count, u8::from_le_bytes)?),
            1 => Array::I8(cursor.values(count, i8::from_le_bytes)?),
            2 => Array::U16(cursor.values(count, u16::from_le_bytes)?),
            3 => Array::I16(cursor.values(count, i16::from_le_bytes)?),
            4 => Array::U32(cursor.values(count, u32::from_le_bytes)?),
            5 => Array::I32(cursor.values(count, i32::from_le_bytes)?),
            6 => Array::F32(cursor.values(count, f32::from_le_bytes)?),
            7 => Array::Bool(read_bools(cursor, count)?),
            8 => Array::Str(read_strings(cursor, count)?),
            9 => {
                let count = cursor.check_count(count, ARRAY_HEAD_BYTES)?;
                let mut arrays = Vec::new();
                for _ in 0..count {
                    arrays.push(Array::read(cursor, deeper)?);
                }
                Array::Nested(arrays)
            }
            10 => Array::U64(cursor.values(count, u64::from_le_bytes)?),
            11 => Array::I64(cursor.values(count, i64::from_le_bytes)?),
            12 => Array::F64(cursor.values(count, f64::from_le_bytes)?),
            id => return Err(Problem::ValueType { id }),
        })
    }
}

fn read_bools(cursor: &mut Cursor, count: u64) -> Result<Vec<bool>, Problem> {
    let bytes = cursor.values(count, u8::from_le_bytes)?;
    match bytes.iter().find(|&&byte| byte > 1) {
        Some(&found) => Err(Problem::Bool { found }),
        None => Ok(bytes.into_iter().map(|byte| byte == 1).collect()),
    }
}

fn read_strings(cursor: &mut Cursor, count: u64) -> Result<Strings, Problem> {
    let count = cursor.check_count(count, 8)?;
    let mut bytes = Vec::new();
    let mut ends = Vec::with_capacity(count);
    for _ in 0..count {
        let length = cursor.u64()?;
        cursor.append(length, &mut bytes)?;
        ends.push(u32::try_from(bytes.len()).map_err(|_| Problem::ArrayTooLong)?);
    }
    bytes.shrink_to_fit();
    Strings::from_parts(bytes, ends)
}
