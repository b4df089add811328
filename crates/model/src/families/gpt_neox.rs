//! GPT-NeoX (Pythia): attention and feed-forward block side by side, each with a norm of its own; a part of each head rotates.

use super::{
    AttentionFacts, BlockFacts, Family, FfnFacts, HeadFacts, Names, Parallel, Qkv, RopeFacts, RopeLayers, gpt2,
};
use crate::read::keys;
use crate::spec::Activation;

pub const FAMILY: Family = Family {
    name: "gpt_neox",
    hf: &["gpt_neox"],
    gguf: &["gptneox"],
    names: Names {
        embedding: ("gpt_neox.embed_in", "token_embd"),
        attention_norm: ("gpt_neox.layers.{}.input_layernorm", "blk.{}.attn_norm"),
        qkv: ("gpt_neox.layers.{}.attention.query_key_value", "blk.{}.attn_qkv"),
        output: ("gpt_neox.layers.{}.attention.dense", "blk.{}.attn_output"),
        ffn_norm: ("gpt_neox.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
        up: ("gpt_neox.layers.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
        down: ("gpt_neox.layers.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
        final_norm: ("gpt_neox.final_layer_norm", "output_norm"),
        head: ("embed_out", "output"),
        ..gpt2::FAMILY.names
    },
    refused: &[],
    blocks: BlockFacts {
        parallel: Parallel::Key(keys::PARALLEL_RESIDUAL, true),
        ..gpt2::FAMILY.blocks
    },
    embedding: super::llama::FAMILY.embedding,
    attention: AttentionFacts {
        qkv: Qkv::Grouped,
        rope: RopeFacts {
            layers: RopeLayers::All,
            ..gpt2::FAMILY.attention.rope
        },
        ..gpt2::FAMILY.attention
    },
    ffn: FfnFacts {
        activation: Activation::Gelu,
        hf_columns: false,
        ..gpt2::FAMILY.ffn
    },
    head: HeadFacts {
        tied: false,
        ..gpt2::FAMILY.head
    },
    ..gpt2::FAMILY
};
