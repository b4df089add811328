//! SmolLM 3: Llama in which every fourth layer does not rotate; embedding and head share a table.

use super::{AttentionFacts, Family, HeadFacts, RopeFacts, RopeLayers, Windows, llama};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "smollm3",
    hf: &["smollm3"],
    gguf: &["smollm3"],
    attention: AttentionFacts {
        rope: RopeFacts {
            layers: RopeLayers::Listed {
                list: keys::ROPE_LAYERS,
                period: keys::ROPE_LAYER_PERIOD,
                default_period: 4,
            },
            ..llama::ATTENTION.rope
        },
        windows: Windows::Typed,
        ..llama::ATTENTION
    },
    head: HeadFacts {
        tied: true,
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
