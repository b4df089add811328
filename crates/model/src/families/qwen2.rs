//! Qwen 2 and 2.5: Llama with biases on query, key and value, and a window on the upper layers if switched on. Also the language models
//! of Qwen2-VL and Qwen2.5-VL, in whose text all axes of positions turn alike.

use super::{AttentionFacts, Bias, Family, MoeFacts, RopeFacts, Windows, llama};

pub const FAMILY: Family = Family {
    name: "qwen2",
    hf: &["qwen2", "qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text"],
    gguf: &["qwen2", "qwen2vl"],
    ignored: &["visual.", "model.visual."],
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
