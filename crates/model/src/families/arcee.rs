//! Arcee (AFM): Llama with a squared ReLU in place of the gate.

use super::{Family, FfnFacts, llama};
use crate::spec::Activation;

pub const FAMILY: Family = Family {
    name: "arcee",
    hf: &["arcee"],
    gguf: &["arcee"],
    ffn: FfnFacts {
        activation: Activation::ReluSquared,
        gated: false,
        ..llama::FAMILY.ffn
    },
    ..llama::FAMILY
};
