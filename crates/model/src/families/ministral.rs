//! Ministral: Mistral with windowed and full layers mixed, as `layer_types` says.

use super::{Family, Windows, mistral};

pub const FAMILY: Family = Family {
    name: "ministral",
    hf: &["ministral"],
    gguf: &[], // no converter writes it
    windows: Windows::Typed,
    ..mistral::FAMILY
};
