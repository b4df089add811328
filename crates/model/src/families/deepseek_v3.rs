//! DeepSeek-V3, R1 and Kimi K2: Llama with latent attention and a mixture of experts after a few dense layers. GGUF files of most models
//! with this attention, DeepSeek-V2's among them, have its architecture's name and say in keys what differs.

use super::{
    AttentionFacts, Family, Groups, MlaFacts, MoeFacts, NormaliseFact, RopeFacts, ScoringFact, Windows, llama,
};
use crate::read::keys;
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "deepseek_v3",
    hf: &["deepseek_v3"],
    gguf: &["deepseek2"],
    attention: AttentionFacts {
        rope: RopeFacts {
            hf_pairs: true,
            gguf_pairs: true,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    mla: Some(MlaFacts::DEEPSEEK),
    moe: MoeFacts {
        scoring: ScoringFact::GgufNumber {
            hf: Scoring::Sigmoid,
            gguf_default: Scoring::Softmax,
        },
        groups: Groups::OfScoring,
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: true,
            gguf_default: false,
            eps: 1e-20,
        },
        ..MoeFacts::DEEPSEEK
    },
    ..llama::FAMILY
};
