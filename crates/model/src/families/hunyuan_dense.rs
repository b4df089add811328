//! Hunyuan, dense: queries and keys are normed after the rotation.

use super::{AttentionFacts, Family, HeadFacts, HeadNormKind, HeadNorms, Names, RopeFacts, Windows, llama};

pub const FAMILY: Family = Family {
    name: "hunyuan_dense",
    hf: &["hunyuan_v1_dense"],
    gguf: &["hunyuan-dense"],
    names: Names {
        query_norm: ("model.layers.{}.self_attn.query_layernorm", "blk.{}.attn_q_norm"),
        key_norm: ("model.layers.{}.self_attn.key_layernorm", "blk.{}.attn_k_norm"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Shared,
            ..llama::ATTENTION.head_norms
        },
        norm_after_rope: true,
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    head: HeadFacts {
        tied: true,
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
