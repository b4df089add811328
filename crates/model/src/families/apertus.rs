//! Apertus: norms of queries and keys, and xIELU, with parameters of each layer, in place of a gate.

use super::{AttentionFacts, Family, FfnFacts, HeadNormKind, HeadNorms, Names, RopeFacts, llama};

pub const FAMILY: Family = Family {
    name: "apertus",
    hf: &["apertus"],
    gguf: &["apertus"],
    names: Names {
        attention_norm: ("model.layers.{}.attention_layernorm", "blk.{}.attn_norm"),
        ffn_norm: ("model.layers.{}.feedforward_layernorm", "blk.{}.ffn_norm"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Shared,
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        ..llama::ATTENTION
    },
    ffn: FfnFacts {
        gated: false,
        ..llama::FAMILY.ffn
    },
    ..llama::FAMILY
};
