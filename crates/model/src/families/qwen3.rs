//! Qwen 3: Qwen 2 with a norm on every query and key head instead of the biases (which a config may still ask for).
//! Also the language model of Qwen3-VL.

use super::{AttentionFacts, Bias, Family, HeadNormKind, HeadNorms, qwen2};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "qwen3",
    hf: &["qwen3", "qwen3_vl_text"],
    gguf: &["qwen3", "qwen3vl"],
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Shared,
            ..qwen2::FAMILY.attention.head_norms
        },
        qkv_bias: Bias::Key(keys::ATTENTION_BIAS),
        ..qwen2::FAMILY.attention
    },
    ..qwen2::FAMILY
};
