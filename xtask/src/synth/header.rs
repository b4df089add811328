//! The head of a GGUF file: settings, tokenizer, tensor table. The format is described in `goldcrest_format::gguf`.

use std::path::Path;

use goldcrest_format::gguf::{Array, Strings, Value};
use goldcrest_format::{Checkpoint, Config, DType};

use super::error::SynthError;
use super::shape::Shape;
use super::weights::Tensor;

pub(crate) const ALIGNMENT: u64 = 32;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
/// The type of tokens that no text has.
const UNUSED: i32 = 5;

/// Keys and values that describe the shape.
pub(crate) fn settings(shape: &Shape, name: &str, file_type: u32) -> Vec<(String, Value)> {
    let architecture = shape.family.architecture;
    let text = |text: &str| Value::Str(text.to_owned());
    let size = |size: usize| Value::U32(u32::try_from(size).unwrap_or(u32::MAX));
    let mut own = vec![
        ("block_count", size(shape.layers)),
        ("context_length", size(shape.context)),
        ("embedding_length", size(shape.hidden)),
        ("feed_forward_length", size(shape.ffn)),
        ("attention.head_count", size(shape.heads)),
        ("attention.head_count_kv", size(shape.kv_heads)),
        ("attention.key_length", size(shape.head_dim)),
        ("attention.value_length", size(shape.head_dim)),
        ("attention.layer_norm_rms_epsilon", Value::F32(shape.rms_eps)),
        ("rope.freq_base", Value::F32(shape.rope_base)),
        ("rope.dimension_count", size(shape.head_dim)),
        ("vocab_size", size(shape.vocabulary)),
    ];
    if let Some(experts) = shape.experts {
        own.push(("expert_count", size(experts.count)));
        own.push(("expert_used_count", size(experts.used)));
        own.push(("expert_feed_forward_length", size(experts.ffn)));
    }
    let general = [
        ("general.architecture", text(architecture)),
        ("general.type", text("model")),
        ("general.name", text(name)),
        ("general.quantization_version", Value::U32(2)),
        ("general.file_type", Value::U32(file_type)),
    ];
    let own = own
        .into_iter()
        .map(|(key, value)| (format!("{architecture}.{key}"), value));
    general
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .chain(own)
        .collect()
}

/// The tokenizer of another file, with unused tokens after its own until there are `vocabulary`.
pub(crate) fn tokenizer(path: &Path, vocabulary: usize) -> Result<Vec<(String, Value)>, SynthError> {
    let checkpoint = Checkpoint::open(path)?;
    let missing = || SynthError::NoTokenizer { path: path.to_owned() };
    let Config::Gguf(file) = checkpoint.config() else {
        return Err(missing());
    };
    let (Some(Value::Array(Array::Str(tokens))), Some(Value::Array(Array::I32(types)))) =
        (file.get(TOKENS), file.get(TOKEN_TYPES))
    else {
        return Err(missing());
    };
    if tokens.len() > vocabulary {
        let tokens = tokens.len();
        return Err(SynthError::Vocabulary { vocabulary, tokens });
    }
    let unused = (tokens.len()..vocabulary).map(|id| format!("[unused {id}]"));
    let all_tokens: Strings = tokens.iter().map(str::to_owned).chain(unused).collect();
    let mut all_types = types.clone();
    all_types.resize(vocabulary, UNUSED);
    let entries = file.iter().filter(|(key, _)| key.starts_with("tokenizer."));
    let entries = entries.map(|(key, value)| {
        let value = match key {
            TOKENS => Value::Array(Array::Str(all_tokens.clone())),
            TOKEN_TYPES => Value::Array(Array::I32(all_types.clone())),
            _ => value.clone(),
        };
        (key.to_owned(), value)
    });
    Ok(entries.collect())
}

