//! EXAONE 4: norms of each block's output alone; three windowed layers to each full one, which does not rotate.

use super::{AttentionFacts, BlockFacts, Family, HeadNormKind, HeadNorms, RopeFacts, RopeLayers, Windows, llama};

pub const FAMILY: Family = Family {
    name: "exaone4",
    hf: &["exaone4"],
    gguf: &["exaone4"],
    blocks: BlockFacts {
        pre: false,
        post: true,
        ..llama::FAMILY.blocks
    },
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Shared,
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            gguf_pairs: false,
            layers: RopeLayers::Windowed { or_all_without: true },
            ..llama::ATTENTION.rope
        },
        windows: Windows::Period(4),
        ..llama::ATTENTION
    },
    ..llama::FAMILY
};
