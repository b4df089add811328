//! Lightning attention.

use crate::families::{Bias, LightningFacts};
use crate::read::SpecError;
use crate::read::attention::Heads;
use crate::read::layers::LayerReader;
use crate::read::tensors::{Place, Tensors};
use crate::spec::{Block, Lightning, Norm, NormKind, RowSelection, Visible};

impl LayerReader<'_> {
    /// The layer's lightning attention, if it has one.
    pub fn lightning(
        &self,
        tensors: &mut Tensors,
        facts: &LightningFacts,
        layer: usize,
    ) -> Result<Option<Block>, SpecError> {
        let names = &facts.names;
        if !tensors.has(names.qkv, layer, "weight") {
            return Ok(None);
        }
        let Heads { heads, key_dim, .. } = Heads::read(
            self.settings,
            &self.family.attention,
            self.hidden,
            (layer, Visible::All),
        )?;
        let width = heads * key_dim;
        let mut part = |index: usize| {
            let rows = RowSelection::grouped(heads, 3 * key_dim, index * key_dim, key_dim);
            let place = Place::part(names.qkv, layer, [3 * width, self.hidden], rows);
            tensors.linear_of(place, Bias::Stored)
        };
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        Ok(Some(Block::Lightning(Box::new(Lightning {
            heads,
            head_dim: key_dim,
            query,
            key,
            value,
            activation: self.activation()?,
            slope_scale: self.slope_scale(layer),
            norm: Norm {
                kind: NormKind::Rms,
                weight: Some(tensors.vector(names.norm, layer, "weight", width)?),
                bias: None,
                eps: facts.norm_eps as f32,
            },
            gate: tensors.linear(names.gate, layer, [width, self.hidden], Bias::Stored)?,
            output: tensors.linear(names.output, layer, [self.hidden, width], Bias::Stored)?,
        }))))
    }

    /// Slopes fall from layer to layer, and almost vanish in the last (MiniMax-01, section 2.2; the small numbers are the reference's).
    fn slope_scale(&self, layer: usize) -> f32 {
        (1.0 - layer as f64 / (self.layers as f64 - 1.0 + 1e-5) + 1e-5) as f32
    }
}
