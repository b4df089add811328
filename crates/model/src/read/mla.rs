//! Latent attention of a layer.

use super::SpecError;
use super::attention::{Visibility, reorder};
use super::keys;
use super::layers::LayerReader;
use super::rope::{latent_score_factor, layer_rope, position_scale, rotary_fraction};
use super::tensors::{Place, Tensors};
use crate::families::{Bias, MlaFacts, Name};
use crate::spec::{
    AttentionRule, Linear, Matrix, Mla, MlaQuery, Norm, NormKind, Rope, RowOrder, RowSelection, Storage, Visible,
};

/// Of the norms of latents, in every published model: none takes that of the configuration.
const LATENT_EPS: f64 = 1e-6;

/// Sizes of one layer.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    nope_dim: usize,
    rope_dim: usize,
    value_dim: usize,
    latent_dim: usize,
}

impl LayerReader<'_> {
    /// The layer's latent attention, if it has a projection to a latent.
    pub fn mla(&self, tensors: &mut Tensors, layer: usize) -> Result<Option<Mla>, SpecError> {
        let Some(facts) = self.family.mla else {
            return Ok(None);
        };
        let names = &facts.names;
        if !tensors.has(names.latent, layer, "weight") {
            return Ok(None);
        }
        let Visibility { visible, rotates } = self.visibility(tensors, layer)?;
        let sizes = self.mla_sizes(tensors, layer)?;
        let Sizes {
            heads,
            rope_dim,
            value_dim,
            latent_dim,
            ..
        } = sizes;
        let order = self.pairs(rope_dim)?;
        let query = self.mla_query(tensors, layer, (sizes, order))?;
        let part = |rows| Place::part(names.latent, layer, [latent_dim + rope_dim, self.hidden], rows);
        let bias = self.family.attention.qkv_bias;
        let latent = tensors.linear_of(part(RowSelection::stretch(0, latent_dim)), bias)?;
        let rope_key = tensors.linear_of(part(RowSelection::stretch(latent_dim, rope_dim)), bias)?;
        let (key_up, value_up) = mla_up(tensors, layer, (&facts, sizes))?;
        let rope = match rotates {
            true => Some(self.mla_rope(tensors, sizes, visible)?),
            false => None,
        };
        let query_latent = query.inputs();
        let mut mla = Mla {
            heads,
            nope_dim: sizes.nope_dim,
            rope_dim,
            value_dim,
            latent_dim,
            query,
            latent,
            latent_norm: latent_norm(tensors, names.latent_norm, layer, latent_dim)?,
            rope_key: reorder(rope_key, order),
            key_up,
            value_up,
            rope,
            position_scale: position_scale(self.settings, self.family.attention.position_scale, rotates)?,
            latent_scales: [query_latent, latent_dim].map(|width| match facts.scale_latents {
                true => (self.hidden as f64 / width as f64).sqrt() as f32,
                false => 1.0,
            }),
            rule: AttentionRule {
                visible,
                scale: self.mla_scale(sizes, visible)?,
                softcap: None,
                sinks: None,
                alibi: false,
            },
            output: tensors.linear(
                self.family.names.output,
                layer,
                [self.hidden, heads * value_dim],
                self.family.attention.output_bias,
            )?,
            choice: None,
        };
        mla.choice = self.key_choice(tensors, &mla, layer)?;
        Ok(Some(mla))
    }

    /// Files older than keys for latent attention write the widths of expanded heads in those of plain attention, or leave the values' to
    /// the output's matrix.
    fn mla_sizes(&self, tensors: &Tensors, layer: usize) -> Result<Sizes, SpecError> {
        let settings = self.settings;
        let needed = |key| settings.positive(key, settings.opt_usize(key)?);
        let heads = needed(keys::HEADS)?;
        let rope_dim = needed(keys::ROPE_DIM)?;
        let nope_dim = if settings.is_gguf() {
            let key_dim = match settings.opt_usize(keys::LATENT_KEY_DIM)? {
                None => needed(keys::HEAD_DIM)?,
                given => settings.positive(keys::LATENT_KEY_DIM, given)?,
            };
            settings.positive(keys::LATENT_KEY_DIM, key_dim.checked_sub(rope_dim))?
        } else {
            needed(keys::NOPE_DIM)?
        };
        let value_dim = match settings.opt_usize(keys::LATENT_VALUE_DIM)? {
            None => tensors.shape(self.family.names.output, layer)?[1] / heads,
            given => settings.positive(keys::LATENT_VALUE_DIM, given)?,
        };
        Ok(Sizes {
            heads,
            nope_dim,
            rope_dim,
            value_dim,
            latent_dim: needed(keys::LATENT_DIM)?,
        })
    }

    fn mla_query(
        &self,
        tensors: &mut Tensors,
        layer: usize,
        (sizes, order): (Sizes, RowOrder),
    ) -> Result<MlaQuery, SpecError> {
        let Sizes {
            heads,
            nope_dim,
            rope_dim,
            ..
        } = sizes;
        let mla = self.family.mla.map(|facts| facts.names);
        let low = mla.filter(|names| tensors.has(names.query_down, layer, "weight"));
        let (name, down) = match low {
            None => (self.family.names.query, None),
            Some(names) => {
                let width = tensors.rows(names.query_down, layer)?;
                let bias = self.family.attention.qkv_bias;
                let down = tensors.linear(names.query_down, layer, [width, self.hidden], bias)?;
                let norm = latent_norm(tensors, names.query_norm, layer, width)?;
                (names.query_up, Some((down, norm)))
            }
        };
        let inputs = down
            .as_ref()
            .map_or(self.hidden, |(down, _): &(Linear, Norm)| down.weight.outputs());
        let head = nope_dim + rope_dim;
        let mut part = |first, width| {
            let rows = RowSelection::grouped(heads, head, first, width);
            tensors.linear_of(Place::part(name, layer, [heads * head, inputs], rows), Bias::Stored)
        };
        Ok(MlaQuery {
            nope: part(0, nope_dim)?,
            rope: reorder(part(nope_dim, rope_dim)?, order),
            down,
        })
    }

    /// How rotated rows lie in the file.
    fn pairs(&self, rope_dim: usize) -> Result<RowOrder, SpecError> {
        let facts = self.family.attention.rope;
        let pairs = match self.settings.is_gguf() {
            true => facts.gguf_pairs,
            false => self.settings.opt_bool(keys::ROPE_INTERLEAVE)?.unwrap_or(facts.hf_pairs),
        };
        Ok(match pairs {
            true => RowOrder::Pairs {
                head_dim: rope_dim,
                rotary: rope_dim,
            },
            false => RowOrder::Plain,
        })
    }

    fn mla_rope(&self, tensors: &mut Tensors, sizes: Sizes, visible: Visible) -> Result<Rope, SpecError> {
        let rope_dim = sizes.rope_dim;
        // Configurations count the rotated dimensions among all of a head, or among themselves.
        let fraction = rotary_fraction(self.settings, visible)?.unwrap_or(1.0);
        let is_rope_dim = |dims: usize| (dims as f64 * fraction).round() == rope_dim as f64;
        if !(is_rope_dim(rope_dim) || is_rope_dim(sizes.nope_dim + rope_dim)) || !rope_dim.is_multiple_of(2) {
            let value = format!("a rotation of the part {fraction} of {rope_dim} dimensions");
            return Err(self.settings.unsupported(keys::ROPE_DIM, value));
        }
        layer_rope(self.settings, self.family, tensors, rope_dim, visible)
    }

    fn mla_scale(&self, sizes: Sizes, visible: Visible) -> Result<f32, SpecError> {
        let head = (sizes.nope_dim + sizes.rope_dim) as f64;
        Ok((latent_score_factor(self.settings, visible)? / head.sqrt()) as f32)
    }
}

