//! Gemma 1: Llama with norms stored as w of 1 + w, embeddings times √hidden, and a tanh GELU.

use super::{
    AttentionFacts, EmbeddingFacts, Family, FfnFacts, HeadFacts, NormFacts, Number, RopeFacts, Windows, llama,
};
use crate::spec::Activation;

pub const FAMILY: Family = Family {
    name: "gemma",
    hf: &["gemma"],
    gguf: &["gemma"],
    norm: NormFacts {
        one_plus: true,
        ..llama::FAMILY.norm
    },
    embedding: EmbeddingFacts {
        scale: Number::SqrtHidden,
        ..llama::FAMILY.embedding
    },
    attention: AttentionFacts {
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    ffn: FfnFacts {
        activation: Activation::GeluTanh,
        ..llama::FAMILY.ffn
    },
    head: HeadFacts {
        tied: true,
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
