//! Qwen 2 and 2.5: Llama with biases on query, key and value, and a window on the upper layers if switched on.

use super::{AttentionFacts, Bias, Family, MoeFacts, RopeFacts, Windows, llama};

pub const FAMILY: Family = Family {
    name: "qwen2",
    hf: &["qwen2"],
    gguf: &["qwen2"],
    attention: AttentionFacts {
        qkv_bias: Bias::Always,
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Upper,
        ..llama::ATTENTION
    },
    moe: MoeFacts::QWEN,
    ..llama::FAMILY
};
