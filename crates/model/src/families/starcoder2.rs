//! StarCoder 2: norms and projections with biases, a tanh GELU without gate, a window.

use super::{AttentionFacts, Bias, Family, FfnFacts, HeadFacts, Names, NormFacts, RopeFacts, llama};
use crate::read::keys;
use crate::spec::{Activation, NormKind};

pub const FAMILY: Family = Family {
    name: "starcoder2",
    hf: &["starcoder2"],
    gguf: &["starcoder2"],
    names: Names {
        up: ("model.layers.{}.mlp.c_fc", "blk.{}.ffn_up"),
        down: ("model.layers.{}.mlp.c_proj", "blk.{}.ffn_down"),
        ..Names::LLAMA
    },
    norm: NormFacts {
        kind: NormKind::Layer,
        eps: keys::LAYER_EPS,
        one_plus: false,
    },
    attention: AttentionFacts {
        qkv_bias: Bias::Key(keys::USE_BIAS),
        output_bias: Bias::Key(keys::USE_BIAS),
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        ..llama::ATTENTION
    },
    ffn: FfnFacts {
        activation: Activation::GeluTanh,
        gated: false,
        bias: Bias::Key(keys::USE_BIAS),
        ..llama::FAMILY.ffn
    },
    head: HeadFacts {
        tied: true,
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
