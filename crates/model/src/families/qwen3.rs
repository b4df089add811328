//! Qwen 3: Qwen 2 with a norm on every query and key head instead of the biases (which a config may still ask for).

use super::{Bias, Family, qwen2};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "qwen3",
    hf: &["qwen3"],
    gguf: &["qwen3"],
    head_norms: true,
    qkv_bias: Bias::Key(keys::ATTENTION_BIAS),
    output_bias: Bias::Key(keys::ATTENTION_BIAS),
    ..qwen2::FAMILY
};
