//! Ministral 3: Mistral with a factor of queries that grows with the position.

use super::{AttentionFacts, Family, PositionScaling, mistral};

pub const FAMILY: Family = Family {
    name: "ministral3",
    hf: &["ministral3"],
    gguf: &["mistral3"],
    attention: AttentionFacts {
        position_scale: PositionScaling::RopeParameter("llama_4_scaling_beta"),
        ..mistral::FAMILY.attention
    },
    ..mistral::FAMILY
};
