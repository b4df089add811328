//! The tensors of a model: names, types, shapes, and how large their weights are.
//!
//! Sizes are chosen so that activations stay sane whatever the depth. A matrix has a standard deviation of 1/√inputs, so that normed inputs
//! give outputs of size 1; the two matrices of a layer that add to the stream have 1/(2·√(inputs · layers)), so that all layers together
//! add less than the embedding, whose size is 1: what is in an embedding stays visible to the last layer. An embedding that is also the
//! head has 1/√hidden, as a head.

use goldcrest_format::DType;

use super::error::SynthError;
use super::mix::{Mix, Place, Role};
use super::shape::Shape;

/// Norms are near 1, biases near 0.
pub(crate) const VECTOR_STD: f32 = 0.1;

#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    /// Outermost first.
    pub(crate) shape: Vec<usize>,
    pub(crate) fill: Fill,
}

/// What a tensor holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fill {
    /// Random weights of mean 0.
    Random { std: f64 },
    /// Random numbers around a mean that is not 0.
    Around { mean: f32 },
    /// A row for each token.
    Embedding { std: f64 },
    /// A row for each expert.
    Router { layer: usize, std: f64 },
    /// These.
    Values(Vec<f32>),
}

impl Tensor {
    /// Elements of a row.
    pub(crate) fn row(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.shape.iter().rev().skip(1).map(|&size| size as u64).product()
    }

    pub(crate) fn row_bytes(&self) -> Result<u64, SynthError> {
        self.dtype.bytes(self.row() as u64).map_err(|_| self.too_large())
    }

    pub(crate) fn bytes(&self) -> Result<u64, SynthError> {
        let bytes = self.row_bytes()?.checked_mul(self.rows());
        bytes.ok_or_else(|| self.too_large())
    }

    fn too_large(&self) -> SynthError {
        SynthError::TooLarge {
            tensor: self.name.clone(),
        }
    }
}

/// All tensors of a model, in the order of files that `llama-quantize` wrote: by layer, those of no layer first, then by name.
pub(crate) fn tensors(shape: &Shape, mix: Mix) -> Vec<Tensor> {
    let mut all = Builder {
        shape,
        mix,
        layer: None,
        tensors: Vec::new(),
    };
    all.outside_layers();
    for layer in 0..shape.layers {
        all.layer = Some(layer);
        all.attention();
        all.feed_forward();
    }
    all.tensors
        .sort_by(|(a_layer, a), (b_layer, b)| (a_layer, &a.name).cmp(&(b_layer, &b.name)));
    all.tensors.into_iter().map(|(_, tensor)| tensor).collect()
}

struct Builder<'a> {
    shape: &'a Shape,
    mix: Mix,
    layer: Option<usize>,
    tensors: Vec<(Option<usize>, Tensor)>,
}

impl Builder<'_> {
    fn outside_layers(&mut self) {
        let shape = self.shape;
        let (table, head_std) = ([shape.vocabulary, shape.hidden], inverse_root(shape.hidden));
        let std = if shape.tied { head_std } else { 1.0 };
        self.matrix("token_embd", Role::Embedding, &table, Fill::Embedding { std });
        self.norm("output_norm", shape.hidden);
        if !shape.tied {
            self.matrix("output", Role::Head, &table, Fill::Random { std: head_std });
        }
        if let Some(divisors) = shape.rope_divisors() {
            self.vector("rope_freqs.weight", divisors.len(), Fill::Values(divisors));
        }
    }

    fn attention(&mut self) {
        let Shape {
            family,
            hidden,
            heads,
            kv_heads,
            head_dim,
            ..
        } = *self.shape;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        self.norm("attn_norm", hidden);
        for (name, role, outputs) in [
            ("attn_q", Role::Query, queries),
            ("attn_k", Role::Key, keys),
            ("attn_v", Role::Value, keys),
        ] {
            self.projection(name, role, &[outputs, hidden]);
            if family.qkv_bias {
                self.vector(&format!("{name}.bias"), outputs, Fill::Around { mean: 0.0 });
            }
        }
        if family.head_norms {
            self.norm("attn_q_norm", head_dim);
            self.norm("attn_k_norm", head_dim);
        }
        self.projection("attn_output", Role::Output, &[hidden, queries]);
    }

    fn feed_forward(&mut self) {
        let hidden = self.shape.hidden;
        self.norm("ffn_norm", hidden);
        let Some(experts) = self.shape.experts else {
            let ffn = self.shape.ffn;
            self.projection("ffn_gate", Role::GateOrUp, &[ffn, hidden]);
            self.projection("ffn_up", Role::GateOrUp, &[ffn, hidden]);
            self.projection("ffn_down", Role::Down, &[hidden, ffn]);
            return;
        };
        let (layer, std) = (self.layer.unwrap_or_default(), inverse_root(hidden));
        self.push(
            "ffn_gate_inp.weight",
            DType::F32,
            &[experts.count, hidden],
            Fill::Router { layer, std },
        );
        let inner = [experts.count, experts.ffn, hidden];
        self.projection("ffn_gate_exps", Role::GateOrUp, &inner);
        self.projection("ffn_up_exps", Role::GateOrUp, &inner);
        self.projection("ffn_down_exps", Role::Down, &[experts.count, hidden, experts.ffn]);
    }

    fn projection(&mut self, name: &str, role: Role, shape: &[usize]) {
        let inputs = shape.last().copied().unwrap_or(1);
        let std = match role {
            Role::Output | Role::Down => inverse_root(inputs) * inverse_root(4 * self.shape.layers),
            _ => inverse_root(inputs),
        };
        self.matrix(name, role, shape, Fill::Random { std });
    }

    fn matrix(&mut self, name: &str, role: Role, shape: &[usize], fill: Fill) {
        let dtype = self.mix.dtype(Place {
            shape: self.shape,
            role,
            layer: self.layer.unwrap_or_default(),
            row: shape.last().copied().unwrap_or(1),
        });
        self.push(&format!("{name}.weight"), dtype, shape, fill);
    }

    fn norm(&mut self, name: &str, size: usize) {
        self.vector(&format!("{name}.weight"), size, Fill::Around { mean: 1.0 });
    }

    fn vector(&mut self, name: &str, size: usize, fill: Fill) {
        self.push(name, DType::F32, &[size], fill);
    }

    fn push(&mut self, name: &str, dtype: DType, shape: &[usize], fill: Fill) {
        let name = match self.layer {
            Some(layer) => format!("blk.{layer}.{name}"),
            None => name.to_owned(),
        };
        let tensor = Tensor {
            name,
            dtype,
            shape: shape.to_vec(),
            fill,
        };
        self.tensors.push((self.layer, tensor));
    }
}

/// 1/√n
fn inverse_root(n: usize) -> f64 {
    1.0 / libm::sqrt(n as f64)
}
