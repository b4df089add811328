//! Qwen 3.5, text: Qwen 3-Next with a projection each for what that packs by key heads, dense or with experts whose weights always add up
//! to one. The converter to GGUF has the value heads take key heads in turns.

use super::{DeltaFacts, Family, MoeFacts, NormaliseFact, Recurrence, qwen3_next};
use crate::spec::KeySharing;

pub const FAMILY: Family = Family {
    name: "qwen3_5",
    hf: &["qwen3_5_text", "qwen3_5_moe_text"],
    gguf: &["qwen35", "qwen35moe"],
    ignored: &["mtp.", "model.visual."],
    recurrent: Some(Recurrence::DeltaNet(&DeltaFacts {
        gguf_sharing: KeySharing::InTurns,
        ..qwen3_next::DELTA_NET
    })),
    moe: MoeFacts {
        normalise: NormaliseFact::Always { eps: 0.0 },
        ..qwen3_next::FAMILY.moe
    },
    ..qwen3_next::FAMILY
};
