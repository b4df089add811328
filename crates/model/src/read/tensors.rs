//! Finds a model's tensors by the family's names, checks their shapes, and keeps account of which were used.

use std::collections::HashSet;

use goldcrest_format::{DType, TensorInfo};

use super::{Settings, SpecError};
use crate::families::{Family, Name};
use crate::spec::{Linear, Matrix, Norm, NormKind, RowOrder, Vector};

/// Tensors that some files carry and no model needs: buffers that follow from the configuration.
const DERIVED: &[&str] = &["rotary_emb.inv_freq", "attn.masked_bias", "rope_freqs.weight"];

pub struct Tensors<'a> {
    settings: &'a Settings<'a>,
    family: &'static Family,
    used: HashSet<&'a str>,
}

impl<'a> Tensors<'a> {
    pub fn new(settings: &'a Settings<'a>, family: &'static Family) -> Self {
        Tensors {
            settings,
            family,
            used: HashSet::new(),
        }
    }

    fn full_name(&self, (hf, gguf): Name, layer: usize, part: &str) -> String {
        let pattern = if self.settings.is_gguf() { gguf } else { hf };
        format!("{}.{part}", pattern.replace("{}", &layer.to_string()))
    }

    pub fn has(&self, name: Name, layer: usize, part: &str) -> bool {
        self.settings
            .checkpoint()
            .tensor(&self.full_name(name, layer, part))
            .is_some()
    }

    /// Marks a tensor as known though the model does without it.
    pub fn ignore(&mut self, name: Name, layer: usize, part: &str) {
        if let Some(info) = self.settings.checkpoint().tensor(&self.full_name(name, layer, part)) {
            self.used.insert(&info.name);
        }
    }

    fn take(&mut self, name: String, shape: &[usize]) -> Result<&'a TensorInfo, SpecError> {
        let Some(info) = self.settings.checkpoint().tensor(&name) else {
            return Err(SpecError::MissingTensor { tensor: name });
        };
        if info.shape != shape {
            return Err(SpecError::BadShape {
                tensor: name,
                found: info.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        if !holds_weights(info.dtype) {
            return Err(SpecError::BadType {
                tensor: name,
                dtype: info.dtype.name(),
            });
        }
        self.used.insert(&info.name);
        Ok(info)
    }

    /// Rows of a matrix, for the one size that only the table itself knows.
    pub fn rows(&self, name: Name) -> Result<usize, SpecError> {
        let name = self.full_name(name, 0, "weight");
        let info = self.settings.checkpoint().tensor(&name);
        let info = info.ok_or_else(|| SpecError::MissingTensor { tensor: name.clone() })?;
        info.shape
            .first()
            .copied()
            .filter(|_| info.shape.len() == 2)
            .ok_or_else(|| SpecError::BadShape {
                tensor: name,
                found: info.shape.clone(),
                expected: vec![],
            })
    }

    pub fn matrix(&mut self, name: Name, layer: usize, shape: [usize; 2]) -> Result<Matrix, SpecError> {
        let info = self.take(self.full_name(name, layer, "weight"), &shape)?;
        Ok(Matrix {
            tensor: info.name.clone(),
            dtype: info.dtype,
            rows: 0..shape[0],
            cols: shape[1],
            order: RowOrder::Plain,
        })
    }

    pub fn vector(&mut self, name: Name, layer: usize, part: &str, len: usize) -> Result<Vector, SpecError> {
        let info = self.take(self.full_name(name, layer, part), &[len])?;
        Ok(Vector {
            tensor: info.name.clone(),
            len,
            order: RowOrder::Plain,
            offset: 0.0,
        })
    }

    pub fn linear(&mut self, name: Name, layer: usize, shape: [usize; 2], bias: bool) -> Result<Linear, SpecError> {
        let weight = self.matrix(name, layer, shape)?;
        let bias = if bias {
            Some(self.vector(name, layer, "bias", shape[0])?)
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }

    pub fn norm(&mut self, name: Name, layer: usize, len: usize, eps: f64, kind: NormKind) -> Result<Norm, SpecError> {
        let mut weight = self.vector(name, layer, "weight", len)?;
        if self.family.one_plus_norms && !self.settings.is_gguf() {
            weight.offset = 1.0;
        }
        Ok(Norm {
            kind,
            weight,
            eps: eps as f32,
        })
    }

    /// A vector that a GGUF file may carry under a name without a layer.
    pub fn opt_gguf_vector(&mut self, name: &str, len: usize) -> Result<Option<Vector>, SpecError> {
        if !self.settings.is_gguf() || self.settings.checkpoint().tensor(name).is_none() {
            return Ok(None);
        }
        let info = self.take(name.to_string(), &[len])?;
        Ok(Some(Vector {
            tensor: info.name.clone(),
            len,
            order: RowOrder::Plain,
            offset: 0.0,
        }))
    }

    /// A tensor without a place means a feature that would be silently ignored.
    pub fn refuse_unused(&self) -> Result<(), SpecError> {
        let unused = |info: &&TensorInfo| {
            !self.used.contains(info.name.as_str()) && !DERIVED.iter().any(|end| info.name.ends_with(end))
        };
        match self.settings.checkpoint().tensors().find(unused) {
            None => Ok(()),
            Some(info) => Err(SpecError::UnusedTensor {
                tensor: info.name.clone(),
                family: self.family.name,
            }),
        }
    }
}

fn holds_weights(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::BOOL
    )
}
