//! Command R: attention and feed-forward block side by side after one norm without bias; neighbouring dimensions rotate.

use super::{
    AttentionFacts, BlockFacts, Family, HeadFacts, HeadNormKind, HeadNorms, Names, NormFacts, Number, Parallel,
    RopeFacts, llama,
};
use crate::read::keys;
use crate::spec::NormKind;

pub const FAMILY: Family = Family {
    name: "cohere",
    hf: &["cohere"],
    gguf: &["command-r"],
    names: Names {
        ffn_norm: ("", ""),
        ..Names::LLAMA
    },
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
        head_norms: HeadNorms {
            kind: HeadNormKind::Own,
            norm: NormKind::Layer,
            only_if: Some((keys::QK_NORM, false)),
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            hf_pairs: true,
            ..llama::ATTENTION.rope
        },
        ..llama::ATTENTION
    },
    head: HeadFacts {
        tied: true,
        scale: Number::Key(keys::LOGIT_SCALE),
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
