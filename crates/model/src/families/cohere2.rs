//! Command R7B and A: Cohere in which three of four layers see a window, and only those rotate.

use super::{AttentionFacts, Family, RopeFacts, RopeLayers, Windows, cohere, llama};

pub const FAMILY: Family = Family {
    name: "cohere2",
    hf: &["cohere2"],
    gguf: &["cohere2"],
    attention: AttentionFacts {
        head_norms: llama::ATTENTION.head_norms,
        rope: RopeFacts {
            layers: RopeLayers::Windowed { or_all_without: false },
            ..cohere::FAMILY.attention.rope
        },
        windows: Windows::Period(4),
        ..cohere::FAMILY.attention
    },
    ..cohere::FAMILY
};
