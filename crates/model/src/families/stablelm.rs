//! StableLM 2: norms with biases, a quarter of each head rotates; the large one norms every head by weights of its own and has its blocks
//! side by side.

use super::{
    AttentionFacts, Bias, BlockFacts, Family, HeadNormKind, HeadNorms, Names, NormFacts, Parallel, RopeFacts, llama,
};
use crate::read::keys;
use crate::spec::NormKind;

pub const FAMILY: Family = Family {
    name: "stablelm",
    hf: &["stablelm"],
    gguf: &["stablelm"],
    names: Names {
        query_norm: ("model.layers.{}.self_attn.q_layernorm.norms.{h}", "blk.{}.attn_q_norm"),
        key_norm: ("model.layers.{}.self_attn.k_layernorm.norms.{h}", "blk.{}.attn_k_norm"),
        ..Names::LLAMA
    },
    norm: NormFacts {
        kind: NormKind::Layer,
        eps: keys::LAYER_EPS,
        one_plus: false,
    },
    blocks: BlockFacts {
        parallel: Parallel::Key(keys::PARALLEL_RESIDUAL, false),
        ..llama::FAMILY.blocks
    },
    attention: AttentionFacts {
        qkv_bias: Bias::Key(keys::QKV_BIAS),
        head_norms: HeadNorms {
            kind: HeadNormKind::OwnTensors,
            norm: NormKind::Layer,
            only_if: Some((keys::QK_NORM, false)),
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        ..llama::ATTENTION
    },
    ..llama::FAMILY
};
