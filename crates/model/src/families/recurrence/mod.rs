//! What can differ between blocks that carry a state from row to row.

mod mamba;

pub use mamba::{DtLimits, GatedNormFacts, Mamba2Facts, MambaFacts, MambaNames};
mod delta;
mod lightning;
mod short_conv;

pub use delta::{DeltaFacts, DeltaNames};
pub use lightning::{LightningFacts, LightningNames};
pub use short_conv::ShortConvFacts;

/// The recurrent block of a family's layers that have one.
#[derive(Clone, Copy, Debug)]
pub enum Recurrence {
    Mamba(&'static MambaFacts),
    Mamba2(&'static Mamba2Facts),
    DeltaNet(&'static DeltaFacts),
    Lightning(&'static LightningFacts),
    ShortConv(&'static ShortConvFacts),
}
