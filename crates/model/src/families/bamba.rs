//! Bamba: layers of Mamba-2 or of attention, each before a feed-forward block; half of each head rotates.

use super::{AttentionFacts, Family, Mamba2Facts, MambaNames, Names, Recurrence, RopeFacts, Windows, llama};

pub const FAMILY: Family = Family {
    name: "bamba",
    hf: &["bamba"],
    gguf: &[], // published as Granite's hybrid
    names: NAMES,
    attention: AttentionFacts {
        rope: RopeFacts {
            fraction: 0.5,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    recurrent: Some(Recurrence::Mamba2(&MAMBA2)),
    ..llama::FAMILY
};

pub const MAMBA2: Mamba2Facts = Mamba2Facts {
    names: MambaNames::MAMBA,
    ..Mamba2Facts::MAMBA2
};

pub const NAMES: Names = Names {
    ffn_norm: ("model.layers.{}.pre_ff_layernorm", "blk.{}.ffn_norm"),
    gate: ("model.layers.{}.feed_forward.gate_proj", "blk.{}.ffn_gate"),
    up: ("model.layers.{}.feed_forward.up_proj", "blk.{}.ffn_up"),
    down: ("model.layers.{}.feed_forward.down_proj", "blk.{}.ffn_down"),
    final_norm: ("model.final_layernorm", "output_norm"),
    ..Names::LLAMA
};
