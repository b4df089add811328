//! BLOOM: GPT-2's blocks with slopes in place of positions and a norm after the embedding.

use super::{Alibi, AttentionFacts, EmbeddingFacts, Family, Names, Qkv, gpt2};

pub const FAMILY: Family = Family {
    name: "bloom",
    hf: &["bloom"],
    gguf: &["bloom"],
    names: Names {
        embedding: ("transformer.word_embeddings", "token_embd"),
        embedding_norm: ("transformer.word_embeddings_layernorm", "token_embd_norm"),
        attention_norm: ("transformer.h.{}.input_layernorm", "blk.{}.attn_norm"),
        qkv: ("transformer.h.{}.self_attention.query_key_value", "blk.{}.attn_qkv"),
        output: ("transformer.h.{}.self_attention.dense", "blk.{}.attn_output"),
        ffn_norm: ("transformer.h.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
        up: ("transformer.h.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
        down: ("transformer.h.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
        ..gpt2::FAMILY.names
    },
    refused: &["apply_residual_connection_post_layernorm"],
    embedding: EmbeddingFacts {
        positions: false,
        norm: true,
        ..gpt2::FAMILY.embedding
    },
    attention: AttentionFacts {
        qkv: Qkv::Grouped,
        alibi: Alibi::Always,
        ..gpt2::FAMILY.attention
    },
    ffn: super::FfnFacts {
        hf_columns: false,
        ..gpt2::FAMILY.ffn
    },
    ..gpt2::FAMILY
};
