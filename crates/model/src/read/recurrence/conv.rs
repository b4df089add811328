//! Causal depthwise convolutions.

use crate::families::Name;
use crate::read::SpecError;
use crate::read::tensors::Tensors;
use crate::spec::{Conv, RowOrder, RowSelection, Vector, VectorMap};

/// Kernels `[channels, kernel]` in tensors whose channels follow each other.
pub struct Kernels {
    tensors: Vec<String>,
    biases: Vec<String>,
    pub channels: usize,
    pub kernel: usize,
}

impl Kernels {
    pub fn read(tensors: &mut Tensors, names: &[Name], layer: usize) -> Result<Kernels, SpecError> {
        let mut found = Kernels {
            tensors: Vec::new(),
            biases: Vec::new(),
            channels: 0,
            kernel: 0,
        };
        for &name in names {
            let [channels, kernel] = tensors.shape(name, layer)?;
            if kernel == 0 || (found.kernel != 0 && kernel != found.kernel) {
                return Err(SpecError::BadShape {
                    tensor: tensors.spelled(name, layer).unwrap_or_default(),
                    found: vec![channels, kernel],
                    expected: vec![channels, found.kernel.max(1)],
                });
            }
            let weight = tensors.vector(name, layer, "weight", channels * kernel)?;
            found.tensors.extend(weight.tensors);
            if let Some(bias) = tensors.opt_vector(name, layer, "bias", channels)? {
                found.biases.extend(bias.tensors);
            }
            found.kernel = kernel;
            found.channels += channels;
        }
        if !found.biases.is_empty() && found.biases.len() != found.tensors.len() {
            return Err(SpecError::MissingTensor {
                tensor: format!("a bias for each of {}", found.tensors.join(", ")),
            });
        }
        Ok(found)
    }

    /// The convolution of `channels` channels from `first` on.
    pub fn part(&self, first: usize, channels: usize) -> Conv {
        let kernel = self.kernel;
        let vector = |tensors: &[String], elements, order| Vector {
            tensors: tensors.to_vec(),
            elements,
            order,
            map: VectorMap::Plain,
        };
        let stretch = RowSelection::stretch(first * kernel, channels * kernel);
        let transposed = RowOrder::Transposed {
            rows: channels,
            cols: kernel,
        };
        let bias_stretch = RowSelection::stretch(first, channels);
        Conv {
            channels,
            kernel,
            weight: vector(&self.tensors, stretch, transposed),
            bias: (!self.biases.is_empty()).then(|| vector(&self.biases, bias_stretch, RowOrder::Plain)),
        }
    }
}
