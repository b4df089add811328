//! Ministral: Mistral with windowed and full layers mixed, as `layer_types` says.

use super::{AttentionFacts, Family, Windows, mistral};

pub const FAMILY: Family = Family {
    name: "ministral",
    hf: &["ministral"],
    gguf: &[], // no converter writes it
    attention: AttentionFacts {
        windows: Windows::Typed,
        ..mistral::FAMILY.attention
    },
    ..mistral::FAMILY
};
