//! Phi 3 and 4: Llama with query, key and value, and gate and up, in one matrix each; LongRoPE.

use super::{AttentionFacts, Family, Names, RopeFacts, llama};

pub const FAMILY: Family = Family {
    name: "phi3",
    hf: &["phi3"],
    gguf: &["phi3"],
    names: Names {
        gate: ("", ""),
        up: ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        ..llama::ATTENTION
    },
    ..llama::FAMILY
};
