//! OLMo 3: OLMo 2 with three windowed layers, whose rotation is not scaled, to each full one.

use super::{Family, olmo2};

pub const FAMILY: Family = Family {
    name: "olmo3",
    hf: &["olmo3"],
    gguf: &[], // published as `olmo2`
    ..olmo2::FAMILY
};
