//! Qwen 1.5 and 2 mixtures of experts: Qwen 2 with a shared expert whose weight is a sigmoid of the input.

use super::{AttentionFacts, Family, MoeFacts, MoeNames, NormaliseFact, Windows, qwen2};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "qwen2_moe",
    hf: &["qwen2_moe"],
    gguf: &["qwen2moe"],
    attention: AttentionFacts {
        windows: Windows::Typed,
        ..qwen2::FAMILY.attention
    },
    moe: MoeFacts {
        names: MoeNames {
            shared_gate: ("model.layers.{}.mlp.shared_expert.gate_proj", "blk.{}.ffn_gate_shexp"),
            shared_up: ("model.layers.{}.mlp.shared_expert.up_proj", "blk.{}.ffn_up_shexp"),
            shared_down: ("model.layers.{}.mlp.shared_expert.down_proj", "blk.{}.ffn_down_shexp"),
            ..MoeNames::QWEN
        },
        // GGUF files lack the key, and no published model normalises.
        normalise: NormaliseFact::Key {
            key: keys::NORMALISE_EXPERTS,
            default: false,
            gguf_default: false,
            eps: 0.0,
        },
        ..MoeFacts::QWEN
    },
    ..qwen2::FAMILY
};
