//! Embeddings of every layer, and where a layer lets its own in.

use super::SpecError;
use super::keys::Settings;
use super::layers::LayerReader;
use super::tensors::Tensors;
use crate::families::{Bias, Family};
use crate::spec::{Block, Branch, PerLayerEmbedding, PerLayerInput, Residual, Sublayer};

/// The embeddings of all layers, if the family and the file have them.
pub fn read_embedding(
    settings: &Settings,
    family: &Family,
    tensors: &mut Tensors,
    (hidden, layers, vocabulary): (usize, usize, usize),
) -> Result<Option<PerLayerEmbedding>, SpecError> {
    let Some(facts) = family.embedding.per_layer else {
        return Ok(None);
    };
    let width = match settings.opt_usize(facts.width)? {
        None | Some(0) => return Ok(None),
        Some(width) => width,
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
        let Some(facts) = self.family.embedding.per_layer else {
            return Ok(None);
        };
        let width = match self.settings.opt_usize(facts.width)? {
            None | Some(0) => return Ok(None),
            Some(width) => width,
        };
        let block = PerLayerInput {
            gate: tensors.linear(facts.gate, layer, [width, self.hidden], Bias::Stored)?,
            activation: self.activation()?,
            projection: tensors.linear(facts.layer_projection, layer, [self.hidden, width], Bias::Stored)?,
        };
        let branch = Branch {
            pre: None,
            block: Block::PerLayerInput(Box::new(block)),
            post: None,
            scales: [1.0, 1.0],
            deferred: false,
        };
        Ok(Some(Sublayer {
            branches: vec![branch],
            post: Some(tensors.norm(facts.post_norm, layer, self.hidden)?),
            scale: 1.0,
            residual: Residual::Stream,
        }))
    }
}
