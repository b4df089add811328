//! Falcon: attention and feed-forward block side by side, queries, key and value of each KV head together.

use super::{Alibi, AttentionFacts, BlockFacts, Family, HeadFacts, Names, Parallel, gpt_neox};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "falcon",
    hf: &["falcon"],
    gguf: &["falcon"],
    names: Names {
        embedding: ("transformer.word_embeddings", "token_embd"),
        // The second norm of GGUF files is attention's; with one norm, both blocks share it.
        attention_norm: ("transformer.h.{}.ln_attn", "blk.{}.attn_norm_2"),
        qkv: ("transformer.h.{}.self_attention.query_key_value", "blk.{}.attn_qkv"),
        output: ("transformer.h.{}.self_attention.dense", "blk.{}.attn_output"),
        ffn_norm: ("transformer.h.{}.ln_mlp", "blk.{}.attn_norm"),
        up: ("transformer.h.{}.mlp.dense_h_to_4h", "blk.{}.ffn_up"),
        down: ("transformer.h.{}.mlp.dense_4h_to_h", "blk.{}.ffn_down"),
        final_norm: ("transformer.ln_f", "output_norm"),
        head: ("lm_head", "output"),
        ..gpt_neox::FAMILY.names
    },
    blocks: BlockFacts {
        parallel: Parallel::Key(keys::PARALLEL_ATTENTION, true),
        ..gpt_neox::FAMILY.blocks
    },
    attention: AttentionFacts {
        one_kv_head: Some([keys::MULTI_QUERY, keys::NEW_DECODER]),
        alibi: Alibi::Key(keys::ALIBI),
        ..gpt_neox::FAMILY.attention
    },
    head: HeadFacts {
        tied: true,
        ..gpt_neox::FAMILY.head
    },
    ..gpt_neox::FAMILY
};
