//! Llama 4, its text: layers that rotate see chunks and norm queries and keys without weights, the others scale queries by the position;
//! the router's weight multiplies an expert's input.

use super::{
    AttentionFacts, Family, FusedExperts, HeadNormKind, HeadNorms, MoeFacts, MoeNames, Names, NormaliseFact,
    PositionScaling, RopeFacts, RopeLayers, ScoringFact, Windows, llama,
};
use crate::read::keys;
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "llama4",
    hf: &["llama4_text", "llama4"],
    gguf: &["llama4"],
    names: Names {
        gate: ("model.layers.{}.feed_forward.gate_proj", "blk.{}.ffn_gate"),
        up: ("model.layers.{}.feed_forward.up_proj", "blk.{}.ffn_up"),
        down: ("model.layers.{}.feed_forward.down_proj", "blk.{}.ffn_down"),
        ..Names::LLAMA
    },
    ignored: &["vision_model.", "multi_modal_projector."],
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::WeightlessIfRotating,
            only_if: Some((keys::QK_NORM, true)),
            gguf_without_at_experts: Some(128),
            ..llama::ATTENTION.head_norms
        },
        norm_after_rope: true,
        rope: RopeFacts {
            hf_pairs: true,
            layers: RopeLayers::Listed {
                list: keys::ROPE_LAYERS,
                period: keys::ROPE_LAYER_PERIOD,
                default_period: 4,
            },
            ..llama::ATTENTION.rope
        },
        windows: Windows::Chunks(keys::CHUNK, 8192),
        position_scale: PositionScaling::Unrotated {
            on: keys::UNROTATED_TUNING,
            floor: keys::UNROTATED_FLOOR,
            scale: keys::UNROTATED_SCALE,
        },
        ..llama::ATTENTION
    },
    moe: MoeFacts {
        names: MOE_NAMES,
        scoring: ScoringFact::Fixed(Scoring::SigmoidOfChosen),
        normalise: NormaliseFact::Never,
        fused: FusedExperts::Columns,
        weigh_input: true,
        ..MoeFacts::QWEN
    },
    ..llama::FAMILY
};

const MOE_NAMES: MoeNames = MoeNames {
    router: ("model.layers.{}.feed_forward.router", "blk.{}.ffn_gate_inp"),
    gate_up: ("model.layers.{}.feed_forward.experts.gate_up_proj", ""),
    fused_down: ("model.layers.{}.feed_forward.experts.down_proj", ""),
    shared_gate: (
        "model.layers.{}.feed_forward.shared_expert.gate_proj",
        "blk.{}.ffn_gate_shexp",
    ),
    shared_up: (
        "model.layers.{}.feed_forward.shared_expert.up_proj",
        "blk.{}.ffn_up_shexp",
    ),
    shared_down: (
        "model.layers.{}.feed_forward.shared_expert.down_proj",
        "blk.{}.ffn_down_shexp",
    ),
    ..MoeNames::FUSED
};
