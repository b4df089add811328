//! Gated short convolutions.

use super::conv::Kernels;
use crate::families::ShortConvFacts;
use crate::read::SpecError;
use crate::read::layers::LayerReader;
use crate::read::tensors::{Place, Tensors};
use crate::spec::{Block, RowSelection, ShortConv};

impl LayerReader<'_> {
    /// The layer's gated short convolution, if it has one.
    pub fn short_conv(
        &self,
        tensors: &mut Tensors,
        facts: &ShortConvFacts,
        layer: usize,
    ) -> Result<Option<Block>, SpecError> {
        if !tensors.has(facts.conv, layer, "weight") {
            return Ok(None);
        }
        let kernels = Kernels::read(tensors, &[facts.conv], layer)?;
        let width = kernels.channels;
        let mut part = |index: usize| {
            let rows = RowSelection::stretch(index * width, width);
            let place = Place::part(facts.input, layer, [3 * width, self.hidden], rows);
            tensors.linear_of(place, facts.bias)
        };
        let (b, c, x) = (part(0)?, part(1)?, part(2)?);
        Ok(Some(Block::ShortConv(Box::new(ShortConv {
            b,
            c,
            x,
            conv: kernels.part(0, width),
            output: tensors.linear(facts.output, layer, [self.hidden, width], facts.bias)?,
        }))))
    }
}
