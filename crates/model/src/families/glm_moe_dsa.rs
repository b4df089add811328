//! GLM 5: DeepSeek-V3.2 with an index rotated like the attention, whose choice serves several layers.

use super::{Family, IndexerFacts, MlaFacts, deepseek_v3};

pub const FAMILY: Family = Family {
    name: "glm_moe_dsa",
    hf: &["glm_moe_dsa"],
    gguf: &["glm-dsa"],
    mla: Some(MlaFacts {
        indexer: Some(IndexerFacts {
            hf_pairs: true,
            gguf_pairs: true,
            may_share: true,
            ..IndexerFacts::DEEPSEEK
        }),
        ..MlaFacts::DEEPSEEK
    }),
    ..deepseek_v3::FAMILY
};
