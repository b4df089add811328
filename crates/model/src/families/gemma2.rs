//! Gemma 2: Gemma with norms around both blocks, a window on every other layer, caps on scores and logits.

use super::{AttentionFacts, AttentionScale, BlockFacts, Family, HeadFacts, Names, Windows, gemma};

pub const FAMILY: Family = Family {
    name: "gemma2",
    hf: &["gemma2"],
    gguf: &["gemma2"],
    names: Names {
        // Here `post_attention_layernorm` is what its name says; the feed-forward block has a norm of its own.
        ffn_norm: ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
        ..Names::LLAMA
    },
    blocks: BlockFacts {
        post: true,
        ..gemma::FAMILY.blocks
    },
    attention: AttentionFacts {
        windows: Windows::Period(2),
        scale: AttentionScale::QueryScalar {
            hidden_per_head_at_layers: 46,
        },
        softcap: true,
        ..gemma::FAMILY.attention
    },
    head: HeadFacts {
        softcap: true,
        ..gemma::FAMILY.head
    },
    ..gemma::FAMILY
};
