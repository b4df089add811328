//! Mixtral: Mistral with a mixture of experts in every layer.

use super::{Family, FusedExperts, Groups, MoeFacts, MoeNames, NormaliseFact, Number, ScoringFact, mistral};
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "mixtral",
    hf: &["mixtral"],
    gguf: &[], // published as `llama`
    ..mistral::FAMILY
};

pub const MOE: MoeFacts = MoeFacts {
    names: NAMES,
    scoring: ScoringFact::Fixed(Scoring::Softmax),
    groups: Groups::None,
    normalise: NormaliseFact::Always { eps: 0.0 },
    scale: Number::One,
    fused: FusedExperts::Rows,
    activation: None,
    weigh_input: false,
    identities: None,
    average_shared: false,
};

pub const NAMES: MoeNames = MoeNames {
    router: ("model.layers.{}.block_sparse_moe.gate", "blk.{}.ffn_gate_inp"),
    gate: (
        "model.layers.{}.block_sparse_moe.experts.{e}.w1",
        "blk.{}.ffn_gate_exps",
    ),
    up: ("model.layers.{}.block_sparse_moe.experts.{e}.w3", "blk.{}.ffn_up_exps"),
    down: (
        "model.layers.{}.block_sparse_moe.experts.{e}.w2",
        "blk.{}.ffn_down_exps",
    ),
    ..MoeNames::QWEN
};