/// The file up to its data, and where each tensor begins in the file; the last number is the length of the file.
pub(crate) fn encode(entries: &[(String, Value)], tensors: &[Tensor]) -> Result<(Vec<u8>, Vec<u64>), SynthError> {
    let mut head = Bytes(Vec::new());
    head.0.extend(b"GGUF");
    head.u32(3);
    head.u64(tensors.len() as u64);
    head.u64(entries.len() as u64);
    for (key, value) in entries {
        head.string(key);
        head.value(value);
    }
    let mut offset = 0_u64;
    let mut offsets = Vec::with_capacity(tensors.len() + 1);
    for tensor in tensors {
        head.string(&tensor.name);
        head.u32(tensor.shape.len() as u32);
        // Innermost first.
        tensor.shape.iter().rev().for_each(|&size| head.u64(size as u64));
        head.u32(ggml_id(tensor.dtype));
        head.u64(offset);
        offsets.push(offset);
        let end = offset.checked_add(tensor.bytes()?);
        offset = end
            .and_then(|end| end.checked_next_multiple_of(ALIGNMENT))
            .ok_or_else(|| SynthError::TooLarge {
                tensor: tensor.name.clone(),
            })?;
    }
    offsets.push(offset);
    let start = head.0.len().next_multiple_of(ALIGNMENT as usize);
    head.0.resize(start, 0);
    offsets.iter_mut().for_each(|offset| *offset += start as u64);
    Ok((head.0, offsets))
}

/// The number of a type in tensor tables. The reader has the table; every type that is written here is in it.
fn ggml_id(dtype: DType) -> u32 {
    (0..64)
        .find(|&id| DType::from_ggml_id(id) == Ok(dtype))
        .unwrap_or_default()
}

struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn string(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    /// The number of its type, then the value.
    fn value(&mut self, value: &Value) {
        match value {
            Value::U8(value) => self.number(0, value.to_le_bytes()),
            Value::I8(value) => self.number(1, value.to_le_bytes()),
            Value::U16(value) => self.number(2, value.to_le_bytes()),
            Value::I16(value) => self.number(3, value.to_le_bytes()),
            Value::U32(value) => self.number(4, value.to_le_bytes()),
            Value::I32(value) => self.number(5, value.to_le_bytes()),
            Value::F32(value) => self.number(6, value.to_le_bytes()),
            Value::Bool(value) => self.number(7, [u8::from(*value)]),
            Value::Str(text) => {
                self.u32(8);
                self.string(text);
            }
            Value::Array(array) => {
                self.u32(9);
                self.array(array);
            }
            Value::U64(value) => self.number(10, value.to_le_bytes()),
            Value::I64(value) => self.number(11, value.to_le_bytes()),
            Value::F64(value) => self.number(12, value.to_le_bytes()),
        }
    }

    fn number<const N: usize>(&mut self, type_id: u32, bytes: [u8; N]) {
        self.u32(type_id);
        self.0.extend(bytes);
    }

    /// The number of its elements' type, their count, and they.
    fn array(&mut self, array: &Array) {
        match array {
            Array::U8(values) => self.elements(0, values, |value| value.to_le_bytes()),
            Array::I8(values) => self.elements(1, values, |value| value.to_le_bytes()),
            Array::U16(values) => self.elements(2, values, |value| value.to_le_bytes()),
            Array::I16(values) => self.elements(3, values, |value| value.to_le_bytes()),
            Array::U32(values) => self.elements(4, values, |value| value.to_le_bytes()),
            Array::I32(values) => self.elements(5, values, |value| value.to_le_bytes()),
            Array::F32(values) => self.elements(6, values, |value| value.to_le_bytes()),
            Array::Bool(values) => self.elements(7, values, |value| [u8::from(*value)]),
            Array::Str(strings) => {
                self.u32(8);
                self.u64(strings.len() as u64);
                strings.iter().for_each(|text| self.string(text));
            }
            Array::Nested(arrays) => {
                self.u32(9);
                self.u64(arrays.len() as u64);
                arrays.iter().for_each(|array| self.array(array));
            }
            Array::U64(values) => self.elements(10, values, |value| value.to_le_bytes()),
            Array::I64(values) => self.elements(11, values, |value| value.to_le_bytes()),
            Array::F64(values) => self.elements(12, values, |value| value.to_le_bytes()),
        }
    }

    fn elements<T, const N: usize>(&mut self, type_id: u32, values: &[T], bytes: impl Fn(&T) -> [u8; N]) {
        self.u32(type_id);
        self.u64(values.len() as u64);
        self.0.extend(values.iter().flat_map(bytes));
    }
}
