//! The families, one file of data each. What the fields of a [`Family`] mean is in `family` and `moe`; what is peculiar about a family is
//! in its file.

mod apertus;
mod arcee;
mod bloom;
mod cohere;
mod cohere2;
mod ernie4_5;
mod exaone4;
mod falcon;
mod family;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod glm4;
mod gpt2;
mod gpt_neox;
mod granite;
mod hunyuan_dense;
mod llama;
mod ministral;
mod ministral3;
mod mistral;
mod mixtral;
mod mla;
mod moe;
mod names;
mod nemotron;
mod olmo2;
mod olmo3;
mod phi;
mod phi3;
mod qwen2;
mod qwen3;
mod recurrence;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

pub use family::{
    Alibi, AttentionFacts, AttentionScale, BesideFacts, Bias, BlockFacts, EmbeddingFacts, Family, FfnFacts, HeadFacts,
    HeadNormKind, HeadNorms, Layout, LocalRope, NormFacts, Number, OutputGate, Parallel, PerLayerFacts,
    PositionScaling, Qkv, RopeFacts, RopeLayers, Windows,
};
pub use mla::MlaFacts;
pub use moe::{FusedExperts, Groups, MoeFacts, MoeNames, NormaliseFact, ScoringFact};
pub use names::{Name, Names};
pub use recurrence::Recurrence;

/// Every family that this build reads.
pub const ALL: &[&Family] = &[
    &apertus::FAMILY,
    &arcee::FAMILY,
    &bloom::FAMILY,
    &cohere::FAMILY,
    &cohere2::FAMILY,
    &ernie4_5::FAMILY,
    &exaone4::FAMILY,
    &falcon::FAMILY,
    &gemma::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &glm::FAMILY,
    &glm4::FAMILY,
    &gpt2::FAMILY,
    &gpt_neox::FAMILY,
    &granite::FAMILY,
    &hunyuan_dense::FAMILY,
    &llama::FAMILY,
    &ministral::FAMILY,
    &ministral3::FAMILY,
    &mistral::FAMILY,
    &mixtral::FAMILY,
    &nemotron::FAMILY,
    &olmo2::FAMILY,
    &olmo3::FAMILY,
    &phi::FAMILY,
    &phi3::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &seed_oss::FAMILY,
    &smollm3::FAMILY,
    &stablelm::FAMILY,
    &starcoder2::FAMILY,
];
