//! gpt-oss: sinks, biases everywhere, every second layer sees a window; experts with a gate of their own kind.

use super::{
    AttentionFacts, Bias, Family, FusedExperts, MoeFacts, MoeNames, Names, NormaliseFact, RopeFacts, ScoringFact,
    Windows, llama,
};
use crate::spec::{GatedActivation, Scoring};

pub const FAMILY: Family = Family {
    name: "gpt_oss",
    hf: &["gpt_oss"],
    gguf: &["gpt-oss"],
    names: Names {
        ffn_norm: ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        qkv_bias: Bias::Always,
        output_bias: Bias::Always,
        rope: RopeFacts {
            gguf_pairs: false,
            yarn_truncates: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Period(2),
        ..llama::ATTENTION
    },
    moe: MoeFacts {
        names: MoeNames {
            router: ("model.layers.{}.mlp.router", "blk.{}.ffn_gate_inp"),
            ..MoeNames::FUSED
        },
        scoring: ScoringFact::Fixed(Scoring::SoftmaxOfChosen),
        normalise: NormaliseFact::Never,
        fused: FusedExperts::InterleavedColumns,
        // The configuration's `hidden_act` and `swiglu_limit` say nothing.
        activation: Some(GatedActivation::ClampedSwiGlu {
            alpha: 1.702,
            limit: 7.0,
        }),
        ..MoeFacts::QWEN
    },
    ..llama::FAMILY
};
