//! Gemma 3, text: Gemma 2 with norms of queries and keys, and five windowed layers, which have a base of their own, to each full one.

use super::{AttentionFacts, AttentionScale, Family, HeadNormKind, HeadNorms, LocalRope, RopeFacts, Windows, gemma2};

pub const FAMILY: Family = Family {
    name: "gemma3",
    hf: &["gemma3_text"],
    gguf: &["gemma3"],
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Shared,
            ..gemma2::FAMILY.attention.head_norms
        },
        rope: RopeFacts {
            local: LocalRope::OwnBase,
            ..gemma2::FAMILY.attention.rope
        },
        windows: Windows::Period(6),
        scale: AttentionScale::QueryScalar {
            hidden_per_head_at_layers: 62,
        },
        ..gemma2::FAMILY.attention
    },
    ..gemma2::FAMILY
};
