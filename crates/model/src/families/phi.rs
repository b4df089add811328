//! Phi 1 to 2: attention and feed-forward block side by side after one norm; biases everywhere; a part of each head rotates.

use super::{AttentionFacts, BlockFacts, Family, FfnFacts, Names, NormFacts, Parallel, RopeFacts, Windows, llama};
use crate::read::keys;
use crate::spec::{Activation, NormKind};

pub const FAMILY: Family = Family {
    name: "phi",
    hf: &["phi"],
    gguf: &["phi2"],
    names: Names {
        output: ("model.layers.{}.self_attn.dense", "blk.{}.attn_output"),
        ffn_norm: ("", ""),
        up: ("model.layers.{}.mlp.fc1", "blk.{}.ffn_up"),
        down: ("model.layers.{}.mlp.fc2", "blk.{}.ffn_down"),
        final_norm: ("model.final_layernorm", "output_norm"),
        ..Names::LLAMA
    },
    refused: &["qk_layernorm"],
    norm: NormFacts {
        kind: NormKind::Layer,
        eps: keys::LAYER_EPS,
        one_plus: false,
    },
    blocks: BlockFacts {
        parallel: Parallel::Always,
        ..llama::FAMILY.blocks
    },
    attention: AttentionFacts {
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        ..llama::ATTENTION
    },
    ffn: FfnFacts {
        activation: Activation::GeluTanh,
        gated: false,
        ..llama::FAMILY.ffn
    },
    ..llama::FAMILY
};
