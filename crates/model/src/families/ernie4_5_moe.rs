//! ERNIE 4.5 mixtures of experts: the choice is by corrected softmax scores.

use super::{Family, MoeFacts, MoeNames, NormaliseFact, ernie4_5};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "ernie4_5_moe",
    hf: &["ernie4_5_moe"],
    gguf: &["ernie4_5-moe"],
    ignored: &["model.mtp_"],
    moe: MoeFacts {
        names: MoeNames {
            correction: &[(
                "model.layers.{}.mlp.moe_statics.e_score_correction_bias",
                "blk.{}.exp_probs_b.bias",
            )],
            ..MoeNames::QWEN
        },
        normalise: NormaliseFact::AtLeast {
            key: keys::EXPERT_SUM_MIN,
            default: 1e-12,
        },
        ..MoeFacts::QWEN
    },
    ..ernie4_5::FAMILY
};
