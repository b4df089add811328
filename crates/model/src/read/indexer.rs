//! Which keys a layer's latent attention chooses.

use super::SpecError;
use super::attention::reorder;
use super::keys;
use super::layers::LayerReader;
use super::rope::layer_rope;
use super::tensors::Tensors;
use crate::families::{Bias, IndexerFacts};
use crate::spec::{Indexer, KeyChoice, Mla, NormKind, RowOrder, Vector};

/// Of the norm of index keys, in every published model.
const INDEX_EPS: f64 = 1e-6;

impl LayerReader<'_> {
    /// Where the family has no indexer, all visible keys count. A layer without an index of its own attends to what the last one chose.
    pub fn key_choice(&self, tensors: &mut Tensors, mla: &Mla, layer: usize) -> Result<Option<KeyChoice>, SpecError> {
        let Some(facts) = self.family.mla.and_then(|facts| facts.indexer) else {
            return Ok(None);
        };
        if self.shares_choice(tensors, &facts, layer)? {
            return Ok(Some(KeyChoice::Earlier));
        }
        let needed = |key| self.settings.positive(key, self.settings.opt_usize(key)?);
        let heads = needed(keys::INDEX_HEADS)?;
        let head_dim = needed(keys::INDEX_DIM)?;
        let rope_dim = mla.rope_dim;
        if head_dim < rope_dim {
            let expected = format!("at least the {rope_dim} rotated dimensions");
            return Err(self.settings.bad_value(keys::INDEX_DIM, head_dim, expected));
        }
        let pairs = match self.settings.is_gguf() {
            true => facts.gguf_pairs,
            false => facts.hf_pairs,
        };
        let order = match pairs {
            true => RowOrder::Pairs {
                head_dim,
                rotary: rope_dim,
            },
            false => RowOrder::Plain,
        };
        let names = &facts.names;
        let source = mla.query.inputs();
        let query = tensors.linear(names.query, layer, [heads * head_dim, source], Bias::Stored)?;
        let key = tensors.linear(names.key, layer, [head_dim, self.hidden], Bias::Stored)?;
        let mut key_norm = tensors.norm_of(names.key_norm, layer, head_dim, (NormKind::Layer, INDEX_EPS))?;
        let reordered = |vector: Vector| Vector { order, ..vector };
        key_norm.weight = key_norm.weight.map(reordered);
        key_norm.bias = key_norm.bias.map(reordered);
        Ok(Some(KeyChoice::Own(Box::new(Indexer {
            heads,
            head_dim,
            keep: needed(keys::INDEX_TOP_K)?,
            query: reorder(query, order),
            key: reorder(key, order),
            key_norm,
            weights: tensors.linear(names.weights, layer, [heads, self.hidden], Bias::Stored)?,
            rope: layer_rope(self.settings, self.family, tensors, rope_dim, mla.rule.visible)?,
        }))))
    }

    /// The tensors say whether a layer has an index, where layers may share; a configuration that lists it must agree.
    fn shares_choice(&self, tensors: &Tensors, facts: &IndexerFacts, layer: usize) -> Result<bool, SpecError> {
        let shares = facts.may_share && layer > 0 && !tensors.has(facts.names.key, layer, "weight");
        let Some(kinds) = self.settings.opt_per_layer(keys::INDEXER_TYPES, self.layers)? else {
            return Ok(shares);
        };
        let expected = if shares { "shared" } else { "full" };
        match kinds[layer].as_str() {
            Some(kind) if kind == expected => Ok(shares),
            _ => {
                let expected = format!("`{expected}` in layer {layer}, as its tensors say");
                Err(self.settings.bad_value(keys::INDEXER_TYPES, &kinds[layer], expected))
            }
        }
    }
}
