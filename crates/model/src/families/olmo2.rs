//! OLMo 2: norms of each block's output alone; all query heads, and all key heads, are normed as one row.

use super::{AttentionFacts, BlockFacts, Family, HeadNormKind, HeadNorms, LocalRope, RopeFacts, Windows, llama};

pub const FAMILY: Family = Family {
    name: "olmo2",
    hf: &["olmo2"],
    gguf: &["olmo2"], // OLMo 3 too
    blocks: BlockFacts {
        pre: false,
        post: true,
        ..llama::FAMILY.blocks
    },
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Row,
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            gguf_pairs: false,
            local: LocalRope::Unscaled,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Period(4),
        ..llama::ATTENTION
    },
    ..llama::FAMILY
};
