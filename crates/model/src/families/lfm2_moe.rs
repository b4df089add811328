//! LFM2 with a mixture of experts after the first layers, chosen by corrected sigmoids.

use super::{Family, MoeFacts, MoeNames, NormaliseFact, Number, ScoringFact, lfm2};
use crate::read::keys;
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "lfm2_moe",
    hf: &["lfm2_moe"],
    gguf: &["lfm2moe"],
    moe: MoeFacts {
        names: MoeNames {
            router: ("model.layers.{}.feed_forward.gate", "blk.{}.ffn_gate_inp"),
            correction: &[("model.layers.{}.feed_forward.expert_bias", "blk.{}.exp_probs_b.bias")],
            gate: ("model.layers.{}.feed_forward.experts.{e}.w1", "blk.{}.ffn_gate_exps"),
            up: ("model.layers.{}.feed_forward.experts.{e}.w3", "blk.{}.ffn_up_exps"),
            down: ("model.layers.{}.feed_forward.experts.{e}.w2", "blk.{}.ffn_down_exps"),
            ..MoeNames::QWEN
        },
        scoring: ScoringFact::Fixed(Scoring::Sigmoid),
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: true,
            gguf_default: true,
            eps: 1e-6,
        },
        scale: Number::Key(keys::EXPERT_SCALE),
        ..MoeFacts::QWEN
    },
    ..lfm2::FAMILY
};
