//! A case folder: the prompt, the reference outputs, the bounds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use goldcrest_format::{Checkpoint, DType, FormatError, TensorInfo};
use serde::Deserialize;
use serde_json::Value;

/// Why a folder is no case.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// `case.json` is not what it has to be.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: serde_json::Error,
    },
    /// The reference outputs cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A reference output is missing or has another shape or type.
    #[error("reference.safetensors: '{tensor}' is missing or is not f32 of shape {expected:?}")]
    Reference {
        /// Its name.
        tensor: String,
        /// The shape it has to have.
        expected: Vec<usize>,
    },
}

/// What `case.json` says.
#[derive(Clone, Debug, Deserialize)]
pub struct CaseFile {
    pub case: String,
    pub prompt_ids: Vec<u32>,
    pub greedy_ids: Vec<u32>,
    pub sampled_positions: Vec<usize>,
    pub logits_std: f64,
    pub noise_floor: NoiseFloor,
    pub tolerance: Tolerance,
    pub sensitivity: Sensitivity,
    /// False: the reference's cached decoding differs from one pass by design, and one pass is what is right.
    #[serde(default = "yes")]
    pub cache_equals_recompute: bool,
}

fn yes() -> bool {
    true
}

/// How far the reference's f32 is from its f64.
#[derive(Clone, Debug, Deserialize)]
pub struct NoiseFloor {
    pub prompt: f64,
}

/// The bounds of a right engine.
#[derive(Clone, Debug, Deserialize)]
pub struct Tolerance {
    pub float32_max_abs: f64,
}

/// How far logits move when a setting changes, in their standard deviations.
#[derive(Clone, Debug, Deserialize)]
pub struct Sensitivity {
    pub config: BTreeMap<String, Value>,
}

/// A case with its reference outputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// What `case.json` says.
    pub file: CaseFile,
    /// `[prompt, vocabulary]`.
    pub logits: Vec<f32>,
    /// `[greedy ids, vocabulary]`.
    pub step_logits: Vec<f32>,
    /// What the router of each layer that has one chose.
    pub routes: Vec<Routes>,
    /// The residual stream entering each layer and leaving the last: `[sampled positions, hidden]` each.
    pub residuals: Vec<Vec<f32>>,
}

/// The experts that a layer's router chose for each position of the prompt, rising, with their weights: `[prompt, k]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    pub ids: Vec<u32>,
    pub weights: Vec<f32>,
}

impl Case {
    /// Reads a case folder.
    ///
    /// # Errors
    /// [`CaseError`].
    pub fn open(folder: &Path) -> Result<Case, CaseError> {
        let path = folder.join("case.json");
        let text = std::fs::read(&path).map_err(|source| CaseError::Read {
            path: path.clone(),
            source,
        })?;
        let file: CaseFile = serde_json::from_slice(&text).map_err(|source| CaseError::Json { path, source })?;
        let reference = Checkpoint::open(&folder.join("reference.safetensors"))?;
        let vocabulary = reference.tensor("logits").map_or(0, |info| info.row_elements());
        let logits = read(&reference, "logits", &[file.prompt_ids.len(), vocabulary])?;
        let steps = match file.cache_equals_recompute {
            true => "step_logits",
            false => "recomputed_step_logits",
        };
        let step_logits = read(&reference, steps, &[file.greedy_ids.len(), vocabulary])?;
        let mut residuals = Vec::new();
        while let Some(info) = reference.tensor(&format!("residual.{}", residuals.len())) {
            let shape = [file.sampled_positions.len(), info.row_elements()];
            residuals.push(read(&reference, &info.name, &shape)?);
        }
        let mut routes = Vec::new();
        for layer in 0..residuals.len() {
            let Some(ids) = reference.tensor(&format!("router.{layer}.ids")) else {
                continue;
            };
            let shape = [file.prompt_ids.len(), ids.row_elements()];
            let weights = read(&reference, &format!("router.{layer}.weights"), &shape)?;
            routes.push(Routes {
                ids: read_ids(&reference, ids)?,
                weights,
            });
        }
        Ok(Case {
            file,
            logits,
            step_logits,
            routes,
            residuals,
        })
    }
}

/// Whole numbers.
fn read_ids(reference: &Checkpoint, info: &TensorInfo) -> Result<Vec<u32>, CaseError> {
    if info.dtype != DType::I32 {
        return Err(CaseError::Reference {
            tensor: info.name.clone(),
            expected: info.shape.clone(),
        });
    }
    let mut bytes = vec![0; info.elements() * 4];
    reference.read(info, 0, &mut bytes)?;
    let ids = bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Ok(ids.collect())
}

fn read(reference: &Checkpoint, tensor: &str, shape: &[usize]) -> Result<Vec<f32>, CaseError> {
    let info = reference
        .tensor(tensor)
        .filter(|info| info.shape == shape && info.dtype == DType::F32);
    let Some(info) = info else {
        return Err(CaseError::Reference {
            tensor: tensor.into(),
            expected: shape.to_vec(),
        });
    };
    let mut values = vec![0.0; info.elements()];
    reference.decode(info, &mut values)?;
    Ok(values)
}
