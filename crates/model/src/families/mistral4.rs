//! Mistral 4: DeepSeek-V3 with a softmax over the experts, and queries that grow with the position.

use super::{AttentionFacts, Family, Groups, MoeFacts, PositionScaling, ScoringFact, deepseek_v3};
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "mistral4",
    hf: &["mistral4"],
    gguf: &["mistral4"],
    attention: AttentionFacts {
        position_scale: PositionScaling::RopeParameter("llama_4_scaling_beta"),
        ..deepseek_v3::FAMILY.attention
    },
    moe: MoeFacts {
        scoring: ScoringFact::Fixed(Scoring::Softmax),
        groups: Groups::BestTwo,
        ..MoeFacts::DEEPSEEK
    },
    ..deepseek_v3::FAMILY
};
