//! Hunyuan mixtures of experts (A13B): the dense model's attention, and a shared expert.

use super::{Family, HeadFacts, MoeFacts, MoeNames, NormaliseFact, hunyuan_dense, llama};

pub const FAMILY: Family = Family {
    name: "hunyuan_moe",
    hf: &["hunyuan_v1_moe"],
    gguf: &["hunyuan-moe"],
    moe: MoeFacts {
        names: MoeNames {
            router: ("model.layers.{}.mlp.gate.wg", "blk.{}.ffn_gate_inp"),
            shared_gate: ("model.layers.{}.mlp.shared_mlp.gate_proj", "blk.{}.ffn_gate_shexp"),
            shared_up: ("model.layers.{}.mlp.shared_mlp.up_proj", "blk.{}.ffn_up_shexp"),
            shared_down: ("model.layers.{}.mlp.shared_mlp.down_proj", "blk.{}.ffn_down_shexp"),
            ..MoeNames::QWEN
        },
        normalise: NormaliseFact::Always { eps: 0.0 },
        ..MoeFacts::QWEN
    },
    head: HeadFacts {
        tied: false,
        ..llama::FAMILY.head
    },
    ..hunyuan_dense::FAMILY
};
