//! The layers of a decoder, each with its choices resolved.

use serde_json::Value;

use super::keys::{self, Settings, wrong_type};
use super::rope::{layer_rope, rotary_dims};
use super::tensors::Tensors;
use super::{NormKind, SpecError};
use crate::families::{AttentionScale, Bias, Family, Name, RopeLayers, Windows};
use crate::spec::{Activation, Attention, DenseFfn, Ffn, Layer, Linear, Mixer, Norm, RowOrder, Sublayer};

pub struct LayerReader<'a> {
    settings: &'a Settings<'a>,
    family: &'static Family,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    eps: f64,
}

impl<'a> LayerReader<'a> {
    pub fn new(settings: &'a Settings<'a>, family: &'static Family, hidden: usize) -> Result<Self, SpecError> {
        let heads = settings.usize(keys::HEADS)?;
        let kv_heads = settings.opt_usize(keys::KV_HEADS)?.unwrap_or(heads);
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
            return Err(SpecError::BadValue {
                key: settings.spelling(keys::KV_HEADS),
                value: kv_heads.to_string(),
                expected: format!("a divisor of the {heads} attention heads"),
            });
        }
        let head_dim = match settings.opt_usize(keys::HEAD_DIM)? {
            Some(dim) => dim,
            None => hidden / heads,
        };
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(SpecError::BadValue {
                key: settings.spelling(keys::HEAD_DIM),
                value: head_dim.to_string(),
                expected: "an even number above zero".into(),
            });
        }
        let layers = settings.usize(keys::LAYERS)?;
        let ffn = settings.usize(keys::FFN)?;
        let eps = settings.f64(keys::RMS_EPS)?;
        Ok(LayerReader {
            settings,
            family,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn,
            eps,
        })
    }

    /// Every layer. The first missing tensor ends it, so a false layer count costs nothing.
    pub fn read(&self, tensors: &mut Tensors) -> Result<Vec<Layer>, SpecError> {
        let windows = self.windows()?;
        let rotates = self.rotating_layers()?;
        let activation = self.activation()?;
        (0..self.layers)
            .map(|layer| {
                let attention = self.attention(tensors, layer, window_of(&windows, layer), rotates.at(layer))?;
                let ffn = self.dense_ffn(tensors, layer, activation)?;
                Ok(Layer {
                    mixer: Sublayer {
                        pre: Some(self.norm(tensors, self.family.names.attention_norm, layer)?),
                        block: Mixer::Attention(attention),
                        post: self.post_norm(tensors, self.family.names.attention_post_norm, layer)?,
                    },
                    ffn: Sublayer {
                        pre: Some(self.norm(tensors, self.family.names.ffn_norm, layer)?),
                        block: Ffn::Dense(ffn),
                        post: self.post_norm(tensors, self.family.names.ffn_post_norm, layer)?,
                    },
                })
            })
            .collect()
    }

    fn norm(&self, tensors: &mut Tensors, name: Name, layer: usize) -> Result<Norm, SpecError> {
        tensors.norm(name, layer, self.hidden, self.eps, NormKind::Rms)
    }

    fn post_norm(&self, tensors: &mut Tensors, name: Name, layer: usize) -> Result<Option<Norm>, SpecError> {
        self.family
            .post_norms
            .then(|| self.norm(tensors, name, layer))
            .transpose()
    }

    fn head_norm(&self, tensors: &mut Tensors, name: Name, layer: usize) -> Result<Option<Norm>, SpecError> {
        let norm = |tensors: &mut Tensors| tensors.norm(name, layer, self.head_dim, self.eps, NormKind::Rms);
        self.family.head_norms.then(|| norm(tensors)).transpose()
    }

    fn attention(
        &self,
        tensors: &mut Tensors,
        layer: usize,
        window: Option<usize>,
        rotates: bool,
    ) -> Result<Attention, SpecError> {
        let names = &self.family.names;
        let (query_rows, kv_rows) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let qkv_bias = self.bias(tensors, self.family.qkv_bias, names.query, layer)?;
        let output_bias = self.bias(tensors, self.family.output_bias, names.output, layer)?;
        let rotary = rotary_dims(self.settings, self.head_dim)?;
        let order = self.row_order(rotary);
        let rope = if rotates {
            Some(layer_rope(
                self.settings,
                self.family,
                tensors,
                rotary,
                window.is_some(),
            )?)
        } else {
            None
        };
        let softcap = if self.family.softcaps {
            self.settings.opt_f64(keys::SCORE_CAP)?
        } else {
            None
        };
        Ok(Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            query: reorder(
                tensors.linear(names.query, layer, [query_rows, self.hidden], qkv_bias)?,
                order,
            ),
            key: reorder(
                tensors.linear(names.key, layer, [kv_rows, self.hidden], qkv_bias)?,
                order,
            ),
            value: tensors.linear(names.value, layer, [kv_rows, self.hidden], qkv_bias)?,
            output: tensors.linear(names.output, layer, [self.hidden, query_rows], output_bias)?,
            query_norm: self.head_norm(tensors, names.query_norm, layer)?,
            key_norm: self.head_norm(tensors, names.key_norm, layer)?,
            rope,
            window,
            scale: self.attention_scale()?,
            softcap: softcap.map(|cap| cap as f32),
        })
    }

    fn dense_ffn(&self, tensors: &mut Tensors, layer: usize, activation: Activation) -> Result<DenseFfn, SpecError> {
        let names = &self.family.names;
        let bias = self.bias(tensors, self.family.mlp_bias, names.up, layer)?;
        Ok(DenseFfn {
            activation,
            gate: tensors.linear(names.gate, layer, [self.ffn, self.hidden], bias)?,
            up: tensors.linear(names.up, layer, [self.ffn, self.hidden], bias)?,
            down: tensors.linear(names.down, layer, [self.hidden, self.ffn], bias)?,
        })
    }

    fn bias(&self, tensors: &Tensors, rule: Bias, name: Name, layer: usize) -> Result<bool, SpecError> {
        match rule {
            Bias::Never => Ok(false),
            Bias::Always => Ok(true),
            Bias::Key(_) if self.settings.is_gguf() => Ok(tensors.has(name, layer, "bias")),
            Bias::Key(key) => Ok(self.settings.opt_bool(key)?.unwrap_or(false)),
        }
    }

    fn row_order(&self, rotary: usize) -> RowOrder {
        let rows = self.family.rope_rows;
        let pairs = if self.settings.is_gguf() {
            rows.gguf_pairs
        } else {
            rows.hf_pairs
        };
        if pairs {
            RowOrder::Pairs {
                head_dim: self.head_dim,
                rotary,
            }
        } else {
            RowOrder::Plain
        }
    }

    fn activation(&self) -> Result<Activation, SpecError> {
        let Some(name) = self.settings.opt_str(keys::ACTIVATION)? else {
            return Ok(self.family.activation);
        };
        Activation::from_name(name).ok_or_else(|| SpecError::Unsupported {
            key: self.settings.spelling(keys::ACTIVATION),
            value: name.into(),
        })
    }

    fn attention_scale(&self) -> Result<f32, SpecError> {
        let dim = match self.family.attention_scale {
            AttentionScale::HeadDim => self.head_dim as f64,
            AttentionScale::QueryScalar {
                hidden_per_head_at_layers,
            } => match self.settings.opt_f64(keys::QUERY_SCALAR)? {
                Some(scalar) => scalar,
                None if self.layers == hidden_per_head_at_layers => (self.hidden / self.heads) as f64,
                None => self.head_dim as f64,
            },
        };
        Ok((1.0 / dim.sqrt()) as f32)
    }

    fn windows(&self) -> Result<LayerWindows<'a>, SpecError> {
        let window = self.settings.opt_usize(keys::WINDOW)?;
        if window == Some(0) {
            let expected = "a number of positions above zero".into();
            return Err(SpecError::BadValue {
                key: self.settings.spelling(keys::WINDOW),
                value: "0".into(),
                expected,
            });
        }
        if matches!(self.family.windows, Windows::Never) {
            return Ok(LayerWindows::None);
        }
        if let Some(types) = self.settings.opt_per_layer(keys::LAYER_TYPES, self.layers)? {
            return self.typed_windows(types, window);
        }
        let Some(window) = window else {
            return Ok(LayerWindows::None);
        };
        Ok(match self.family.windows {
            Windows::Never => LayerWindows::None,
            Windows::All => LayerWindows::From { first: 0, window },
            Windows::Typed if self.settings.opt_bool(keys::USE_WINDOW)? == Some(false) => LayerWindows::None,
            Windows::Typed => {
                return Err(SpecError::MissingKey {
                    key: self.settings.spelling(keys::LAYER_TYPES),
                });
            }
            Windows::Upper if self.settings.opt_bool(keys::USE_WINDOW)?.unwrap_or(false) => LayerWindows::From {
                first: self.settings.usize(keys::FIRST_WINDOW_LAYER)?,
                window,
            },
            Windows::Upper => LayerWindows::None,
            Windows::Period(default) => {
                let period = self.settings.opt_usize(keys::WINDOW_PERIOD)?.unwrap_or(default).max(1);
                LayerWindows::Period { period, window }
            }
        })
    }

    fn typed_windows(&self, types: &'a [Value], window: Option<usize>) -> Result<LayerWindows<'a>, SpecError> {
        for kind in types {
            match kind.as_str() {
                Some("full_attention") => {}
                Some("sliding_attention") if window.is_some() => {}
                Some("sliding_attention") => {
                    return Err(SpecError::MissingKey {
                        key: self.settings.spelling(keys::WINDOW),
                    });
                }
                _ => {
                    let expected = "full_attention or sliding_attention";
                    return Err(wrong_type("layer_types", expected, kind));
                }
            }
        }
        Ok(LayerWindows::Typed {
            types,
            window: window.unwrap_or(0),
        })
    }

    fn rotating_layers(&self) -> Result<RotatingLayers<'a>, SpecError> {
        let RopeLayers::Listed {
            list,
            period,
            default_period,
        } = self.family.rope_layers
        else {
            return Ok(RotatingLayers::All);
        };
        match self.settings.opt_per_layer(list, self.layers)? {
            Some(flags) => Ok(RotatingLayers::Listed(flags)),
            None => {
                let period = self.settings.opt_usize(period)?.unwrap_or(default_period).max(1);
                Ok(RotatingLayers::AllButEvery(period))
            }
        }
    }
}

