//! Mamba-2: a state space a layer, and nothing else.

use super::{Family, HeadFacts, Mamba2Facts, Recurrence, mamba};

pub const FAMILY: Family = Family {
    name: "mamba2",
    hf: &["mamba2"],
    gguf: &["mamba2"],
    recurrent: Some(Recurrence::Mamba2(&Mamba2Facts::MAMBA2)),
    head: HeadFacts {
        tied: false,
        ..mamba::FAMILY.head
    },
    ..mamba::FAMILY
};
