//! SmolLM 3: Llama in which every fourth layer does not rotate; embedding and head share a table.

use super::{Family, RopeLayers, Windows, llama};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "smollm3",
    hf: &["smollm3"],
    gguf: &["smollm3"],
    rope_layers: RopeLayers::Listed {
        list: keys::ROPE_LAYERS,
        period: keys::ROPE_LAYER_PERIOD,
        default_period: 4,
    },
    windows: Windows::Typed,
    tied: true,
    ..llama::FAMILY
};
