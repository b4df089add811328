//! GLM 4.7 Flash: DeepSeek-V3 in other sizes.

use super::{Family, deepseek_v3};

pub const FAMILY: Family = Family {
    name: "glm4_moe_lite",
    hf: &["glm4_moe_lite"],
    gguf: &[], // published as `deepseek2`
    ..deepseek_v3::FAMILY
};
