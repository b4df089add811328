//! Hunyuan 3: Qwen 3's attention, and experts by corrected sigmoid scores.

use super::{Family, Groups, MoeFacts, MoeNames, NormaliseFact, Number, hunyuan_moe, qwen3};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "hy_v3",
    hf: &["hy_v3"],
    gguf: &["hy_v3"],
    moe: MoeFacts {
        names: MoeNames {
            router: ("model.layers.{}.mlp.router.gate", "blk.{}.ffn_gate_inp"),
            correction: &[("model.layers.{}.mlp.expert_bias", "blk.{}.exp_probs_b")],
            ..hunyuan_moe::FAMILY.moe.names
        },
        groups: Groups::None,
        normalise: NormaliseFact::Always { eps: 1e-20 },
        scale: Number::KeyOr(keys::EXPERT_SCALE, 2.826),
        ..MoeFacts::DEEPSEEK
    },
    ..qwen3::FAMILY
};
