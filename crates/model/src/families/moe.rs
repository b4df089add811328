//! What can differ between mixtures of experts.

use super::family::Number;
use super::names::Name;
use crate::read::{Key, keys};
use crate::spec::{GatedActivation, Scoring};

/// A mixture of experts, in the layers that have a router.
#[derive(Clone, Copy, Debug)]
pub struct MoeFacts {
    pub names: MoeNames,
    pub scoring: ScoringFact,
    pub groups: Groups,
    pub normalise: NormaliseFact,
    /// Multiplies the chosen weights.
    pub scale: Number,
    /// How gate and up of all experts lie in one tensor of a Hugging Face checkpoint, where it has one. GGUF files have rows.
    pub fused: FusedExperts,
    /// Of experts with gates, where it is not the dense block's.
    pub activation: Option<GatedActivation>,
    pub weigh_input: bool,
    /// Number of further ids that return their input.
    pub identities: Option<Key>,
    /// Shared experts are averaged with the sum of the chosen, if the configuration says so here.
    pub average_shared: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct MoeNames {
    pub router: Name,
    /// Spellings of the correction of choices, with their last part.
    pub correction: &'static [Name],
    pub gate: Name,
    pub up: Name,
    pub down: Name,
    /// Gate and up of all experts in one tensor, with its last part if it has one.
    pub gate_up: Name,
    /// The downs of all experts, where gate and up are in one.
    pub fused_down: Name,
    pub shared_gate: Name,
    pub shared_up: Name,
    pub shared_down: Name,
    /// One output, whose sigmoid multiplies the shared expert's.
    pub shared_router: Name,
}

/// How logits become scores.
#[derive(Clone, Copy, Debug)]
pub enum ScoringFact {
    Fixed(Scoring),
    /// The sigmoid or softmax that the configuration names here, of the chosen logits; absent: this. GGUF files number it.
    ChosenByKey(Key, Scoring),
    /// As a GGUF file's number of the function says (absent: `gguf_default`); in checkpoints `hf`.
    GgufNumber {
        hf: Scoring,
        gguf_default: Scoring,
    },
    /// With the jitter of this key. It always chooses two.
    SparseMixer(Key),
}

/// Whether experts are chosen within the best groups.
#[derive(Clone, Copy, Debug)]
pub enum Groups {
    None,
    /// By each group's best, if the configuration's method is group-limited.
    MaxIfLimited,
    /// By the sum of each group's best two.
    BestTwo,
    /// By each group's best under softmax, by the sum of its best two under another scoring: DeepSeek 2 and 3 in one.
    OfScoring,
}

/// What chosen weights are divided by.
#[derive(Clone, Copy, Debug)]
pub enum NormaliseFact {
    Never,
    Always {
        eps: f32,
    },
    /// Their sum, if the configuration says so.
    Key {
        key: Key,
        default: bool,
        /// In GGUF files, which mostly lack the key.
        gguf_default: bool,
        eps: f32,
    },
    /// Their sum, or this number of the configuration if that is more.
    AtLeast {
        key: Key,
        default: f64,
    },
}

/// How experts lie in a fused tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedExperts {
    /// `[experts, 2·width, hidden]`, gate first; down `[experts, hidden, width]`.
    Rows,
    /// `[experts, hidden, 2·width]`, gate first; down `[experts, width, hidden]`.
    Columns,
    /// As `Columns`, with gate and up in turns.
    InterleavedColumns,
}

impl MoeFacts {
    /// As Qwen spells it, and most after it: softmax, then the choice; weights are normalised if the configuration says so.
    pub const QWEN: MoeFacts = MoeFacts {
        names: MoeNames::QWEN,
        scoring: ScoringFact::Fixed(Scoring::Softmax),
        groups: Groups::None,
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: false,
            gguf_default: true,
            eps: 0.0,
        },
        scale: Number::One,
        fused: FusedExperts::Rows,
        activation: None,
        weigh_input: false,
        identities: None,
        average_shared: false,
    };

    /// As DeepSeek-V3 spells it, and most after it: sigmoid, the choice by corrected scores within the best groups.
    pub const DEEPSEEK: MoeFacts = MoeFacts {
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
    };
}

impl MoeNames {
    pub const QWEN: MoeNames = MoeNames {
        router: ("model.layers.{}.mlp.gate", "blk.{}.ffn_gate_inp"),
        correction: &[
            (
                "model.layers.{}.mlp.gate.e_score_correction_bias",
                "blk.{}.exp_probs_b.bias",
            ),
            ("", "blk.{}.exp_probs_b"),
        ],
        gate: ("model.layers.{}.mlp.experts.{e}.gate_proj", "blk.{}.ffn_gate_exps"),
        up: ("model.layers.{}.mlp.experts.{e}.up_proj", "blk.{}.ffn_up_exps"),
        down: ("model.layers.{}.mlp.experts.{e}.down_proj", "blk.{}.ffn_down_exps"),
        gate_up: ("model.layers.{}.mlp.experts.gate_up_proj", "blk.{}.ffn_gate_up_exps"),
        fused_down: ("model.layers.{}.mlp.experts.down_proj", "blk.{}.ffn_down_exps"),
        shared_gate: ("model.layers.{}.mlp.shared_experts.gate_proj", "blk.{}.ffn_gate_shexp"),
        shared_up: ("model.layers.{}.mlp.shared_experts.up_proj", "blk.{}.ffn_up_shexp"),
        shared_down: ("model.layers.{}.mlp.shared_experts.down_proj", "blk.{}.ffn_down_shexp"),
        shared_router: ("model.layers.{}.mlp.shared_expert_gate", "blk.{}.ffn_gate_inp_shexp"),
    };

    /// The same, but checkpoints have all experts in one tensor, never in one each.
    pub const FUSED: MoeNames = MoeNames {
        gate: ("", "blk.{}.ffn_gate_exps"),
        up: ("", "blk.{}.ffn_up_exps"),
        down: ("", "blk.{}.ffn_down_exps"),
        ..MoeNames::QWEN
    };
}
