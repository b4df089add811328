//! Kimi Linear: three delta nets whose states decay by key channels, with gates of low rank, to one latent attention without rotation;
//! DeepSeek-V3's experts under Mixtral's names.

use super::{
    AttentionFacts, DeltaFacts, DeltaNames, Family, Groups, MoeFacts, MoeNames, NormaliseFact, Recurrence, RopeFacts,
    RopeLayers, ScoringFact, deepseek_v3, mixtral, qwen3_next,
};
use crate::read::keys;
use crate::spec::{Activation, Scoring};

pub const FAMILY: Family = Family {
    name: "kimi_linear",
    hf: &["kimi_linear"],
    gguf: &["kimi-linear"],
    attention: AttentionFacts {
        rope: RopeFacts {
            hf_pairs: false,
            gguf_pairs: false,
            layers: RopeLayers::None,
            ..deepseek_v3::FAMILY.attention.rope
        },
        ..deepseek_v3::FAMILY.attention
    },
    recurrent: Some(Recurrence::DeltaNet(&DeltaFacts {
        names: DELTA_NAMES,
        key_heads: keys::KDA_HEADS,
        gate_activation: Activation::Sigmoid,
        ..qwen3_next::DELTA_NET
    })),
    moe: MoeFacts {
        names: MoeNames {
            correction: &[(
                "model.layers.{}.block_sparse_moe.gate.e_score_correction_bias",
                "blk.{}.exp_probs_b.bias",
            )],
            shared_gate: (
                "model.layers.{}.block_sparse_moe.shared_experts.gate_proj",
                "blk.{}.ffn_gate_shexp",
            ),
            shared_up: (
                "model.layers.{}.block_sparse_moe.shared_experts.up_proj",
                "blk.{}.ffn_up_shexp",
            ),
            shared_down: (
                "model.layers.{}.block_sparse_moe.shared_experts.down_proj",
                "blk.{}.ffn_down_shexp",
            ),
            ..mixtral::NAMES
        },
        scoring: ScoringFact::Fixed(Scoring::Sigmoid),
        groups: Groups::BestTwo,
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: true,
            gguf_default: true,
            eps: 1e-20,
        },
        ..deepseek_v3::FAMILY.moe
    },
    ..deepseek_v3::FAMILY
};

const DELTA_NAMES: DeltaNames = DeltaNames {
    qkvz: ("", ""),
    qkv: ("", ""),
    query: ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
    key: ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
    value: ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    convs: &[
        ("model.layers.{}.self_attn.q_conv1d", "blk.{}.ssm_conv1d_q"),
        ("model.layers.{}.self_attn.k_conv1d", "blk.{}.ssm_conv1d_k"),
        ("model.layers.{}.self_attn.v_conv1d", "blk.{}.ssm_conv1d_v"),
    ],
    beta_decay: ("", ""),
    beta: ("model.layers.{}.self_attn.b_proj", "blk.{}.ssm_beta"),
    decay: &[
        ("model.layers.{}.self_attn.f_a_proj", "blk.{}.ssm_f_a"),
        ("model.layers.{}.self_attn.f_b_proj", "blk.{}.ssm_f_b"),
    ],
    offset: ("model.layers.{}.self_attn.dt_bias", "blk.{}.ssm_dt.bias"),
    rate: ("model.layers.{}.self_attn.A_log", "blk.{}.ssm_a"),
    norm: ("model.layers.{}.self_attn.o_norm", "blk.{}.ssm_norm"),
    gate: &[
        ("model.layers.{}.self_attn.g_a_proj", "blk.{}.ssm_g_a"),
        ("model.layers.{}.self_attn.g_b_proj", "blk.{}.ssm_g_b"),
    ],
    output: ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
};
