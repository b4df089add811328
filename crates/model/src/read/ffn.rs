//! Dense feed-forward blocks, alone or as a shared expert.

use goldcrest_format::Config;

use super::SpecError;
use super::keys::{self, Key};
use super::layers::LayerReader;
use super::tensors::{Place, Tensors};
use crate::families::Name;
use crate::spec::{Activation, DenseFfn, RowSelection};

/// Names of a block's matrices.
#[derive(Clone, Copy)]
pub struct FfnNames {
    pub gate: Name,
    pub up: Name,
    pub down: Name,
}

impl LayerReader<'_> {
    pub fn dense_ffn(&self, tensors: &mut Tensors, layer: usize) -> Result<DenseFfn, SpecError> {
        let names = &self.family.names;
        let names = FfnNames {
            gate: names.gate,
            up: names.up,
            down: names.down,
        };
        self.ffn(tensors, layer, names)
    }

    /// A block whose width is that of its own tensors: models give several blocks of one layer different widths. The gate of a gated family
    /// is a tensor of its own or lies before the up in `up`, which then has twice the outputs that `down` takes.
    pub fn ffn(&self, tensors: &mut Tensors, layer: usize, names: FfnNames) -> Result<DenseFfn, SpecError> {
        let bias = self.family.ffn.bias;
        let place = |name, shape| self.place(name, layer, shape);
        let columns = place(names.up, [1, 1]).columns;
        let oriented = |[rows, cols]: [usize; 2]| if columns { [cols, rows] } else { [rows, cols] };
        let [stored, _] = oriented(tensors.shape(names.up, layer)?);
        let [_, width] = oriented(tensors.shape(names.down, layer)?);
        let separate = tensors.has(names.gate, layer, "weight");
        let within_up = stored == 2 * width || tensors.spelled(names.gate, layer).is_none();
        let (gate, up) = if self.family.ffn.gated && !separate && within_up {
            let half = |first| Place {
                rows: RowSelection::stretch(first, width),
                ..place(names.up, [2 * width, self.hidden])
            };
            (Some(half(0)), half(width))
        } else {
            let whole = |name| place(name, [width, self.hidden]);
            (self.family.ffn.gated.then(|| whole(names.gate)), whole(names.up))
        };
        Ok(DenseFfn {
            activation: self.layer_activation(tensors, layer)?,
            gate: gate.map(|gate| tensors.linear_of(gate, bias)).transpose()?,
            gate_scale: self.number(self.family.ffn.gate_scale)?,
            up: tensors.linear_of(up, bias)?,
            down: tensors.linear_of(place(names.down, [self.hidden, width]), bias)?,
        })
    }

    /// The activation of a layer: the same for all, or with parameters of its own.
    fn layer_activation(&self, tensors: &mut Tensors, layer: usize) -> Result<Activation, SpecError> {
        let parameters = self.family.names.xielu;
        let [alpha_p, alpha_n, beta, eps] = match self.settings.checkpoint().config() {
            Config::Hf(_) if self.settings.opt_str(keys::ACTIVATION)? == Some("xielu") => {
                let mut read = |part| tensors.scalar(parameters, layer, part);
                [read("alpha_p")?, read("alpha_n")?, read("beta")?, read("eps")?]
            }
            Config::Gguf(_) => {
                let keys = ["alpha_p", "alpha_n", "beta", "eps"].map(|part| format!("xielu.{part}"));
                let mut values = [0.0; 4];
                for (value, key) in values.iter_mut().zip(&keys) {
                    match self.settings.gguf_f32_at(key, layer)? {
                        Some(read) => *value = read,
                        None => return self.activation(),
                    }
                }
                values
            }
            Config::Hf(_) => return self.activation(),
        };
        let softplus = |x: f32| libm::log1p(libm::exp(f64::from(x)));
        Ok(Activation::Xielu {
            alpha_p: softplus(alpha_p) as f32,
            alpha_n: (f64::from(beta) + softplus(alpha_n)) as f32,
            beta,
            eps,
        })
    }

    pub fn activation(&self) -> Result<Activation, SpecError> {
        self.activation_of(keys::ACTIVATION, self.family.ffn.activation)
    }

    /// The activation that the configuration names here; absent: `default`.
    pub fn activation_of(&self, key: Key, default: Activation) -> Result<Activation, SpecError> {
        let Some(name) = self.settings.opt_str(key)? else {
            return Ok(default);
        };
        Activation::from_name(name).ok_or_else(|| self.settings.unsupported(key, name))
    }
}
