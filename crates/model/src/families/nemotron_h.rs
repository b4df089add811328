//! Nemotron-H: one block a layer – Mamba-2, attention without rotation, a feed-forward block without gate, or a mixture of experts.

use super::{
    AttentionFacts, BlockFacts, DtLimits, Family, FfnFacts, GatedNormFacts, Groups, Layout, Mamba2Facts, MoeFacts,
    MoeNames, Names, NormFacts, NormaliseFact, Number, Recurrence, RopeFacts, RopeLayers, ScoringFact, Windows, llama,
    mamba,
};
use crate::read::keys;
use crate::spec::{Activation, Scoring};

pub const FAMILY: Family = Family {
    name: "nemotron_h",
    hf: &["nemotron_h"],
    gguf: &["nemotron_h", "nemotron_h_moe"],
    names: NAMES,
    ignored: &["mtp."],
    refused: &["moe_latent_size"],
    norm: NormFacts {
        eps: keys::LAYER_EPS,
        ..llama::FAMILY.norm
    },
    blocks: BlockFacts {
        layout: Layout::One,
        ..llama::FAMILY.blocks
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
    recurrent: Some(Recurrence::Mamba2(&Mamba2Facts {
        activation: keys::STATE_ACTIVATION,
        dt_limits: DtLimits::AtLeast(keys::LEAST_DT, 1e-3),
        norm: GatedNormFacts {
            grouped: true,
            ..Mamba2Facts::MAMBA2.norm
        },
        ..Mamba2Facts::MAMBA2
    })),
    ffn: FfnFacts {
        activation: Activation::ReluSquared,
        gated: false,
        ..llama::FAMILY.ffn
    },
    moe: MoeFacts {
        names: MOE_NAMES,
        scoring: ScoringFact::Fixed(Scoring::Sigmoid),
        groups: Groups::BestTwo,
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: true,
            gguf_default: true,
            eps: 1e-20,
        },
        scale: Number::Key(keys::EXPERT_SCALE),
        ..MoeFacts::QWEN
    },
    ..llama::FAMILY
};

const NAMES: Names = Names {
    query: ("backbone.layers.{}.mixer.q_proj", "blk.{}.attn_q"),
    key: ("backbone.layers.{}.mixer.k_proj", "blk.{}.attn_k"),
    value: ("backbone.layers.{}.mixer.v_proj", "blk.{}.attn_v"),
    output: ("backbone.layers.{}.mixer.o_proj", "blk.{}.attn_output"),
    up: ("backbone.layers.{}.mixer.up_proj", "blk.{}.ffn_up"),
    down: ("backbone.layers.{}.mixer.down_proj", "blk.{}.ffn_down"),
    ..mamba::NAMES
};

const MOE_NAMES: MoeNames = MoeNames {
    router: ("backbone.layers.{}.mixer.gate", "blk.{}.ffn_gate_inp"),
    correction: &[
        (
            "backbone.layers.{}.mixer.gate.e_score_correction_bias",
            "blk.{}.exp_probs_b.bias",
        ),
        ("", "blk.{}.exp_probs_b"),
    ],
    up: ("backbone.layers.{}.mixer.experts.{e}.up_proj", "blk.{}.ffn_up_exps"),
    down: ("backbone.layers.{}.mixer.experts.{e}.down_proj", "blk.{}.ffn_down_exps"),
    shared_up: ("backbone.layers.{}.mixer.shared_experts.up_proj", "blk.{}.ffn_up_shexp"),
    shared_down: (
        "backbone.layers.{}.mixer.shared_experts.down_proj",
        "blk.{}.ffn_down_shexp",
    ),
    shared_router: ("", ""),
    ..MoeNames::QWEN
};
