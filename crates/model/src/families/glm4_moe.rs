//! GLM-4.5 to 4.7: half of each head rotates, norms of queries and keys if switched on, experts chosen as in DeepSeek-V3.

use super::{AttentionFacts, Bias, Family, HeadNormKind, HeadNorms, MoeFacts, Names, RopeFacts, Windows, llama};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "glm4_moe",
    hf: &["glm4_moe"],
    gguf: &["glm4moe"],
    names: Names {
        ffn_norm: ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        output_bias: Bias::Stored,
        head_norms: HeadNorms {
            kind: HeadNormKind::Shared,
            only_if: Some((keys::QK_NORM, false)),
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    moe: MoeFacts::DEEPSEEK,
    ..llama::FAMILY
};
