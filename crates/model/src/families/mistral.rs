//! Mistral 7B, Nemo and their like: Llama with a window on every layer where the config has one.

use super::{Family, llama};

pub const FAMILY: Family = Family {
    name: "mistral",
    hf: &["mistral"],
    gguf: &[], // published as `llama`
    ..llama::FAMILY
};
