//! Gated delta nets.

use super::conv::Kernels;
use crate::families::{Bias, DeltaFacts, DeltaNames, Name};
use crate::read::SpecError;
use crate::read::layers::LayerReader;
use crate::read::tensors::{Place, Tensors};
use crate::spec::{Block, DeltaNet, KeySharing, Linear, Norm, NormKind, RowSelection, Vector, VectorMap};

/// Added to the squares of queries and keys: the same in every published model.
const UNIT_EPS: f32 = 1e-6;

/// Sizes of one layer.
#[derive(Clone, Copy)]
struct Sizes {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
}

impl Sizes {
    fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    fn values(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Value heads that share a key head.
    fn group(self) -> usize {
        self.value_heads / self.key_heads
    }
}

impl LayerReader<'_> {
    /// The layer's delta net, if it has one.
    pub fn delta_net(
        &self,
        tensors: &mut Tensors,
        facts: &DeltaFacts,
        layer: usize,
    ) -> Result<Option<Block>, SpecError> {
        let names = &facts.names;
        if !tensors.has(names.rate, layer, "") {
            return Ok(None);
        }
        let kernels = Kernels::read(tensors, names.convs, layer)?;
        let sizes = self.delta_sizes(tensors, facts, layer, kernels.channels)?;
        let (keys, values) = (sizes.keys(), sizes.values());
        let inputs = Inputs {
            tensors,
            names,
            layer,
            hidden: self.hidden,
        }
        .read(sizes)?;
        let [query, key, value] = inputs.query_key_value;
        let gguf = self.settings.is_gguf();
        let doubled = match facts.double_beta {
            None => false,
            Some(key) => self.settings.opt_bool(key)?.unwrap_or(true),
        };
        Ok(Some(Block::DeltaNet(Box::new(DeltaNet {
            key_heads: sizes.key_heads,
            value_heads: sizes.value_heads,
            key_dim: sizes.key_dim,
            value_dim: sizes.value_dim,
            key_sharing: if gguf {
                facts.gguf_sharing
            } else {
                KeySharing::Neighbours
            },
            query,
            key,
            value,
            convs: [
                kernels.part(0, keys),
                kernels.part(keys, keys),
                kernels.part(2 * keys, values),
            ],
            activation: self.activation()?,
            unit_eps: UNIT_EPS,
            decay: inputs.decay,
            rate: Vector {
                map: if gguf { VectorMap::Plain } else { VectorMap::NegativeExp },
                ..tensors.vector(names.rate, layer, "", sizes.value_heads)?
            },
            beta: inputs.beta,
            beta_scale: if doubled { 2.0 } else { 1.0 },
            norm: Norm {
                kind: NormKind::Rms,
                weight: Some(tensors.vector(names.norm, layer, "weight", sizes.value_dim)?),
                bias: None,
                eps: facts.norm_eps.unwrap_or(self.eps) as f32,
            },
            gate: inputs.gate,
            gate_activation: facts.gate_activation,
            output: tensors.linear(names.output, layer, [self.hidden, values], Bias::Stored)?,
        }))))
    }

    fn delta_sizes(
        &self,
        tensors: &Tensors,
        facts: &DeltaFacts,
        layer: usize,
        channels: usize,
    ) -> Result<Sizes, SpecError> {
        let names = &facts.names;
        let value_heads = tensors.elements(names.rate, layer, "")?;
        let value_dim = tensors.elements(names.norm, layer, "weight")?;
        let key_heads = self.settings.opt_usize(facts.key_heads)?.unwrap_or(value_heads);
        if key_heads == 0 || !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a divisor of the {value_heads} value heads");
            return Err(self.settings.bad_value(facts.key_heads, key_heads, expected));
        }
        let keys = channels.saturating_sub(value_heads * value_dim);
        if value_dim == 0 || keys == 0 || !keys.is_multiple_of(2 * key_heads) {
            let expected = format!(
                "a number that divides the queries and keys among {channels} convolved channels, \
                 of which {value_heads} × {value_dim} are values"
            );
            return Err(self.settings.bad_value(facts.key_heads, key_heads, expected));
        }
        Ok(Sizes {
            key_heads,
            value_heads,
            key_dim: keys / 2 / key_heads,
            value_dim,
        })
    }
}

