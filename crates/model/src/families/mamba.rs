//! Mamba: a selective scan a layer, and nothing else.

use super::{
    AttentionFacts, BlockFacts, Family, HeadFacts, Layout, MambaFacts, MambaNames, Names, Recurrence, Windows, llama,
};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "mamba",
    hf: &["mamba"],
    gguf: &["mamba"],
    names: NAMES,
    blocks: BlockFacts {
        layout: Layout::One,
        ..llama::FAMILY.blocks
    },
    attention: AttentionFacts {
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    recurrent: Some(Recurrence::Mamba(&MambaFacts {
        names: MambaNames::MIXER,
        activation: keys::ACTIVATION,
    })),
    head: HeadFacts {
        tied: true,
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};

pub const NAMES: Names = Names {
    embedding: ("backbone.embeddings", "token_embd"),
    attention_norm: ("backbone.layers.{}.norm", "blk.{}.attn_norm"),
    // What a layer lacks that has no block.
    up: MambaNames::MIXER.input,
    final_norm: ("backbone.norm_f", "output_norm"),
    ..Names::LLAMA
};
