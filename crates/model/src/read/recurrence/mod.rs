//! Recurrent blocks of a layer.

mod mamba;

use super::SpecError;
use super::layers::LayerReader;
use super::tensors::Tensors;
use crate::families::Recurrence;
use crate::spec::Block;

impl LayerReader<'_> {
    /// The layer's recurrent block, if it has one.
    pub fn recurrent(&self, tensors: &mut Tensors, layer: usize) -> Result<Option<Block>, SpecError> {
        match &self.family.recurrent {
            None => Ok(None),
            Some(Recurrence::Mamba(facts)) => self.mamba(tensors, facts, layer),
            Some(Recurrence::Mamba2(facts)) => self.mamba2(tensors, facts, layer),
        }
    }
}
