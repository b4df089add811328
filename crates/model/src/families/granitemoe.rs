//! Granite 3 mixtures of experts: the choice is by logits, whose softmax over the chosen weighs. GGUF files may have a shared expert.

use super::{Family, FusedExperts, MoeFacts, MoeNames, NormaliseFact, ScoringFact, granite};
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "granitemoe",
    hf: &["granitemoe"],
    gguf: &["granitemoe"],
    moe: MoeFacts {
        names: NAMES,
        scoring: ScoringFact::Fixed(Scoring::SoftmaxOfChosen),
        normalise: NormaliseFact::Never,
        fused: FusedExperts::Rows,
        ..MoeFacts::QWEN
    },
    ..granite::FAMILY
};

const NAMES: MoeNames = MoeNames {
    router: ("model.layers.{}.block_sparse_moe.router.layer", "blk.{}.ffn_gate_inp"),
    gate_up: ("model.layers.{}.block_sparse_moe.input_linear", ""),
    fused_down: ("model.layers.{}.block_sparse_moe.output_linear", ""),
    shared_gate: ("", "blk.{}.ffn_gate_shexp"),
    shared_up: ("model.layers.{}.shared_mlp.input_linear", "blk.{}.ffn_up_shexp"),
    shared_down: ("model.layers.{}.shared_mlp.output_linear", "blk.{}.ffn_down_shexp"),
    ..MoeNames::FUSED
};
