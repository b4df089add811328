//! Granite 3: Llama with factors on embedding, scores, residuals and logits.

use super::{AttentionFacts, AttentionScale, BlockFacts, EmbeddingFacts, Family, HeadFacts, Number, llama};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "granite",
    hf: &["granite"],
    gguf: &["granite"],
    blocks: BlockFacts {
        residual_scale: Number::Key(keys::RESIDUAL_SCALE),
        ..llama::FAMILY.blocks
    },
    embedding: EmbeddingFacts {
        scale: Number::Key(keys::EMBEDDING_SCALE),
        ..llama::FAMILY.embedding
    },
    attention: AttentionFacts {
        scale: AttentionScale::Key(keys::ATTENTION_SCALE),
        ..llama::ATTENTION
    },
    head: HeadFacts {
        tied: true,
        scale: Number::Inverse(keys::LOGIT_DIVISOR),
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
