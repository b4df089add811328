//! Falcon-H1: attention and Mamba-2 side by side in every layer, with a factor on nearly everything. Converters to GGUF multiply the
//! weights by the factors, and files of that kind have the gate before the norm.

use super::{
    AttentionFacts, BlockFacts, EmbeddingFacts, Family, FfnFacts, GatedNormFacts, HeadFacts, Layout, Mamba2Facts,
    Number, Recurrence, RopeFacts, Windows, bamba, llama,
};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "falcon_h1",
    hf: &["falcon_h1"],
    gguf: &["falcon-h1"],
    names: bamba::NAMES,
    blocks: BlockFacts {
        layout: Layout::MixersAndFfn,
        attention_scales: [
            Number::Key(keys::ATTENTION_IN_SCALE),
            Number::Key(keys::ATTENTION_OUT_SCALE),
        ],
        recurrent_scales: [Number::Key(keys::STATE_IN_SCALE), Number::Key(keys::STATE_OUT_SCALE)],
        ffn_scale: Number::Entry(keys::FFN_SCALES, 1),
        ..llama::FAMILY.blocks
    },
    embedding: EmbeddingFacts {
        scale: Number::Key(keys::EMBEDDING_SCALE),
        ..llama::FAMILY.embedding
    },
    attention: AttentionFacts {
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Never,
        key_scale: Number::Key(keys::KEY_SCALE),
        ..llama::ATTENTION
    },
    recurrent: Some(Recurrence::Mamba2(&Mamba2Facts {
        norm: GatedNormFacts {
            grouped: true,
            only_if: Some(keys::STATE_NORM),
            gate_last: Some(keys::STATE_GATE_LAST),
        },
        scales: [
            Number::Entry(keys::STATE_SCALES, 0),
            Number::Entry(keys::STATE_SCALES, 1),
            Number::Entry(keys::STATE_SCALES, 2),
            Number::Entry(keys::STATE_SCALES, 3),
            Number::Entry(keys::STATE_SCALES, 4),
        ],
        ..bamba::MAMBA2
    })),
    ffn: FfnFacts {
        gate_scale: Number::Entry(keys::FFN_SCALES, 0),
        ..llama::FAMILY.ffn
    },
    head: HeadFacts {
        scale: Number::Key(keys::HEAD_SCALE),
        ..llama::FAMILY.head
    },
    ..llama::FAMILY
};
