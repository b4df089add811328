//! Granite 4: layers of Mamba-2 or of attention with Granite's factors, mostly without rotation; a mixture of experts and a shared
//! expert, or the shared expert alone. Bamba is published under this architecture in GGUF files.

use super::{
    AttentionFacts, Family, HeadFacts, Names, Recurrence, RopeFacts, RopeLayers, Windows, bamba, granite, granitemoe,
};
use crate::read::keys;

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
    recurrent: Some(Recurrence::Mamba2(&bamba::MAMBA2)),
    moe: granitemoe::FAMILY.moe,
    head: HeadFacts {
        tied: false,
        ..granite::FAMILY.head
    },
    ..granite::FAMILY
};
