//! OLMoE: Llama with a mixture of experts, and with all query heads, and all key heads, normed as one row.

use super::{AttentionFacts, Family, HeadNormKind, HeadNorms, MoeFacts, RopeFacts, Windows, llama, qwen2_moe};

pub const FAMILY: Family = Family {
    name: "olmoe",
    hf: &["olmoe"],
    gguf: &["olmoe"],
    refused: &["clip_qkv"],
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Row,
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    // As in Qwen 2, GGUF files lack the key, and no published model normalises.
    moe: MoeFacts {
        normalise: qwen2_moe::FAMILY.moe.normalise,
        ..MoeFacts::QWEN
    },
    ..llama::FAMILY
};
