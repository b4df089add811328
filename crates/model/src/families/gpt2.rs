//! GPT-2: learned positions, norms with biases, matrices stored the other way.

use super::{
    AttentionFacts, EmbeddingFacts, Family, FfnFacts, HeadFacts, Names, NormFacts, RopeFacts, RopeLayers, Windows,
    llama,
};
use crate::read::keys;
use crate::spec::{Activation, NormKind};

pub const FAMILY: Family = Family {
    name: "gpt2",
    hf: &["gpt2"],
    gguf: &["gpt2"],
    names: Names {
        embedding: ("transformer.wte", "token_embd"),
        positions: ("transformer.wpe", "position_embd"),
        attention_norm: ("transformer.h.{}.ln_1", "blk.{}.attn_norm"),
        qkv: ("transformer.h.{}.attn.c_attn", "blk.{}.attn_qkv"),
        output: ("transformer.h.{}.attn.c_proj", "blk.{}.attn_output"),
        ffn_norm: ("transformer.h.{}.ln_2", "blk.{}.ffn_norm"),
        up: ("transformer.h.{}.mlp.c_fc", "blk.{}.ffn_up"),
        down: ("transformer.h.{}.mlp.c_proj", "blk.{}.ffn_down"),
        final_norm: ("transformer.ln_f", "output_norm"),
        ..Names::LLAMA
    },
    refused: &[
        "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn",
        "add_cross_attention",
    ],
    norm: NormFacts {
        kind: NormKind::Layer,
        eps: keys::LAYER_EPS,
        one_plus: false,
    },
    embedding: EmbeddingFacts {
        positions: true,
        ..llama::FAMILY.embedding
    },
    attention: AttentionFacts {
        rope: RopeFacts {
            gguf_pairs: false,
            layers: RopeLayers::None,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    ffn: FfnFacts {
        activation: Activation::GeluTanh,
        gated: false,
        hf_columns: true,
        ..llama::FAMILY.ffn
    },
    head: HeadFacts {
        tied: true,
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
