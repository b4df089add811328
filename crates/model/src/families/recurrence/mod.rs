//! What can differ between blocks that carry a state from row to row.

mod delta;
mod lightning;
mod mamba;
mod short_conv;

pub use delta::{DeltaFacts, DeltaNames};
pub use lightning::{LightningFacts, LightningNames};
pub use mamba::{DtLimits, GatedNormFacts, Mamba2Facts, MambaFacts, MambaNames};
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
