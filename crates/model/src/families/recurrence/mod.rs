//! What can differ between blocks that carry a state from row to row.

mod mamba;

pub use mamba::{DtLimits, GatedNormFacts, Mamba2Facts, MambaFacts, MambaNames};

/// The recurrent block of a family's layers that have one.
#[derive(Clone, Copy, Debug)]
pub enum Recurrence {
    Mamba(MambaFacts),
    Mamba2(Mamba2Facts),
}
