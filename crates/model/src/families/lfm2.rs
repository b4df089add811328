//! LFM2: gated short convolutions, and attention in some layers; the norm before the head is called the embedding's.

use super::{
    AttentionFacts, Bias, Family, HeadFacts, HeadNormKind, HeadNorms, Names, Recurrence, RopeFacts, ShortConvFacts,
    Windows, llama,
};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "lfm2",
    hf: &["lfm2"],
    gguf: &["lfm2"],
    names: Names {
        attention_norm: ("model.layers.{}.operator_norm", "blk.{}.attn_norm"),
        output: ("model.layers.{}.self_attn.out_proj", "blk.{}.attn_output"),
        query_norm: ("model.layers.{}.self_attn.q_layernorm", "blk.{}.attn_q_norm"),
        key_norm: ("model.layers.{}.self_attn.k_layernorm", "blk.{}.attn_k_norm"),
        ffn_norm: ("model.layers.{}.ffn_norm", "blk.{}.ffn_norm"),
        gate: ("model.layers.{}.feed_forward.w1", "blk.{}.ffn_gate"),
        up: ("model.layers.{}.feed_forward.w3", "blk.{}.ffn_up"),
        down: ("model.layers.{}.feed_forward.w2", "blk.{}.ffn_down"),
        final_norm: ("model.embedding_norm", "token_embd_norm"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Shared,
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    recurrent: Some(Recurrence::ShortConv(&ShortConvFacts {
        input: ("model.layers.{}.conv.in_proj", "blk.{}.shortconv.in_proj"),
        conv: ("model.layers.{}.conv.conv", "blk.{}.shortconv.conv"),
        output: ("model.layers.{}.conv.out_proj", "blk.{}.shortconv.out_proj"),
        bias: Bias::Key(keys::CONV_BIAS),
    })),
    head: HeadFacts {
        tied: true,
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
