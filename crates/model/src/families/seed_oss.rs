//! Seed-OSS: Llama with biases on query, key and value.

use super::{AttentionFacts, Bias, Family, Names, RopeFacts, Windows, llama};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "seed_oss",
    hf: &["seed_oss"],
    gguf: &["seed_oss"],
    names: Names {
        ffn_norm: ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        output_bias: Bias::Key(keys::OUTPUT_BIAS),
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    ..llama::FAMILY
};
