//! Control vectors in files: GGUF as llama.cpp has them (`general.architecture` is `controlvector`), or safetensors. Either holds tensors
//! `direction.N` of shape `[width]`, where N is the layer.

use std::collections::BTreeMap;
use std::path::Path;

use goldcrest_format::gguf::MetadataError;
use goldcrest_format::{Checkpoint, Config, FormatError, TensorInfo};

use super::ControlVector;

const ARCHITECTURE: &str = "controlvector";
const TENSOR_PREFIX: &str = "direction.";

/// Why there is no control vector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlVectorError {
    /// The file cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The file does not say what it is.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The file is something else, such as a model.
    #[error("the file's general.architecture is '{found}'; that of a control vector is 'controlvector'")]
    Architecture {
        /// In the file.
        found: String,
    },
    /// There is none.
    #[error("there is no direction: tensors named direction.N, where N is a layer, are needed")]
    NoDirection,
    /// A tensor with another name, which stands for something that would be ignored.
    #[error("the tensor '{tensor}' is no direction: those are named direction.N, where N is a layer")]
    TensorName {
        /// Its name.
        tensor: String,
    },
    /// A direction that is no vector.
    #[error("the direction '{tensor}' has the shape {shape:?}; a single dimension is needed")]
    Shape {
        /// Its name.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Directions of several widths.
    #[error("the direction of layer {layer} has {found} numbers, another one {expected}")]
    Width {
        /// Its layer.
        layer: usize,
        /// Its numbers.
        found: usize,
        /// Numbers of the first.
        expected: usize,
    },
    /// NaN or infinite.
    #[error("the direction of layer {layer} has an element that is not finite")]
    NotFinite {
        /// Its layer.
        layer: usize,
    },
}

impl ControlVector {
    /// A control vector of directions by layer.
    ///
    /// # Errors
    /// [`ControlVectorError`], if there are none, not all are equally wide, or one is empty or not finite.
    pub fn new(directions: BTreeMap<usize, Vec<f32>>) -> Result<ControlVector, ControlVectorError> {
        let expected = directions.values().next().map_or(0, Vec::len);
        if expected == 0 {
            return Err(ControlVectorError::NoDirection);
        }
        for (&layer, direction) in &directions {
            let found = direction.len();
            if found != expected {
                return Err(ControlVectorError::Width { layer, found, expected });
            }
            if !direction.iter().all(|x| x.is_finite()) {
                return Err(ControlVectorError::NotFinite { layer });
            }
        }
        Ok(ControlVector {
            directions: directions
                .into_iter()
                .map(|(layer, direction)| (layer, direction.into()))
                .collect(),
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ControlVectorError`], if anything about it is not as it should be.
    pub fn open(path: &Path) -> Result<ControlVector, ControlVectorError> {
        let file = Checkpoint::open_tensors(path)?;
        if let Config::Gguf(metadata) = file.config() {
            let found = metadata.str("general.architecture")?;
            if found != ARCHITECTURE {
                let found = found.to_owned();
                return Err(ControlVectorError::Architecture { found });
            }
        }
        let mut directions = BTreeMap::new();
        for info in file.tensors() {
            let layer = layer_of(info)?;
            let mut direction = vec![0.0; info.elements()];
            file.decode(info, &mut direction)?;
            directions.insert(layer, direction);
        }
        ControlVector::new(directions)
    }
}

fn layer_of(info: &TensorInfo) -> Result<usize, ControlVectorError> {
    let layer = info.name.strip_prefix(TENSOR_PREFIX);
    // Only the usual spelling of a number, so that no two names are one layer.
    let layer = layer.and_then(|digits| digits.parse().ok().filter(|layer: &usize| layer.to_string() == digits));
    let tensor = || info.name.clone();
    let layer = layer.ok_or_else(|| ControlVectorError::TensorName { tensor: tensor() })?;
    match info.shape.len() {
        1 => Ok(layer),
        _ => Err(ControlVectorError::Shape {
            tensor: tensor(),
            shape: info.shape.clone(),
        }),
    }
}
