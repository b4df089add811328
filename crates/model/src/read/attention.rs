//! Softmax attention of a layer.

use super::SpecError;
use super::keys::{self, Settings};
use super::layers::LayerReader;
use super::rope::{layer_rope, position_scale, rotary_dims};
use super::tensors::{Place, Tensors};
use crate::families::{Alibi, AttentionFacts, AttentionScale, HeadNormKind, Name, OutputGate, WindowedKvHeads};
use crate::spec::{
    Attention, AttentionRule, HeadNorm, KeyValue, Linear, Norm, NormKind, OwnKeyValue, RowOrder, RowSelection, Visible,
};

/// Heads of one layer.
#[derive(Clone, Copy)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl Heads {
    pub fn read(
        settings: &Settings,
        facts: &AttentionFacts,
        hidden: usize,
        (layer, visible): (usize, Visible),
    ) -> Result<Heads, SpecError> {
        let windowed = matches!(visible, Visible::Window(_));
        let own = |key| if windowed { settings.opt_usize(key) } else { Ok(None) };
        let heads = own(keys::WINDOW_HEADS)?.or(settings.opt_usize_at(keys::HEADS, layer)?);
        let heads = heads.ok_or_else(|| settings.missing(keys::HEADS))?;
        let full = |key| if windowed { Ok(None) } else { settings.opt_usize(key) };
        let kv_heads = full(keys::FULL_KV_HEADS)?.or(settings.opt_usize_at(keys::KV_HEADS, layer)?);
        let mut kv_heads = kv_heads.unwrap_or(heads);
        match facts.windowed_kv_heads {
            WindowedKvHeads::KeyOrTimes(key, times) if windowed && !settings.is_gguf() => {
                kv_heads = settings.opt_usize(key)?.unwrap_or(kv_heads * times);
            }
            _ => {}
        }
        if let Some([if_true, unless]) = facts.one_kv_head {
            let says = |key| settings.opt_bool(key).map(|flag| flag.unwrap_or(false));
            if !settings.is_gguf() && says(if_true)? && !says(unless)? {
                kv_heads = 1;
            }
        }
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 {
            let expected = format!("a divisor of the {heads} attention heads");
            return Err(settings.bad_value(keys::KV_HEADS, kv_heads, expected));
        }
        let key_dim = own(keys::WINDOW_HEAD_DIM)?.or(full(keys::FULL_HEAD_DIM)?);
        let key_dim = key_dim.or(settings.opt_usize_at(keys::HEAD_DIM, layer)?);
        let key_dim = key_dim.unwrap_or(hidden / heads);
        if key_dim == 0 || !key_dim.is_multiple_of(2) {
            return Err(settings.bad_value(keys::HEAD_DIM, key_dim, "an even number above zero"));
        }
        let value_dim = own(keys::WINDOW_VALUE_DIM)?.or(settings.opt_usize(keys::VALUE_DIM)?);
        let value_dim = value_dim.unwrap_or(key_dim);
        if value_dim == 0 {
            return Err(settings.bad_value(keys::VALUE_DIM, value_dim, "a number above zero"));
        }
        Ok(Heads {
            heads,
            kv_heads,
            key_dim,
            value_dim,
        })
    }
}

