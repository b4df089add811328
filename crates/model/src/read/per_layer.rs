//! Embeddings of every layer, and where a layer lets its own in.

use super::SpecError;
use super::keys::Settings;
use super::layers::LayerReader;
use super::tensors::Tensors;
use crate::families::{Bias, Family, PerLayerFacts};
use crate::spec::{Block, Branch, PerLayerEmbedding, PerLayerInput, Sublayer};

/// What the family knows of such embeddings, and the width of one; `None` if the family or the file has none.
fn facts_and_width(settings: &Settings, family: &Family) -> Result<Option<(PerLayerFacts, usize)>, SpecError> {
    let Some(facts) = family.embedding.per_layer else {
        return Ok(None);
    };
    let width = settings.opt_usize(facts.width)?.filter(|width| *width > 0);
    Ok(width.map(|width| (facts, width)))
}

/// The embeddings of all layers, if the family and the file have them.
pub fn read_embedding(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    (hidden, layers, vocabulary): (usize, usize, usize),
) -> Result<Option<PerLayerEmbedding>, SpecError> {
    let Some((facts, width)) = facts_and_width(settings, family)? else {
        return Ok(None);
    };
    let all = layers * width;
    Ok(Some(PerLayerEmbedding {
        table: tensors.matrix(facts.table, 0, [vocabulary, all])?,
        scale: (width as f64).sqrt() as f32,
        projection: tensors.linear(facts.projection, 0, [all, hidden], Bias::Stored)?,
        projection_scale: (1.0 / (hidden as f64).sqrt()) as f32,
        norm: tensors.norm(facts.norm, 0, width)?,
        width,
    }))
}

impl LayerReader<'_> {
    /// The sublayer that lets the layer's embedding in, if the layer has one.
    pub fn per_layer_input(&self, tensors: &mut Tensors, layer: usize) -> Result<Option<Sublayer>, SpecError> {
        let Some((facts, width)) = facts_and_width(self.settings, self.family)? else {
            return Ok(None);
        };
        let block = PerLayerInput {
            gate: tensors.linear(facts.gate, layer, [width, self.hidden], Bias::Stored)?,
            activation: self.activation()?,
            projection: tensors.linear(facts.layer_projection, layer, [self.hidden, width], Bias::Stored)?,
        };
        let branch = Branch::plain(Block::PerLayerInput(Box::new(block)));
        let post = tensors.norm(facts.post_norm, layer, self.hidden)?;
        Ok(Some(Sublayer::plain(vec![branch], Some(post))))
    }
}
