//! Recurrent blocks of a layer.

use super::SpecError;
use super::layers::LayerReader;
use super::tensors::Tensors;
use crate::spec::Block;

impl LayerReader<'_> {
    /// The layer's recurrent block, if it has one.
    pub fn recurrent(&self, _tensors: &mut Tensors, _layer: usize) -> Result<Option<Block>, SpecError> {
        match self.family.recurrent {
            None => Ok(None),
            Some(recurrence) => match recurrence {},
        }
    }
}
