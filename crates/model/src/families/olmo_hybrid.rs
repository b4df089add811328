//! OLMo Hybrid: three delta nets, whose states can change their sign, to one attention as in OLMo 3. Layers with a delta net norm inputs,
//! those with attention norm outputs.

use super::{
    AttentionFacts, BlockFacts, DeltaFacts, DeltaNames, Family, Names, Recurrence, RopeFacts, RopeLayers, olmo3,
    qwen3_next,
};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "olmo_hybrid",
    hf: &["olmo_hybrid"],
    gguf: &[],
    names: Names {
        attention_norm: (
            "model.layers.{}.attention_layer_norm|model.layers.{}.input_layernorm",
            "",
        ),
        // Some writers give this name to the second of every layer's norms.
        attention_post_norm: (
            "model.layers.{}.post_attention_layernorm|model.layers.{}.feedforward_layer_norm",
            "",
        ),
        ffn_norm: (
            "model.layers.{}.feedforward_layer_norm|model.layers.{}.post_attention_layernorm",
            "",
        ),
        ..Names::LLAMA
    },
    blocks: BlockFacts {
        pre_or_post: true,
        ..olmo3::FAMILY.blocks
    },
    attention: AttentionFacts {
        rope: RopeFacts {
            layers: RopeLayers::UnlessNullBase,
            ..olmo3::FAMILY.attention.rope
        },
        ..olmo3::FAMILY.attention
    },
    recurrent: Some(Recurrence::DeltaNet(&DeltaFacts {
        names: DeltaNames {
            qkvz: ("", ""),
            qkv: ("", ""),
            query: ("model.layers.{}.linear_attn.q_proj", ""),
            key: ("model.layers.{}.linear_attn.k_proj", ""),
            value: ("model.layers.{}.linear_attn.v_proj", ""),
            convs: &[
                ("model.layers.{}.linear_attn.q_conv1d", ""),
                ("model.layers.{}.linear_attn.k_conv1d", ""),
                ("model.layers.{}.linear_attn.v_conv1d", ""),
            ],
            beta_decay: ("", ""),
            beta: ("model.layers.{}.linear_attn.b_proj", ""),
            decay: &[("model.layers.{}.linear_attn.a_proj", "")],
            norm: ("model.layers.{}.linear_attn.o_norm", ""),
            gate: &[("model.layers.{}.linear_attn.g_proj", "")],
            output: ("model.layers.{}.linear_attn.o_proj", ""),
            ..qwen3_next::DELTA_NET.names
        },
        key_heads: keys::LINEAR_KEY_HEADS,
        double_beta: Some(keys::NEGATIVE_EIGENVALUES),
        norm_eps: Some(1e-5),
        ..qwen3_next::DELTA_NET
    })),
    ..olmo3::FAMILY
};
