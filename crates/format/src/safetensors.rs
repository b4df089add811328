//! Safetensors files, single or sharded. The header is parsed by the `safetensors` crate; data is read by us.
//!
//! Layout: header length (u64, little-endian), header (JSON: tensor name → type, shape, byte range), data.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use ::safetensors::tensor::Metadata as Header;
use serde_json::{Map, Value};

use crate::gguf::shown;
use crate::hf::{self, HfError};
use crate::{DType, DTypeError, FormatError, Source, SourceError, TensorInfo};

const LENGTH_BYTES: u64 = 8;
/// The limit that the format's own library sets.
const HEADER_LIMIT_BYTES: u64 = 100_000_000;
const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// A refusal of a safetensors file.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] SourceError),
    /// The announced header length cannot be true.
    #[error("header length at byte 0: {announced} bytes are announced, but the limit is {limit} and {left} are left")]
    HeaderLength {
        /// Length in the file.
        announced: u64,
        /// Largest header that is read.
        limit: u64,
        /// Bytes between the length and the end of the file.
        left: u64,
    },
    /// The header is not what the format asks for.
    #[error("header at byte {offset}: {reason}")]
    Header {
        /// Offset in the file of the place where the parser stopped.
        offset: u64,
        /// What the parser found.
        reason: String,
    },
    /// A name occurs twice in the header.
    #[error("header at byte 8: tensor {name} occurs twice")]
    Duplicate {
        /// The tensor.
        name: String,
    },
    /// The storage type of a tensor is not supported.
    #[error("tensor {name} at byte {offset}: {error}")]
    Type {
        /// The tensor.
        name: String,
        /// Where its data starts.
        offset: u64,
        /// The type.
        #[source]
        error: DTypeError,
    },
    /// The size of a tensor overflows.
    #[error("tensor {name} at byte {offset}: the number of elements overflows")]
    Elements {
        /// The tensor.
        name: String,
        /// Where its data starts.
        offset: u64,
    },
    /// The data does not fill the file exactly.
    #[error("the tensors end at byte {wanted} but the file at byte {length}: it is truncated or damaged")]
    Length {
        /// Length of the file by its header.
        wanted: u64,
        /// Length of the file.
        length: u64,
    },
    /// An index entry that is not a plain file name in the folder.
    #[error("weight_map of {INDEX_FILE}: {name} names the file {shard}, which is not a plain .safetensors file name")]
    ShardName {
        /// The tensor.
        name: String,
        /// The refused file name.
        shard: String,
    },
    /// The index has no usable `weight_map`.
    #[error("{INDEX_FILE} has no weight_map of tensor names to file names")]
    NoWeightMap,
    /// A tensor of the index is not in its shard.
    #[error("{INDEX_FILE} places tensor {name} in {shard}, which does not hold it")]
    NotInShard {
        /// The tensor.
        name: String,
        /// The file.
        shard: String,
    },
    /// A tensor is in two shards.
    #[error("tensor {name} is in two files of the model")]
    TwoShards {
        /// The tensor.
        name: String,
    },
}

/// Reads the header of one file; `number` becomes the `source` of every tensor. Tensors come in the order of their
/// data.
pub fn read(source: &Source, number: usize) -> Result<Vec<TensorInfo>, SafetensorsError> {
    let mut length = [0; LENGTH_BYTES as usize];
    source.read_exact_at(0, &mut length)?;
    let announced = u64::from_le_bytes(length);
    let left = source.length() - LENGTH_BYTES;
    if announced > HEADER_LIMIT_BYTES || announced > left {
        return Err(SafetensorsError::HeaderLength {
            announced,
            limit: HEADER_LIMIT_BYTES,
            left,
        });
    }
    let mut bytes = vec![0; announced as usize];
    source.read_exact_at(LENGTH_BYTES, &mut bytes)?;
    refuse_duplicates(&bytes)?;
    let header: Header = serde_json::from_slice(&bytes).map_err(|error| header_error(&bytes, error))?;
    let data_start = LENGTH_BYTES + announced;
    let wanted = data_start.saturating_add(header.data_len() as u64);
    if wanted != source.length() {
        return Err(SafetensorsError::Length {
            wanted,
            length: source.length(),
        });
    }
    let names = header.offset_keys();
    names
        .into_iter()
        .filter_map(|name| Some(tensor(header.info(&name)?, name, data_start, number)))
        .collect()
}

fn header_error(header: &[u8], error: serde_json::Error) -> SafetensorsError {
    // Lines and columns count from 1; a header is one line unless a writer was unusual.
    let before = error.line().saturating_sub(1);
    let line_start: usize = header
        .split_inclusive(|&byte| byte == b'\n')
        .take(before)
        .map(<[u8]>::len)
        .sum();
    let offset = LENGTH_BYTES + (line_start + error.column().saturating_sub(1)) as u64;
    SafetensorsError::Header {
        offset,
        reason: shown(&error.to_string()),
    }
}

/// The library keeps the last of two entries with one name, so they are looked for here.
fn refuse_duplicates(header: &[u8]) -> Result<(), SafetensorsError> {
    let hf::Keys(names) = serde_json::from_slice(header).map_err(|error| header_error(header, error))?;
    let mut seen = HashSet::with_capacity(names.len());
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(SafetensorsError::Duplicate { name: shown(name) }),
        None => Ok(()),
    }
}

