//! GLM-4-0414: GLM with a norm of each block's output too.

use super::{BlockFacts, Family, Names, glm};

pub const FAMILY: Family = Family {
    name: "glm4",
    hf: &["glm4"],
    gguf: &["glm4"],
    names: Names {
        attention_post_norm: ("model.layers.{}.post_self_attn_layernorm", "blk.{}.post_attention_norm"),
        ffn_post_norm: ("model.layers.{}.post_mlp_layernorm", "blk.{}.post_ffw_norm"),
        ..glm::FAMILY.names
    },
    blocks: BlockFacts {
        post: true,
        ..glm::FAMILY.blocks
    },
    ..glm::FAMILY
};
