//! Qwen 3-Next: three gated delta nets to one attention with a gate in its query's matrix; experts in every layer; norms stored as w of
//! 1 + w, but for that of the delta net's output.

use super::{
    AttentionFacts, DeltaFacts, DeltaNames, Family, HeadNormKind, HeadNorms, MoeFacts, Names, NormFacts, NormaliseFact,
    OutputGate, Recurrence, RopeFacts, Windows, llama, qwen2_moe,
};
use crate::read::keys;
use crate::spec::{Activation, KeySharing};

pub const FAMILY: Family = Family {
    name: "qwen3_next",
    hf: &["qwen3_next"],
    gguf: &["qwen3next"],
    names: Names {
        ffn_norm: ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ..Names::LLAMA
    },
    ignored: &["mtp."],
    norm: NormFacts {
        one_plus: true,
        ..llama::FAMILY.norm
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
        output_gate: OutputGate::InQuery,
        ..llama::ATTENTION
    },
    recurrent: Some(Recurrence::DeltaNet(&DELTA_NET)),
    moe: MoeFacts {
        names: qwen2_moe::FAMILY.moe.names,
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: true,
            gguf_default: true,
            eps: 0.0,
        },
        ..MoeFacts::QWEN
    },
    ..llama::FAMILY
};

pub const DELTA_NET: DeltaFacts = DeltaFacts {
    names: DeltaNames {
        qkvz: ("model.layers.{}.linear_attn.in_proj_qkvz", "blk.{}.ssm_in"),
        qkv: ("model.layers.{}.linear_attn.in_proj_qkv", "blk.{}.attn_qkv"),
        query: ("", ""),
        key: ("", ""),
        value: ("", ""),
        convs: &[("model.layers.{}.linear_attn.conv1d", "blk.{}.ssm_conv1d")],
        beta_decay: ("model.layers.{}.linear_attn.in_proj_ba", "blk.{}.ssm_ba"),
        beta: ("model.layers.{}.linear_attn.in_proj_b", "blk.{}.ssm_beta"),
        decay: &[("model.layers.{}.linear_attn.in_proj_a", "blk.{}.ssm_alpha")],
        offset: ("model.layers.{}.linear_attn.dt_bias", "blk.{}.ssm_dt.bias"),
        rate: ("model.layers.{}.linear_attn.A_log", "blk.{}.ssm_a"),
        norm: ("model.layers.{}.linear_attn.norm", "blk.{}.ssm_norm"),
        gate: &[("model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate")],
        output: ("model.layers.{}.linear_attn.out_proj", "blk.{}.ssm_out"),
    },
    key_heads: keys::LINEAR_KEY_HEADS,
    double_beta: None,
    norm_eps: None,
    gate_activation: Activation::Silu,
    gguf_sharing: KeySharing::Neighbours,
};
