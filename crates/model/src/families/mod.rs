//! The families, one file of data each. What the fields of a [`Family`] mean is in `family` and `moe`; what is peculiar about a family is
//! in its file.

mod afmoe;
mod apertus;
mod arcee;
mod bamba;
mod bloom;
mod cohere;
mod cohere2;
mod cohere2_moe;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod dots1;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod family;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod granitemoeshared;
mod hunyuan_dense;
mod hunyuan_moe;
mod hy_v3;
mod kimi_linear;
mod lfm2;
mod lfm2_moe;
mod llama;
mod llama4;
mod longcat_flash;
mod mamba;
mod mamba2;
mod mimo_v2_flash;
mod minicpm3;
mod minimax;
mod minimax_m2;
mod ministral;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod mla;
mod moe;
mod names;
mod nemotron;
mod nemotron_h;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod phi;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod recurrence;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

pub use family::{
    Alibi, AttentionFacts, AttentionScale, BesideFacts, Bias, BlockFacts, EmbeddingFacts, Family, FfnFacts, HeadFacts,
    HeadNormKind, HeadNorms, Layout, LocalRope, NormFacts, NormedResidual, Number, OutputGate, Parallel, PerLayerFacts,
    PositionScaling, Qkv, RopeFacts, RopeLayers, WindowedKvHeads, Windows,
};
pub use mla::{IndexerFacts, MlaFacts, MlaNames};
pub use moe::{FusedExperts, Groups, MoeFacts, MoeNames, NormaliseFact, ScoringFact};
pub use names::{Name, Names};
pub use recurrence::{
    DeltaFacts, DeltaNames, DtLimits, GatedNormFacts, LightningFacts, LightningNames, Mamba2Facts, MambaFacts,
    MambaNames, Recurrence, ShortConvFacts,
};

/// Every family that this build reads.
pub const ALL: &[&Family] = &[
    &afmoe::FAMILY,
    &apertus::FAMILY,
    &arcee::FAMILY,
    &bamba::FAMILY,
    &bloom::FAMILY,
    &cohere::FAMILY,
    &cohere2::FAMILY,
    &cohere2_moe::FAMILY,
    &deepseek_v2::FAMILY,
    &deepseek_v3::FAMILY,
    &deepseek_v32::FAMILY,
    &dots1::FAMILY,
    &ernie4_5::FAMILY,
    &ernie4_5_moe::FAMILY,
    &exaone4::FAMILY,
    &exaone_moe::FAMILY,
    &falcon::FAMILY,
    &falcon_h1::FAMILY,
    &gemma::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &gemma4::FAMILY,
    &glm::FAMILY,
    &glm4::FAMILY,
    &glm4_moe::FAMILY,
    &glm4_moe_lite::FAMILY,
    &glm_moe_dsa::FAMILY,
    &gpt2::FAMILY,
    &gpt_neox::FAMILY,
    &gpt_oss::FAMILY,
    &granite::FAMILY,
    &granitemoe::FAMILY,
    &granitemoehybrid::FAMILY,
    &granitemoeshared::FAMILY,
    &hunyuan_dense::FAMILY,
    &hunyuan_moe::FAMILY,
    &hy_v3::FAMILY,
    &kimi_linear::FAMILY,
    &lfm2::FAMILY,
    &lfm2_moe::FAMILY,
    &llama::FAMILY,
    &llama4::FAMILY,
    &longcat_flash::FAMILY,
    &mamba::FAMILY,
    &mamba2::FAMILY,
    &mimo_v2_flash::FAMILY,
    &minicpm3::FAMILY,
    &minimax::FAMILY,
    &minimax_m2::FAMILY,
    &ministral::FAMILY,
    &ministral3::FAMILY,
    &mistral::FAMILY,
    &mistral4::FAMILY,
    &mixtral::FAMILY,
    &nemotron::FAMILY,
    &nemotron_h::FAMILY,
    &olmo2::FAMILY,
    &olmo3::FAMILY,
    &olmo_hybrid::FAMILY,
    &olmoe::FAMILY,
    &phi::FAMILY,
    &phi3::FAMILY,
    &phimoe::FAMILY,
    &qwen2::FAMILY,
    &qwen2_moe::FAMILY,
    &qwen3::FAMILY,
    &qwen3_5::FAMILY,
    &qwen3_moe::FAMILY,
    &qwen3_next::FAMILY,
    &seed_oss::FAMILY,
    &smollm3::FAMILY,
    &stablelm::FAMILY,
    &starcoder2::FAMILY,
];
