//! A file's configuration and tensor table → [`ModelSpec`], by the data of its family.

mod attention;
mod beside;
mod ffn;
mod indexer;
pub mod keys;
mod layers;
mod mla;
mod moe;
mod per_layer;
mod projections;
mod recurrence;
mod rope;
mod tensors;
mod windows;

use goldcrest_format::Checkpoint;
use serde_json::Value;

use crate::families::{self, Bias, Family};
use crate::spec::{Embedding, Head, Linear, ModelSpec, Norm};
use layers::{LayerReader, read_number};
use tensors::Tensors;

pub use keys::{Key, Settings};

/// Why a checkpoint cannot become a [`ModelSpec`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    #[error("the model's architecture '{name}' is not supported; supported are {known}")]
    UnknownFamily { name: String, known: String },
    #[error("the configuration lacks '{key}'")]
    MissingKey { key: String },
    #[error("'{key}' is {value}, expected {expected}")]
    BadValue {
        key: String,
        value: String,
        expected: String,
    },
    #[error("'{key}' asks for {value}, which is not supported for this architecture")]
    Unsupported { key: String, value: String },
    #[error("the tensor '{tensor}' is missing")]
    MissingTensor { tensor: String },
    #[error("the tensor '{tensor}' has shape {found:?}, expected {expected:?}")]
    BadShape {
        tensor: String,
        found: Vec<usize>,
        expected: Vec<usize>,
    },
    #[error("the tensor '{tensor}' has type {dtype}, which cannot hold weights")]
    BadType { tensor: String, dtype: &'static str },
    #[error(
        "the tensor '{tensor}' has no place in the architecture '{family}'; the file needs support that is missing here"
    )]
    UnusedTensor { tensor: String, family: &'static str },
    #[error("the tensor '{tensor}' cannot be read: {source}")]
    Unreadable {
        tensor: String,
        source: Box<goldcrest_format::FormatError>,
    },
    #[error(transparent)]
    Metadata(#[from] goldcrest_format::gguf::MetadataError),
}

/// Reads what the model in `checkpoint` is. Every key is checked, every tensor that the model needs is there in the right shape, and
/// every tensor of the file has a place.
pub fn read_spec(checkpoint: &Checkpoint) -> Result<ModelSpec, SpecError> {
    let settings = Settings::new(checkpoint)?;
    let family = find_family(&settings)?;
    refuse_features(&settings, family)?;
    let mut tensors = Tensors::new(&settings, family);
    let hidden = settings.usize(keys::HIDDEN)?;
    let layers = LayerReader::new(&settings, family, hidden)?.read(&mut tensors)?;
    let sizes = Sizes {
        hidden,
        layers: layers.len(),
    };
    let embedding = read_embedding(&settings, family, &mut tensors, sizes)?;
    let final_norm = tensors.norm(family.names.final_norm, 0, hidden)?;
    let head = read_head(&settings, family, &mut tensors, (&embedding, sizes))?;
    tensors.refuse_unused()?;
    Ok(ModelSpec {
        family: family.name,
        vocabulary: embedding.table.outputs(),
        hidden,
        context: settings.opt_usize(keys::CONTEXT)?.unwrap_or(UNBOUNDED_CONTEXT),
        embedding,
        layers,
        final_norm,
        head,
    })
}

/// Switches of a config that a family knows and this build does not.
fn refuse_features(settings: &Settings, family: &Family) -> Result<(), SpecError> {
    let off = |value: &Value| *value == Value::Bool(false) || value.as_f64() == Some(0.0);
    for key in family.refused {
        if let Some(value) = settings.hf(key).filter(|value| !off(value)) {
            return Err(SpecError::Unsupported {
                key: (*key).into(),
                value: value.to_string(),
            });
        }
    }
    Ok(())
}

fn find_family(settings: &Settings) -> Result<&'static Family, SpecError> {
    let spelled = |family: &&&Family| {
        let names = if settings.is_gguf() { family.gguf } else { family.hf };
        names.contains(&settings.architecture)
    };
    families::ALL
        .iter()
        .find(spelled)
        .copied()
        .ok_or_else(|| SpecError::UnknownFamily {
            name: settings.architecture.chars().take(80).collect(),
            known: families::ALL
                .iter()
                .map(|family| family.name)
                .collect::<Vec<_>>()
                .join(", "),
        })
}

/// The context of recurrent models whose files name none.
const UNBOUNDED_CONTEXT: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    layers: usize,
}

fn read_embedding(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    sizes: Sizes,
) -> Result<Embedding, SpecError> {
    let Sizes { hidden, layers } = sizes;
    let names = &family.names;
    // GGUF files may lack the size of the vocabulary: the table has it.
    let rows = match settings.opt_usize(keys::VOCABULARY)? {
        Some(rows) => rows,
        None if settings.is_gguf() => tensors.rows(names.embedding, 0)?,
        None => return Err(settings.missing(keys::VOCABULARY)),
    };
    let positions = match family.embedding.positions {
        true => Some(tensors.matrix(names.positions, 0, [settings.usize(keys::CONTEXT)?, hidden])?),
        false => None,
    };
    let norm: Option<Norm> = match family.embedding.norm {
        true => Some(tensors.norm(names.embedding_norm, 0, hidden)?),
        false => None,
    };
    Ok(Embedding {
        table: tensors.matrix(names.embedding, 0, [rows, hidden])?,
        scale: read_number(settings, family.embedding.scale, hidden, layers)?,
        positions,
        norm,
        per_layer: per_layer::read_embedding(settings, family, tensors, (hidden, layers, rows))?,
    })
}

fn read_head(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    (embedding, sizes): (&Embedding, Sizes),
) -> Result<Head, SpecError> {
    let name = family.names.head;
    let stored = tensors.has(name, 0, "weight");
    let tied = match settings.opt_bool(keys::TIED)? {
        Some(tied) => tied,
        None if settings.is_gguf() => !stored,
        None => family.head.tied,
    };
    let table = &embedding.table;
    let projection = if tied {
        // Some checkpoints store the shared table twice.
        tensors.ignore(name, 0, "weight");
        Linear {
            weight: table.clone(),
            bias: None,
        }
    } else {
        tensors.linear(name, 0, [table.outputs(), table.cols], Bias::Stored)?
    };
    let softcap = match family.head.softcap {
        true => settings.opt_f64(keys::LOGIT_CAP)?.map(|cap| cap as f32),
        false => None,
    };
    Ok(Head {
        projection,
        tied,
        scale: read_number(settings, family.head.scale, sizes.hidden, sizes.layers)?,
        softcap,
    })
}
