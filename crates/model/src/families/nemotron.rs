//! Nemotron (Minitron): norms with biases stored as w of 1 + w, a squared ReLU without gate, half of each head rotates.

use super::{AttentionFacts, Family, FfnFacts, NormFacts, RopeFacts, llama};
use crate::read::keys;
use crate::spec::{Activation, NormKind};

pub const FAMILY: Family = Family {
    name: "nemotron",
    hf: &["nemotron"],
    gguf: &["nemotron"],
    norm: NormFacts {
        kind: NormKind::Layer,
        eps: keys::LAYER_EPS,
        one_plus: true,
    },
    attention: AttentionFacts {
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        ..llama::ATTENTION
    },
    ffn: FfnFacts {
        activation: Activation::ReluSquared,
        gated: false,
        ..llama::FAMILY.ffn
    },
    ..llama::FAMILY
};
