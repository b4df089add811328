//! Latent attention of a layer.

use super::SpecError;
use super::layers::LayerReader;
use super::tensors::Tensors;
use crate::spec::Mla;

impl LayerReader<'_> {
    /// The layer's latent attention, if it has a projection to a latent.
    pub fn mla(&self, tensors: &mut Tensors, layer: usize) -> Result<Option<Mla>, SpecError> {
        let Some(facts) = self.family.mla else {
            return Ok(None);
        };
        if !tensors.has(facts.latent, layer, "weight") {
            return Ok(None);
        }
        Err(SpecError::Unsupported {
            key: tensors.spelled(facts.latent, layer).unwrap_or_default(),
            value: "latent attention".into(),
        })
    }
}
