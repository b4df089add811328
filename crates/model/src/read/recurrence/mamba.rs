//! State spaces of a layer: Mamba and Mamba-2.

use serde_json::Value;

use super::conv::Kernels;
use crate::families::{Bias, DtLimits, Mamba2Facts, MambaFacts, MambaNames, Name};
use crate::read::SpecError;
use crate::read::keys::{self, json_f64, wrong_type};
use crate::read::layers::LayerReader;
use crate::read::tensors::{Place, Tensors};
use crate::spec::{Activation, Block, GatedNorm, Mamba, Mamba2, RowOrder, RowSelection, Vector, VectorMap};

/// Sizes of a Mamba-2 block.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    head_dim: usize,
    groups: usize,
    state_dim: usize,
}

impl Sizes {
    /// Of x, and of the gate.
    fn channels(self) -> usize {
        self.heads * self.head_dim
    }

    /// Of B, and of C.
    fn shared(self) -> usize {
        self.groups * self.state_dim
    }
}

impl LayerReader<'_> {
    /// The layer's selective scan, if it has one.
    pub fn mamba(&self, tensors: &mut Tensors, facts: &MambaFacts, layer: usize) -> Result<Option<Block>, SpecError> {
        let names = &facts.names;
        if !tensors.has(names.input, layer, "weight") {
            return Ok(None);
        }
        if self.settings.opt_bool(keys::NORMED_DT_B_C)? == Some(true) {
            return Err(self.settings.unsupported(keys::NORMED_DT_B_C, "norms of dt, B and C"));
        }
        let channels = self.channels(tensors, names, layer)?;
        let rank = tensors.shape(names.dt, layer)?[1];
        let state_dim = self.positive(keys::STATE_DIM, layer)?;
        let projected = [2 * channels, self.hidden];
        let [x, gate] = stacked((names.input, layer), projected, [channels, channels]);
        let low = [rank + 2 * state_dim, channels];
        let [dt_low, b, c] = stacked((names.low, layer), low, [rank, state_dim, state_dim]);
        let mut rate = self.rate(tensors, names, layer, channels * state_dim)?;
        rate.order = RowOrder::Transposed {
            rows: channels,
            cols: state_dim,
        };
        Ok(Some(Block::Mamba(Box::new(Mamba {
            channels,
            state_dim,
            gate: tensors.linear_of(gate, Bias::Stored)?,
            x: tensors.linear_of(x, Bias::Stored)?,
            conv: self.kernels(tensors, names.conv, layer, channels)?.part(0, channels),
            activation: self.activation_of(facts.activation, Activation::Silu)?,
            dt_low: tensors.linear_of(dt_low, Bias::Stored)?,
            b: tensors.linear_of(b, Bias::Stored)?,
            c: tensors.linear_of(c, Bias::Stored)?,
            dt: tensors.linear(names.dt, layer, [channels, rank], Bias::Always)?,
            rate,
            skip: tensors.vector(names.skip, layer, "", channels)?,
            output: tensors.linear(names.output, layer, [self.hidden, channels], Bias::Stored)?,
        }))))
    }

    /// The layer's state space of heads, if it has one.
    pub fn mamba2(&self, tensors: &mut Tensors, facts: &Mamba2Facts, layer: usize) -> Result<Option<Block>, SpecError> {
        let names = &facts.names;
        if !tensors.has(names.input, layer, "weight") {
            return Ok(None);
        }
        let sizes = self.mamba2_sizes(tensors, names, layer)?;
        let (channels, shared, heads) = (sizes.channels(), sizes.shared(), sizes.heads);
        let projected = [2 * channels + 2 * shared + heads, self.hidden];
        let widths = [channels, channels, shared, shared, heads];
        let [gate, x, b, c, dt] = stacked((names.input, layer), projected, widths);
        let kernels = self.kernels(tensors, names.conv, layer, channels + 2 * shared)?;
        let convs = [
            kernels.part(0, channels),
            kernels.part(channels, shared),
            kernels.part(channels + shared, shared),
        ];
        let mut scales = [1.0; 5];
        for (scale, number) in scales.iter_mut().zip(facts.scales) {
            *scale = self.number(number)?;
        }
        Ok(Some(Block::Mamba2(Box::new(Mamba2 {
            heads,
            head_dim: sizes.head_dim,
            groups: sizes.groups,
            state_dim: sizes.state_dim,
            gate: tensors.linear_of(gate, Bias::Stored)?,
            x: tensors.linear_of(x, Bias::Stored)?,
            b: tensors.linear_of(b, Bias::Stored)?,
            c: tensors.linear_of(c, Bias::Stored)?,
            dt: tensors.linear_of(dt, Bias::Stored)?,
            dt_bias: tensors.vector(names.dt_bias, layer, "", heads)?,
            convs,
            activation: self.activation_of(facts.activation, Activation::Silu)?,
            dt_limits: self.dt_limits(facts.dt_limits)?,
            rate: self.rate(tensors, names, layer, heads)?,
            skip: tensors.vector(names.skip, layer, "", heads)?,
            norm: self.gated_norm(tensors, facts, layer, sizes)?,
            output: tensors.linear(names.output, layer, [self.hidden, channels], Bias::Stored)?,
            scales,
        }))))
    }

    /// Inputs of the output projection.
    fn channels(&self, tensors: &Tensors, names: &MambaNames, layer: usize) -> Result<usize, SpecError> {
        tensors.shape(names.output, layer).map(|[_, channels]| channels)
    }

    fn mamba2_sizes(&self, tensors: &Tensors, names: &MambaNames, layer: usize) -> Result<Sizes, SpecError> {
        let channels = self.channels(tensors, names, layer)?;
        let heads = self.positive(keys::STATE_HEADS, layer)?;
        let groups = self.positive(keys::STATE_GROUPS, layer)?;
        let state_dim = self.positive(keys::STATE_DIM, layer)?;
        if channels < heads || !channels.is_multiple_of(heads) {
            let expected = format!("a divisor of the {channels} channels");
            return Err(self.settings.bad_value(keys::STATE_HEADS, heads, expected));
        }
        if !heads.is_multiple_of(groups) {
            let expected = format!("a divisor of the {heads} heads");
            return Err(self.settings.bad_value(keys::STATE_GROUPS, groups, expected));
        }
        Ok(Sizes {
            heads,
            head_dim: channels / heads,
            groups,
            state_dim,
        })
    }

    /// The kernels of `channels` channels, as long as the configuration says.
    fn kernels(&self, tensors: &mut Tensors, name: Name, layer: usize, channels: usize) -> Result<Kernels, SpecError> {
        let kernels = Kernels::read(tensors, &[name], layer)?;
        let wanted = self.settings.opt_usize(keys::CONV_KERNEL)?.unwrap_or(kernels.kernel);
        if kernels.channels != channels || kernels.kernel != wanted {
            return Err(SpecError::BadShape {
                tensor: tensors.spelled(name, layer).unwrap_or_default(),
                found: vec![kernels.channels, kernels.kernel],
                expected: vec![channels, wanted],
            });
        }
        Ok(kernels)
    }

    fn rate(&self, tensors: &mut Tensors, names: &MambaNames, layer: usize, len: usize) -> Result<Vector, SpecError> {
        let mut rate = tensors.vector(names.rate, layer, "", len)?;
        if !self.settings.is_gguf() {
            rate.map = VectorMap::NegativeExp;
        }
        Ok(rate)
    }

    fn gated_norm(
        &self,
        tensors: &mut Tensors,
        facts: &Mamba2Facts,
        layer: usize,
        sizes: Sizes,
    ) -> Result<Option<GatedNorm>, SpecError> {
        let gguf = self.settings.is_gguf();
        let says = |key, default| self.settings.opt_bool(key).map(|flag| flag.unwrap_or(default));
        let wanted = match facts.norm.only_if {
            None => true,
            Some(_) if gguf => tensors.has(facts.names.norm, layer, "weight"),
            Some(key) => says(key, false)?,
        };
        if !wanted {
            return Ok(None);
        }
        let gate_last = match facts.norm.gate_last {
            Some(key) if !gguf => says(key, true)?,
            _ => false,
        };
        Ok(Some(GatedNorm {
            norm: tensors.norm(facts.names.norm, layer, sizes.channels())?,
            groups: if facts.norm.grouped { sizes.groups } else { 1 },
            gate_first: !gate_last,
        }))
    }

    fn dt_limits(&self, limits: DtLimits) -> Result<[f32; 2], SpecError> {
        match limits {
            DtLimits::AtLeast(key, default) => {
                let low = self.settings.opt_f64(key)?.map_or(default, |low| low as f32);
                Ok([low, f32::INFINITY])
            }
            DtLimits::Key(key) => {
                let Some((name, value)) = self.settings.hf_alias(key) else {
                    return Ok([0.0, f32::INFINITY]);
                };
                match value.as_array().map(Vec::as_slice) {
                    Some([low, high]) => Ok([limit(name, low)?, limit(name, high)?]),
                    _ => Err(wrong_type(name, "the least and the most", value)),
                }
            }
        }
    }
}

/// The parts of a projection of the shape `shape` whose outputs, so many each, follow one another.
fn stacked<const N: usize>((name, layer): (Name, usize), shape: [usize; 2], widths: [usize; N]) -> [Place; N] {
    let mut first = 0;
    widths.map(|width| {
        first += width;
        Place::part(name, layer, shape, RowSelection::stretch(first - width, width))
    })
}

/// JSON has no infinity: some writers put an object in its place.
fn limit(name: &str, value: &Value) -> Result<f32, SpecError> {
    match value.get("__float__").and_then(Value::as_str) {
        Some("Infinity") => Ok(f32::INFINITY),
        _ => json_f64(name, value).map(|limit| limit as f32),
    }
}