fn latent_norm(tensors: &mut Tensors, name: Name, layer: usize, width: usize) -> Result<Norm, SpecError> {
    tensors.norm_of(name, layer, width, (NormKind::Rms, LATENT_EPS))
}

/// For each head `[latent_dim, nope_dim]` and `[value_dim, latent_dim]`.
fn mla_up(
    tensors: &mut Tensors,
    layer: usize,
    (facts, sizes): (&MlaFacts, Sizes),
) -> Result<(Vec<Matrix>, Vec<Matrix>), SpecError> {
    let names = &facts.names;
    let Sizes {
        heads,
        nope_dim,
        value_dim,
        latent_dim,
        ..
    } = sizes;
    let rows_of = |matrix: &Matrix, first, count| Matrix {
        rows: RowSelection::stretch(first, count),
        ..matrix.clone()
    };
    if tensors.has(names.key_up, layer, "weight") {
        // Some files keep the fused matrix beside its parts.
        tensors.ignore(names.up, layer, "weight");
        let key = tensors.matrix(names.key_up, layer, [heads * latent_dim, nope_dim])?;
        let value = tensors.matrix(names.value_up, layer, [heads * value_dim, latent_dim])?;
        return Ok((0..heads)
            .map(|h| {
                let key = rows_of(&key, h * latent_dim, latent_dim);
                (key, rows_of(&value, h * value_dim, value_dim))
            })
            .unzip());
    }
    let head = nope_dim + value_dim;
    let fused = tensors.matrix(names.up, layer, [heads * head, latent_dim])?;
    Ok((0..heads)
        .map(|h| {
            let key = Matrix {
                rows: RowSelection::all(latent_dim),
                cols: nope_dim,
                storage: Storage::Columns { first_input: h * head },
                ..fused.clone()
            };
            (key, rows_of(&fused, h * head + nope_dim, value_dim))
        })
        .unzip())
}
