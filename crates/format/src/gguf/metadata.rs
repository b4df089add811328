//! The key-value section of a GGUF file, with typed access.

use std::collections::HashMap;

use super::error::{MetadataError, Problem, shown};
use super::value::{Array, Strings, Value};

/// Metadata in file order, with look-up by key.
///
/// The typed getters come in pairs: `u32(key)` fails if the key is missing, `opt_u32(key)` gives `None`. Both fail
/// on a value of another type, naming the key and its place in the file. Integers of any stored type are accepted
/// where they fit; floats are not taken for integers, nor the reverse.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
}

#[derive(Debug, Clone)]
struct Entry {
    key: String,
    offset: u64,
    value: Value,
}

/// What a getter can return.
pub trait FromValue<'a>: Sized {
    /// The type in words, for messages.
    const WANTED: &'static str;
    /// The value, if it has the right type and fits.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! from_value {
    ($type:ty, $wanted:literal, $value:ident => $convert:expr) => {
        impl<'a> FromValue<'a> for $type {
            const WANTED: &'static str = $wanted;
            fn from_value($value: &'a Value) -> Option<Self> {
                $convert
            }
        }
    };
}

macro_rules! array_of {
    ($value:ident, $convert:expr) => {
        match $value {
            Value::Array(array) => $convert(array),
            _ => None,
        }
    };
}

from_value!(u32, "an integer of 32 bits without sign", value => value.integer()?.try_into().ok());
from_value!(u64, "an integer of 64 bits without sign", value => value.integer()?.try_into().ok());
from_value!(usize, "a size", value => value.integer()?.try_into().ok());
from_value!(i64, "an integer of 64 bits", value => value.integer()?.try_into().ok());
from_value!(f32, "a number", value => match *value {
    Value::F32(number) => Some(number),
    Value::F64(number) => Some(number as f32),
    _ => None,
});
from_value!(bool, "a truth value", value => match *value {
    Value::Bool(truth) => Some(truth),
    _ => None,
});
from_value!(&'a str, "a string", value => match value {
    Value::Str(text) => Some(text),
    _ => None,
});
from_value!(&'a Strings, "an array of strings", value => match value {
    Value::Array(Array::Str(strings)) => Some(strings),
    _ => None,
});
from_value!(Vec<u32>, "an array of integers of 32 bits without sign", value => array_of!(value, Array::integers));
from_value!(Vec<usize>, "an array of sizes", value => array_of!(value, Array::integers));
from_value!(Vec<i64>, "an array of integers", value => array_of!(value, Array::integers));
from_value!(Vec<f32>, "an array of numbers", value => match value {
    Value::Array(Array::F32(numbers)) => Some(numbers.clone()),
    Value::Array(Array::F64(numbers)) => Some(numbers.iter().map(|&number| number as f32).collect()),
    _ => None,
});
from_value!(Vec<bool>, "an array of truth values", value => match value {
    Value::Array(Array::Bool(truths)) => Some(truths.clone()),
    _ => None,
});

macro_rules! getters {
    ($($name:ident, $opt_name:ident, $type:ty, $what:literal;)*) => {$(
        #[doc = concat!("The value of `key` as ", $what, ".")]
        pub fn $name(&self, key: &str) -> Result<$type, MetadataError> {
            self.required(key)
        }

        #[doc = concat!("The value of `key` as ", $what, ", or `None` if the file lacks the key.")]
        pub fn $opt_name(&self, key: &str) -> Result<Option<$type>, MetadataError> {
            self.optional(key)
        }
    )*};
}

impl Metadata {
    getters! {
        u32, opt_u32, u32, "an unsigned integer";
        usize, opt_usize, usize, "a size";
        f32, opt_f32, f32, "a number (f64 is rounded once)";
        bool, opt_bool, bool, "a truth value";
        str, opt_str, &str, "a string";
        strings, opt_strings, &Strings, "an array of strings";
    }

    /// The value of `key` in any type of [`FromValue`].
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, MetadataError> {
        self.optional(key)?
            .ok_or_else(|| MetadataError::Missing { key: shown(key) })
    }

    /// As [`Metadata::required`], with `None` if the file lacks the key.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, MetadataError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match T::from_value(&entry.value) {
            Some(value) => Ok(Some(value)),
            None => Err(MetadataError::Mismatch {
                key: shown(key),
                offset: entry.offset,
                found: entry.value.describe(),
                wanted: T::WANTED,
            }),
        }
    }

    /// The value of `key` as stored.
    pub fn get(&self, key: &str) -> Option<&Value> {
        Some(&self.entry(key)?.value)
    }

    /// Offset in the file of the value of `key`, for messages about its content.
    pub fn offset(&self, key: &str) -> Option<u64> {
        Some(self.entry(key)?.offset)
    }

    /// Replaces or adds a value in memory; the file is not touched. An added value has the offset 0.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.index.get(key).and_then(|&at| self.entries.get_mut(at)) {
            Some(entry) => entry.value = value,
            None => self.push(key.to_owned(), 0, value),
        }
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), &entry.value))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the next entry of a file; a key that occurs twice is refused.
    pub(super) fn add(&mut self, key: String, offset: u64, value: Value) -> Result<(), Problem> {
        if self.index.contains_key(&key) {
            return Err(Problem::Duplicate);
        }
        self.push(key, offset, value);
        Ok(())
    }

    fn push(&mut self, key: String, offset: u64, value: Value) {
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push(Entry { key, offset, value });
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(*self.index.get(key)?)
    }
}