/// What a delta net projects its input to.
struct Projections {
    query_key_value: [Linear; 3],
    gate: Vec<Linear>,
    beta: Linear,
    decay: Vec<Linear>,
}

/// Finds those projections, in the ways in which files hold them.
struct Inputs<'a, 'b> {
    tensors: &'a mut Tensors<'b>,
    names: &'a DeltaNames,
    layer: usize,
    hidden: usize,
}

impl Inputs<'_, '_> {
    fn read(mut self, sizes: Sizes) -> Result<Projections, SpecError> {
        let names = self.names;
        let (query_key_value, gate) = self.query_key_value_gate(sizes)?;
        let (heads, group) = (sizes.value_heads, sizes.group());
        let (beta, mut decay) = if self.has(names.beta_decay) {
            let mut part = |first| {
                let rows = RowSelection::grouped(sizes.key_heads, 2 * group, first, group);
                self.part(names.beta_decay, 2 * heads, rows)
            };
            (part(0)?, vec![part(group)?])
        } else {
            (self.whole(names.beta, heads)?, self.low_rank(names.decay)?)
        };
        if let Some(last) = decay.last_mut() {
            let rows = last.weight.outputs();
            if rows != heads && rows != heads * sizes.key_dim {
                return Err(SpecError::BadShape {
                    tensor: last.weight.tensor.clone(),
                    found: vec![rows, last.weight.cols],
                    expected: vec![heads, last.weight.cols],
                });
            }
            last.bias = Some(self.tensors.vector(names.offset, self.layer, "", rows)?);
        }
        Ok(Projections {
            query_key_value,
            gate,
            beta,
            decay,
        })
    }

    fn query_key_value_gate(&mut self, sizes: Sizes) -> Result<([Linear; 3], Vec<Linear>), SpecError> {
        let names = self.names;
        let (keys, values) = (sizes.keys(), sizes.values());
        if self.has(names.qkvz) {
            let (key, value) = (sizes.key_dim, sizes.group() * sizes.value_dim);
            let total = 2 * keys + 2 * values;
            let mut part = |first, width| {
                let rows = RowSelection::grouped(sizes.key_heads, 2 * key + 2 * value, first, width);
                self.part(names.qkvz, total, rows)
            };
            let three = [part(0, key)?, part(key, key)?, part(2 * key, value)?];
            return Ok((three, vec![part(2 * key + value, value)?]));
        }
        let three = if self.has(names.qkv) {
            let total = 2 * keys + values;
            let mut part = |first, width| self.part(names.qkv, total, RowSelection::stretch(first, width));
            [part(0, keys)?, part(keys, keys)?, part(2 * keys, values)?]
        } else {
            [
                self.whole(names.query, keys)?,
                self.whole(names.key, keys)?,
                self.whole(names.value, values)?,
            ]
        };
        let gate = self.low_rank(names.gate)?;
        match gate.last() {
            Some(last) if last.weight.outputs() != values => Err(SpecError::BadShape {
                tensor: last.weight.tensor.clone(),
                found: vec![last.weight.outputs(), last.weight.cols],
                expected: vec![values, last.weight.cols],
            }),
            _ => Ok((three, gate)),
        }
    }

    fn has(&self, name: Name) -> bool {
        self.tensors.has(name, self.layer, "weight")
    }

    fn part(&mut self, name: Name, outputs: usize, rows: RowSelection) -> Result<Linear, SpecError> {
        let place = Place::part(name, self.layer, [outputs, self.hidden], rows);
        self.tensors.linear_of(place, Bias::Stored)
    }

    fn whole(&mut self, name: Name, outputs: usize) -> Result<Linear, SpecError> {
        self.part(name, outputs, RowSelection::all(outputs))
    }

    /// Matrices that follow each other, as wide as they are stored.
    fn low_rank(&mut self, names: &[Name]) -> Result<Vec<Linear>, SpecError> {
        let mut inputs = self.hidden;
        let mut linears = Vec::with_capacity(names.len());
        for &name in names {
            let outputs = self.tensors.rows(name, self.layer)?;
            linears.push(self.tensors.linear(name, self.layer, [outputs, inputs], Bias::Stored)?);
            inputs = outputs;
        }
        Ok(linears)
    }
}
