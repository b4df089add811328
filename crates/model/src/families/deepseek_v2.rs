//! DeepSeek-V2: V3 with a softmax over the experts.

use super::{Family, Groups, MoeFacts, NormaliseFact, ScoringFact, deepseek_v3};
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "deepseek_v2",
    hf: &["deepseek_v2"],
    gguf: &[], // published as `deepseek2`
    moe: MoeFacts {
        scoring: ScoringFact::Fixed(Scoring::Softmax),
        groups: Groups::MaxIfLimited,
        // The reference does not look at the configuration's key.
        normalise: NormaliseFact::Never,
        ..MoeFacts::DEEPSEEK
    },
    ..deepseek_v3::FAMILY
};
