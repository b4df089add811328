//! dots.llm1: Qwen 3 with experts chosen as in DeepSeek-V3.

use super::{AttentionFacts, Family, MoeFacts, NormaliseFact, Windows, qwen3};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "dots1",
    hf: &["dots1"],
    gguf: &["dots1"],
    attention: AttentionFacts {
        windows: Windows::Typed,
        ..qwen3::FAMILY.attention
    },
    moe: MoeFacts {
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: false,
            gguf_default: false,
            eps: 1e-20,
        },
        ..MoeFacts::DEEPSEEK
    },
    ..qwen3::FAMILY
};
