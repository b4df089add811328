//! Qwen 2 and 2.5: Llama with biases on query, key and value, and a window on the upper layers if switched on.

use super::{Bias, Family, RopeRows, Windows, llama};

pub const FAMILY: Family = Family {
    name: "qwen2",
    hf: &["qwen2"],
    gguf: &["qwen2"],
    qkv_bias: Bias::Always,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    rope_rows: RopeRows {
        hf_pairs: false,
        gguf_pairs: false,
    },
    windows: Windows::Upper,
    ..llama::FAMILY
};
