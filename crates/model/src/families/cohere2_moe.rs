//! Command A mixtures of experts: Cohere 2 in which dense layers rotate too, and the shared expert is averaged with the chosen.

use super::{AttentionFacts, Family, MoeFacts, NormaliseFact, RopeFacts, RopeLayers, ScoringFact, cohere2};
use crate::read::keys;
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "cohere2_moe",
    hf: &["cohere2_moe"],
    gguf: &["cohere2moe"],
    // RMS norms in place of those of Cohere.
    refused: &["rms_norm_eps"],
    attention: AttentionFacts {
        rope: RopeFacts {
            layers: RopeLayers::WindowedOrDense(keys::DENSE_WINDOW_PERIOD),
            ..cohere2::FAMILY.attention.rope
        },
        ..cohere2::FAMILY.attention
    },
    moe: MoeFacts {
        scoring: ScoringFact::ChosenByKey(keys::EXPERT_SCORING, Scoring::SoftmaxOfChosen),
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: true,
            gguf_default: true,
            eps: 0.0,
        },
        average_shared: true,
        ..MoeFacts::QWEN
    },
    ..cohere2::FAMILY
};
