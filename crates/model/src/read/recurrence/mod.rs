//! Recurrent blocks of a layer.

mod conv;
mod delta;
mod lightning;
mod short_conv;

use super::SpecError;
use super::layers::LayerReader;
use super::tensors::Tensors;
use crate::families::Recurrence;
use crate::spec::Block;

impl LayerReader<'_> {
    /// The layer's recurrent block, if it has one.
    pub fn recurrent(&self, tensors: &mut Tensors, layer: usize) -> Result<Option<Block>, SpecError> {
        match self.family.recurrent {
            None => Ok(None),
            Some(Recurrence::DeltaNet(facts)) => self.delta_net(tensors, facts, layer),
            Some(Recurrence::Lightning(facts)) => self.lightning(tensors, facts, layer),
            Some(Recurrence::ShortConv(facts)) => self.short_conv(tensors, facts, layer),
        }
    }
}