fn tensor(
    info: &::safetensors::tensor::TensorInfo,
    name: String,
    data_start: u64,
    number: usize,
) -> Result<TensorInfo, SafetensorsError> {
    let (from, to) = info.data_offsets;
    let offset = data_start + from as u64;
    let dtype = DType::from_safetensors_name(&info.dtype.to_string()).map_err(|error| SafetensorsError::Type {
        name: shown(&name),
        offset,
        error,
    })?;
    // An empty tensor may announce any other dimension; nothing after this may overflow on their product.
    let elements = info
        .shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim.max(1)));
    if elements.is_none() {
        return Err(SafetensorsError::Elements {
            name: shown(&name),
            offset,
        });
    }
    let bytes = to.saturating_sub(from) as u64;
    Ok(TensorInfo {
        name,
        dtype,
        shape: info.shape.clone(),
        source: number,
        offset,
        bytes,
    })
}

/// The weight files of a model folder, opened.
#[derive(Debug)]
pub(crate) struct Weights {
    pub sources: Vec<Source>,
    pub tensors: Vec<TensorInfo>,
}

/// Opens the weights of a folder: `model.safetensors`, the shards of its index, or the only `.safetensors` file.
pub(crate) fn open_folder(folder: &hf::Folder) -> Result<Option<Weights>, FormatError> {
    let single = folder.path().join(SINGLE_FILE);
    if single.is_file() {
        return open_file(&single).map(Some);
    }
    if let Some(weights) = open_index(folder)? {
        return Ok(Some(weights));
    }
    match hf::only_file(folder.path(), "safetensors")? {
        Some(only) => open_file(&only).map(Some),
        None => Ok(None),
    }
}

/// Opens the shards that the folder's index names, if it has one.
pub(crate) fn open_index(folder: &hf::Folder) -> Result<Option<Weights>, FormatError> {
    match folder.object(INDEX_FILE)? {
        Some(index) => open_shards(folder.path(), &index).map(Some),
        None => Ok(None),
    }
}

/// True if the index of the folder names this file as one of its shards.
pub(crate) fn is_shard(folder: &hf::Folder, file_name: &str) -> Result<bool, HfError> {
    let index = folder.object(INDEX_FILE)?;
    let map = index
        .as_ref()
        .and_then(|index| index.get("weight_map"))
        .and_then(Value::as_object);
    Ok(map.is_some_and(|map| map.values().any(|shard| shard.as_str() == Some(file_name))))
}

/// Opens one file.
pub(crate) fn open_file(path: &Path) -> Result<Weights, FormatError> {
    let source = Source::open(path)?;
    let tensors = read_one(&source, 0)?;
    Ok(Weights {
        sources: vec![source],
        tensors,
    })
}

fn read_one(source: &Source, number: usize) -> Result<Vec<TensorInfo>, FormatError> {
    read(source, number).map_err(|error| FormatError::Safetensors {
        path: source.path().to_owned(),
        error,
    })
}

fn open_shards(folder: &Path, index: &Map<String, Value>) -> Result<Weights, FormatError> {
    let refuse = |error| FormatError::Safetensors {
        path: folder.join(INDEX_FILE),
        error,
    };
    let places = weight_map(index).map_err(refuse)?;
    let mut shards: Vec<&str> = places.iter().map(|&(_, shard)| shard).collect();
    shards.sort_unstable();
    shards.dedup();
    let mut weights = Weights {
        sources: Vec::new(),
        tensors: Vec::new(),
    };
    for (number, shard) in shards.iter().enumerate() {
        let source = Source::open(&folder.join(shard))?;
        weights.tensors.extend(read_one(&source, number)?);
        weights.sources.push(source);
    }
    check_places(&weights.tensors, &places, &shards).map_err(refuse)?;
    Ok(weights)
}

/// Tensor and file name of every entry of an index; file names are plain names, so no entry can leave the folder.
pub fn weight_map(index: &Map<String, Value>) -> Result<Vec<(&str, &str)>, SafetensorsError> {
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or(SafetensorsError::NoWeightMap)?;
    map.iter()
        .map(|(name, shard)| {
            let shard = shard.as_str().ok_or(SafetensorsError::NoWeightMap)?;
            let plain = hf::is_plain_name(shard) && shard.ends_with(".safetensors");
            let refused = || SafetensorsError::ShardName {
                name: shown(name),
                shard: shown(shard),
            };
            if plain {
                Ok((name.as_str(), shard))
            } else {
                Err(refused())
            }
        })
        .collect()
}

fn check_places(tensors: &[TensorInfo], places: &[(&str, &str)], shards: &[&str]) -> Result<(), SafetensorsError> {
    let mut found = HashMap::with_capacity(tensors.len());
    for tensor in tensors {
        if found.insert(tensor.name.as_str(), tensor.source).is_some() {
            return Err(SafetensorsError::TwoShards {
                name: shown(&tensor.name),
            });
        }
    }
    for &(name, shard) in places {
        let holder = found.get(name).and_then(|&source| shards.get(source));
        if holder != Some(&shard) {
            return Err(SafetensorsError::NotInShard {
                name: shown(name),
                shard: shown(shard),
            });
        }
    }
    Ok(())
}