fn reorder(mut linear: Linear, order: RowOrder) -> Linear {
    linear.weight.order = order;
    if let Some(bias) = &mut linear.bias {
        bias.order = order;
    }
    linear
}

enum LayerWindows<'a> {
    None,
    From { first: usize, window: usize },
    Period { period: usize, window: usize },
    Typed { types: &'a [Value], window: usize },
}

fn window_of(windows: &LayerWindows, layer: usize) -> Option<usize> {
    match *windows {
        LayerWindows::None => None,
        LayerWindows::From { first, window } => (layer >= first).then_some(window),
        LayerWindows::Period { period, window } => (!(layer + 1).is_multiple_of(period)).then_some(window),
        LayerWindows::Typed { types, window } => types
            .get(layer)
            .is_some_and(|kind| kind == "sliding_attention")
            .then_some(window),
    }
}

enum RotatingLayers<'a> {
    All,
    Listed(&'a [Value]),
    AllButEvery(usize),
}

impl RotatingLayers<'_> {
    fn at(&self, layer: usize) -> bool {
        match self {
            RotatingLayers::All => true,
            RotatingLayers::Listed(flags) => flags.get(layer).is_some_and(|flag| flag != 0),
            RotatingLayers::AllButEvery(period) => !(layer + 1).is_multiple_of(*period),
        }
    }
}
