//! DeepSeek-V3.2: DeepSeek-V3 whose attention looks at the keys that an index chooses.

use super::{Family, IndexerFacts, MlaFacts, deepseek_v3};

pub const FAMILY: Family = Family {
    name: "deepseek_v32",
    hf: &["deepseek_v32"],
    gguf: &["deepseek32"],
    mla: Some(MlaFacts {
        indexer: Some(IndexerFacts::DEEPSEEK),
        ..MlaFacts::DEEPSEEK
    }),
    ..deepseek_v3::FAMILY
};
