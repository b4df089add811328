//! Gemma 4, text: heads of another width in full layers, whose first angles alone rotate; values normed, and in large models the keys
//! again; embeddings of every layer; keys and values that later layers share; experts beside the dense block.

use super::{
    AttentionFacts, AttentionScale, BesideFacts, EmbeddingFacts, Family, FusedExperts, MoeFacts, MoeNames,
    NormaliseFact, PerLayerFacts, gemma3, llama,
};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "gemma4",
    hf: &["gemma4_text", "gemma4"],
    gguf: &["gemma4"],
    ignored: &[
        "model.vision_tower.",
        "model.embed_vision.",
        "model.audio_tower.",
        "model.embed_audio.",
    ],
    norm: llama::FAMILY.norm,
    embedding: EmbeddingFacts {
        per_layer: Some(PerLayerFacts {
            width: keys::LAYER_EMBEDDING,
            table: ("model.embed_tokens_per_layer", "per_layer_token_embd"),
            projection: ("model.per_layer_model_projection", "per_layer_model_proj"),
            norm: ("model.per_layer_projection_norm", "per_layer_proj_norm"),
            gate: ("model.layers.{}.per_layer_input_gate", "blk.{}.inp_gate"),
            layer_projection: ("model.layers.{}.per_layer_projection", "blk.{}.proj"),
            post_norm: ("model.layers.{}.post_per_layer_input_norm", "blk.{}.post_norm"),
        }),
        ..gemma3::FAMILY.embedding
    },
    attention: AttentionFacts {
        value_norm: true,
        value_may_be_key: true,
        shared_kv: Some(keys::SHARED_KV_LAYERS),
        scale: AttentionScale::One,
        softcap: false,
        ..gemma3::FAMILY.attention
    },
    moe: MoeFacts {
        names: MoeNames {
            router: ("model.layers.{}.router.proj", "blk.{}.ffn_gate_inp"),
            gate_up: ("model.layers.{}.experts.gate_up_proj", "blk.{}.ffn_gate_up_exps"),
            fused_down: ("model.layers.{}.experts.down_proj", "blk.{}.ffn_down_exps"),
            ..MoeNames::FUSED
        },
        normalise: NormaliseFact::Always { eps: 0.0 },
        fused: FusedExperts::Rows,
        ..MoeFacts::QWEN
    },
    beside: Some(BesideFacts {
        router_scale: ("model.layers.{}.router.scale", "blk.{}.ffn_gate_inp.scale"),
        expert_scale: ("model.layers.{}.router.per_expert_scale", "blk.{}.ffn_down_exps.scale"),
        dense_post_norm: ("model.layers.{}.post_feedforward_layernorm_1", "blk.{}.post_ffw_norm_1"),
        moe_norm: ("model.layers.{}.pre_feedforward_layernorm_2", "blk.{}.pre_ffw_norm_2"),
        moe_post_norm: ("model.layers.{}.post_feedforward_layernorm_2", "blk.{}.post_ffw_norm_2"),
    }),
    ..gemma3::FAMILY
};
