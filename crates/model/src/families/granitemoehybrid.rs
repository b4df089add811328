//! Granite 4: layers of Mamba-2 or of attention with Granite's factors, mostly without rotation; a mixture of experts and a shared
//! expert, or the shared expert alone. Bamba is published under this architecture in GGUF files.

use super::{
    AttentionFacts, Family, FusedExperts, HeadFacts, MoeFacts, MoeNames, Names, NormaliseFact, Recurrence, RopeFacts,
    RopeLayers, ScoringFact, Windows, bamba, granite,
};
use crate::read::keys;
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "granitemoehybrid",
    hf: &["granitemoehybrid"],
    gguf: &["granitehybrid"],
    names: Names {
        gate: ("", "blk.{}.ffn_gate"),
        up: ("model.layers.{}.shared_mlp.input_linear", "blk.{}.ffn_up"),
        down: ("model.layers.{}.shared_mlp.output_linear", "blk.{}.ffn_down"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        // The converter interleaves whole heads, also Bamba's, of which half rotates.
        rope: RopeFacts {
            whole_pairs: true,
            layers: RopeLayers::Named(keys::POSITIONS),
            ..granite::FAMILY.attention.rope
        },
        windows: Windows::Never,
        ..granite::FAMILY.attention
    },
    recurrent: Some(Recurrence::Mamba2(bamba::MAMBA2)),
    moe: MoeFacts {
        names: MoeNames {
            router: ("model.layers.{}.block_sparse_moe.router.layer", "blk.{}.ffn_gate_inp"),
            gate_up: ("model.layers.{}.block_sparse_moe.input_linear", ""),
            fused_down: ("model.layers.{}.block_sparse_moe.output_linear", ""),
            shared_gate: ("", "blk.{}.ffn_gate_shexp"),
            shared_up: ("model.layers.{}.shared_mlp.input_linear", "blk.{}.ffn_up_shexp"),
            shared_down: ("model.layers.{}.shared_mlp.output_linear", "blk.{}.ffn_down_shexp"),
            ..MoeNames::QWEN
        },
        scoring: ScoringFact::Fixed(Scoring::SoftmaxOfChosen),
        normalise: NormaliseFact::Never,
        fused: FusedExperts::Rows,
        ..MoeFacts::QWEN
    },
    head: HeadFacts {
        tied: false,
        ..granite::FAMILY.head
    },
    ..granite::FAMILY
};
