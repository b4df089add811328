//! Granite mixtures of experts with a shared expert.

use super::{Family, granitemoe};

pub const FAMILY: Family = Family {
    name: "granitemoeshared",
    hf: &["granitemoeshared"],
    gguf: &[], // published as `granitemoe`
    ..granitemoe::FAMILY
};
