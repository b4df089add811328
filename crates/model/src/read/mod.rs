//! A file's configuration and tensor table → [`ModelSpec`], by the data of its family.

pub mod keys;
mod layers;
mod rope;
mod tensors;

use goldcrest_format::Checkpoint;

use crate::families::{self, Family};
use crate::spec::{Embedding, Head, ModelSpec, NormKind};
use layers::LayerReader;
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
    #[error(transparent)]
    Metadata(#[from] goldcrest_format::gguf::MetadataError),
}

/// Reads what the model in `checkpoint` is. Every key is checked, every tensor that the model needs is there in the right shape, and
/// every tensor of the file has a place.
pub fn read_spec(checkpoint: &Checkpoint) -> Result<ModelSpec, SpecError> {
    let settings = Settings::new(checkpoint)?;
    let family = find_family(&settings)?;
    let mut tensors = Tensors::new(&settings, family);
    let hidden = settings.usize(keys::HIDDEN)?;
    let layers = LayerReader::new(&settings, family, hidden)?.read(&mut tensors)?;
    let embedding = read_embedding(&settings, family, &mut tensors, hidden)?;
    let final_norm = tensors.norm(
        family.names.final_norm,
        0,
        hidden,
        settings.f64(keys::RMS_EPS)?,
        NormKind::Rms,
    )?;
    let head = read_head(&settings, family, &mut tensors, &embedding)?;
    tensors.refuse_unused()?;
    Ok(ModelSpec {
        family: family.name,
        vocabulary: embedding.table.outputs(),
        hidden,
        context: settings.usize(keys::CONTEXT)?,
        embedding,
        layers,
        final_norm,
        head,
    })
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

fn read_embedding(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    hidden: usize,
) -> Result<Embedding, SpecError> {
    // GGUF files may lack the size of the vocabulary: the table has it.
    let rows = match settings.opt_usize(keys::VOCABULARY)? {
        Some(rows) => rows,
        None if settings.is_gguf() => tensors.rows(family.names.embedding)?,
        None => {
            return Err(SpecError::MissingKey {
                key: settings.spelling(keys::VOCABULARY),
            });
        }
    };
    let table = tensors.matrix(family.names.embedding, 0, [rows, hidden])?;
    let scale = if family.embedding_sqrt_hidden {
        (hidden as f32).sqrt()
    } else {
        1.0
    };
    Ok(Embedding { table, scale })
}

fn read_head(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    embedding: &Embedding,
) -> Result<Head, SpecError> {
    let stored = tensors.has(family.names.head, 0, "weight");
    let tied = match settings.opt_bool(keys::TIED)? {
        Some(tied) => tied,
        None if settings.is_gguf() => !stored,
        None => family.tied,
    };
    let projection = if tied {
        // Some checkpoints store the shared table twice.
        tensors.ignore(family.names.head, 0, "weight");
        crate::spec::Linear {
            weight: embedding.table.clone(),
            bias: None,
        }
    } else {
        tensors.linear(
            family.names.head,
            0,
            [embedding.table.outputs(), embedding.table.cols],
            false,
        )?
    };
    let softcap = if family.softcaps {
        settings.opt_f64(keys::LOGIT_CAP)?.map(|cap| cap as f32)
    } else {
        None
    };
    Ok(Head {
        projection,
        tied,
        softcap,
    })
}
