//! Qwen 3 mixtures of experts.

use super::{AttentionFacts, Family, Windows, qwen3};

pub const FAMILY: Family = Family {
    name: "qwen3_moe",
    hf: &["qwen3_moe"],
    gguf: &["qwen3moe"],
    attention: AttentionFacts {
        windows: Windows::Typed,
        ..qwen3::FAMILY.attention
    },
    ..qwen3::FAMILY
};
