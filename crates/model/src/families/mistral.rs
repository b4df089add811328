//! Mistral 7B, Nemo and their like: Llama without biases, with a window on every layer where the config has one.

use super::{Bias, Family, llama};

pub const FAMILY: Family = Family {
    name: "mistral",
    hf: &["mistral"],
    gguf: &[], // published as `llama`
    qkv_bias: Bias::Never,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    ..llama::FAMILY
};
