//! The families, one file of data each. What the fields of a [`Family`] mean is in `read`; what is peculiar about a family is in its file.

mod family;
mod gemma3;
mod llama;
mod ministral;
mod mistral;
mod qwen2;
mod qwen3;
mod smollm3;

pub use family::{AttentionScale, Bias, Family, Name, Names, RopeLayers, RopeRows, Windows};

/// Every family that this build reads.
pub const ALL: &[&Family] = &[
    &gemma3::FAMILY,
    &llama::FAMILY,
    &ministral::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &smollm3::FAMILY,
];
