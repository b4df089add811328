//! EXAONE mixtures of experts (K-EXAONE): EXAONE 4's attention, norms before each block, experts chosen as in DeepSeek-V3.

use super::{Family, MoeFacts, MoeNames, Number, exaone4, llama};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "exaone_moe",
    hf: &["exaone_moe"],
    gguf: &["exaone-moe"],
    ignored: &["mtp."],
    blocks: llama::FAMILY.blocks,
    moe: MoeFacts {
        names: MoeNames {
            correction: &[("model.layers.{}.mlp.e_score_correction_bias", "blk.{}.exp_probs_b.bias")],
            ..MoeNames::QWEN
        },
        scale: Number::KeyOr(keys::EXPERT_SCALE, 2.5),
        ..MoeFacts::DEEPSEEK
    },
    ..exaone4::FAMILY
};
