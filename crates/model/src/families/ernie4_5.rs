//! ERNIE 4.5: Llama in which neighbouring dimensions rotate, with biases if switched on.

use super::{AttentionFacts, Bias, Family, FfnFacts, HeadFacts, RopeFacts, llama};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "ernie4_5",
    hf: &["ernie4_5"],
    gguf: &["ernie4_5"],
    attention: AttentionFacts {
        qkv_bias: Bias::Key(keys::USE_BIAS),
        output_bias: Bias::Key(keys::USE_BIAS),
        rope: RopeFacts {
            hf_pairs: true,
            ..llama::ATTENTION.rope
        },
        ..llama::ATTENTION
    },
    ffn: FfnFacts {
        bias: Bias::Key(keys::USE_BIAS),
        ..llama::FAMILY.ffn
    },
    head: HeadFacts {
        tied: true,
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
