//! What can differ between blocks that carry a state from row to row.

mod delta;
mod lightning;
mod short_conv;

pub use delta::{DeltaFacts, DeltaNames};
pub use lightning::{LightningFacts, LightningNames};
pub use short_conv::ShortConvFacts;

/// The recurrent block of a family's layers that have one.
#[derive(Clone, Copy, Debug)]
pub enum Recurrence {
    DeltaNet(&'static DeltaFacts),
    Lightning(&'static LightningFacts),
    ShortConv(&'static ShortConvFacts),
}