impl LayerReader<'_> {
    pub fn attention(&self, tensors: &mut Tensors, layer: usize) -> Result<Attention, SpecError> {
        let facts = &self.family.attention;
        let names = &self.family.names;
        let Visibility { visible, rotates } = self.visibility(tensors, layer)?;
        let heads = Heads::read(self.settings, facts, self.hidden, (layer, visible))?;
        let alibi = match facts.alibi {
            Alibi::Never => false,
            Alibi::Always => true,
            Alibi::Key(key) => self.settings.opt_bool(key)?.unwrap_or(false),
        };
        let rotates = rotates && !alibi;
        let rotary = rotary_dims(self.settings, facts.rope.fraction, heads.key_dim, visible)?;
        let order = self.row_order(heads.key_dim, rotary);
        let rope = match rotates {
            true => Some(layer_rope(self.settings, self.family, tensors, rotary, visible)?),
            false => None,
        };
        let rows = |count| HeadRows {
            heads: count,
            dim: heads.key_dim,
            order,
            rotates,
        };
        let places = self.projection_places(tensors, layer, heads);
        let query = reorder(tensors.linear_of(places[0], facts.qkv_bias)?, order);
        let kv = self.key_value(tensors, layer, &places, rows(heads.kv_heads))?;
        let width = heads.heads * heads.value_dim;
        let gate = self.output_gate(tensors, layer, heads)?;
        let softcap = match facts.softcap {
            true => self.settings.opt_f64(keys::SCORE_CAP)?.map(|cap| cap as f32),
            false => None,
        };
        Ok(Attention {
            heads: heads.heads,
            kv_heads: heads.kv_heads,
            key_dim: heads.key_dim,
            value_dim: heads.value_dim,
            query,
            query_norm: self.head_norm(tensors, (names.query_norm, layer), rows(heads.heads))?,
            kv,
            norm_after_rope: facts.norm_after_rope,
            rope,
            position_scale: position_scale(self.settings, facts.position_scale, rotates)?,
            rule: AttentionRule {
                visible,
                scale: self.attention_scale(heads)? * self.number(facts.key_scale)?,
                softcap,
                sinks: tensors.opt_vector(names.sinks, layer, "", heads.heads)?,
                alibi,
            },
            gate,
            output: tensors.linear_of(self.place(names.output, layer, [self.hidden, width]), facts.output_bias)?,
        })
    }

    /// Keys and values of a layer, computed or shared.
    fn key_value(
        &self,
        tensors: &mut Tensors,
        layer: usize,
        [_, key, value]: &[Place; 3],
        rows: HeadRows,
    ) -> Result<KeyValue, SpecError> {
        let facts = &self.family.attention;
        let names = &self.family.names;
        if let Some(earlier) = self.layer_shared_from(layer)? {
            // Some files hold what such a layer has no use for.
            for name in [names.key, names.value, names.key_norm] {
                tensors.ignore(name, layer, "weight");
            }
            return Ok(KeyValue::Shared { layer: earlier });
        }
        let groups = rows.heads;
        Ok(KeyValue::Own(Box::new(OwnKeyValue {
            key: reorder(tensors.linear_of(*key, facts.qkv_bias)?, rows.order),
            value: match facts.value_may_be_key && !tensors.has(value.name, layer, "weight") {
                true => None,
                false => Some(tensors.linear_of(*value, facts.qkv_bias)?),
            },
            key_norm: self.head_norm(tensors, (names.key_norm, layer), rows)?,
            value_norm: facts.value_norm.then(|| HeadNorm {
                norm: self.weightless_norm(),
                groups,
            }),
            value_scale: self.number(facts.value_scale)?,
        })))
    }

    fn output_gate(&self, tensors: &mut Tensors, layer: usize, heads: Heads) -> Result<Option<Linear>, SpecError> {
        let names = &self.family.names;
        let bias = self.family.attention.qkv_bias;
        let width = heads.heads * heads.value_dim;
        match self.family.attention.output_gate {
            OutputGate::None => Ok(None),
            OutputGate::Projection => {
                let rows = tensors.rows(names.output_gate, layer)?;
                if rows != width && rows != heads.heads {
                    return Err(self.bad_rows(tensors, names.output_gate, layer, rows, width));
                }
                tensors
                    .linear(names.output_gate, layer, [rows, self.hidden], bias)
                    .map(Some)
            }
            OutputGate::InQuery => {
                let mut place = self.place(names.query, layer, [heads.heads * 2 * heads.key_dim, self.hidden]);
                place.rows = RowSelection::grouped(heads.heads, 2 * heads.key_dim, heads.key_dim, heads.key_dim);
                tensors.linear_of(place, bias).map(Some)
            }
        }
    }

    fn head_norm(
        &self,
        tensors: &mut Tensors,
        (name, layer): (Name, usize),
        rows: HeadRows,
    ) -> Result<Option<HeadNorm>, SpecError> {
        let facts = &self.family.attention.head_norms;
        let HeadRows { heads, dim, order, .. } = rows;
        let is_gguf = self.settings.is_gguf();
        let wanted = match (facts.kind, facts.only_if) {
            (HeadNormKind::Never, _) => false,
            (HeadNormKind::WeightlessIfRotating, _) if !rows.rotates => false,
            (HeadNormKind::WeightlessIfRotating, _) if is_gguf => {
                let experts = self.settings.opt_usize(keys::EXPERTS)?;
                facts
                    .gguf_without_at_experts
                    .is_none_or(|without| experts != Some(without))
            }
            (_, Some(_)) if is_gguf => tensors.has(name, layer, "weight"),
            (_, Some((key, default))) => self.settings.opt_bool(key)?.unwrap_or(default),
            (_, None) => true,
        };
        if !wanted {
            // Switched off, weights that are there mean nothing.
            if facts.only_if.is_some() {
                tensors.ignore(name, layer, "weight");
            }
            return Ok(None);
        }
        let kind = (facts.norm, self.eps);
        let (mut norm, groups) = match facts.kind {
            HeadNormKind::Never => return Ok(None),
            HeadNormKind::WeightlessIfRotating => (self.weightless_norm(), heads),
            HeadNormKind::Shared => (tensors.norm_of(name, layer, dim, kind)?, heads),
            HeadNormKind::Own => (tensors.norm_of(name, layer, heads * dim, kind)?, heads),
            HeadNormKind::OwnTensors if self.settings.is_gguf() => {
                (tensors.norm_of(name, layer, heads * dim, kind)?, heads)
            }
            HeadNormKind::OwnTensors => (tensors.norm_of_heads(name, layer, (heads, dim), kind)?, heads),
            HeadNormKind::Row => (tensors.norm_of(name, layer, heads * dim, kind)?, 1),
        };
        // The weight's elements go where the rows of the projection went.
        if let Some(weight) = &mut norm.weight {
            weight.order = order;
        }
        Ok(Some(HeadNorm { norm, groups }))
    }

    fn weightless_norm(&self) -> Norm {
        Norm {
            kind: NormKind::Rms,
            weight: None,
            bias: None,
            eps: self.eps as f32,
        }
    }

    fn row_order(&self, head_dim: usize, rotary: usize) -> RowOrder {
        let rope = self.family.attention.rope;
        let pairs = if self.settings.is_gguf() {
            rope.gguf_pairs
        } else {
            rope.hf_pairs
        };
        if pairs {
            let rotary = if rope.whole_pairs { head_dim } else { rotary };
            RowOrder::Pairs { head_dim, rotary }
        } else {
            RowOrder::Plain
        }
    }

    fn attention_scale(&self, heads: Heads) -> Result<f32, SpecError> {
        let dim = match self.family.attention.scale {
            AttentionScale::One => return Ok(1.0),
            AttentionScale::Key(key) => match self.settings.opt_f64(key)? {
                Some(scale) => return Ok(scale as f32),
                None => heads.key_dim as f64,
            },
            AttentionScale::HeadDim => heads.key_dim as f64,
            AttentionScale::QueryScalar {
                hidden_per_head_at_layers,
            } => match self.settings.opt_f64(keys::QUERY_SCALAR)? {
                Some(scalar) => scalar,
                None if self.layers == hidden_per_head_at_layers => (self.hidden / heads.heads) as f64,
                None => heads.key_dim as f64,
            },
        };
        Ok((1.0 / dim.sqrt()) as f32)
    }
}

/// Rows of a projection to heads.
#[derive(Clone, Copy)]
struct HeadRows {
    heads: usize,
    dim: usize,
    order: RowOrder,
    rotates: bool,
}

/// What a layer sees, and whether it rotates.
pub struct Visibility {
    pub visible: Visible,
    pub rotates: bool,
}

pub fn reorder(mut linear: Linear, order: RowOrder) -> Linear {
    linear.weight.order = order;
    if let Some(bias) = &mut linear.bias {
        bias.order = order;
    }
    linear
}

impl<'a> LayerReader<'a> {
    /// A matrix of attention or of a dense block, which some checkpoints store the other way.
    pub fn place(&self, name: Name, layer: usize, shape: [usize; 2]) -> Place {
        Place {
            columns: self.family.ffn.hf_columns && !self.settings.is_gguf(),
            ..Place::whole(name, layer, shape)
        }
    }
}
