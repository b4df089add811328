//! GLM-4 (9B): neighbouring dimensions of half of each head rotate; gate and up in one matrix.

use super::{AttentionFacts, Bias, Family, Names, RopeFacts, Windows, llama};

pub const FAMILY: Family = Family {
    name: "glm",
    hf: &["glm"],
    gguf: &["chatglm"],
    names: Names {
        gate: ("", ""),
        up: ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
        ..Names::LLAMA
    },
    attention: AttentionFacts {
        output_bias: Bias::Stored,
        rope: RopeFacts {
            hf_pairs: true,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    ..llama::FAMILY
};
