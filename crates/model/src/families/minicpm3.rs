//! MiniCPM 3: dense layers with DeepSeek's latent attention, rotated in halves, and factors on embedding, residuals and logits. GGUF files
//! lack the factors: they are those of the one published model.

use super::{
    AttentionFacts, BlockFacts, EmbeddingFacts, Family, HeadFacts, MlaFacts, Number, RopeFacts, Windows, llama,
};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "minicpm3",
    hf: &["minicpm3"],
    gguf: &["minicpm3"],
    blocks: BlockFacts {
        residual_scale: Number::OverSqrtLayers(keys::DEPTH_SCALE, 1.4),
        ..llama::FAMILY.blocks
    },
    embedding: EmbeddingFacts {
        scale: Number::KeyOr(keys::EMBEDDING_FACTOR, 12.0),
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
    mla: Some(MlaFacts::DEEPSEEK),
    head: HeadFacts {
        tied: true,
        scale: Number::OverHidden(keys::BASE_HIDDEN, 256.0),
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
