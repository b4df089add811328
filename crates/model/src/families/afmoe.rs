//! AFMoE (Trinity): mixed values times a sigmoid, norms before and after each block, rotation in windowed layers alone; embeddings may be
//! scaled by √hidden.

use super::{
    AttentionFacts, BlockFacts, EmbeddingFacts, Family, Groups, HeadNormKind, HeadNorms, MoeFacts, MoeNames, Names,
    NormaliseFact, Number, OutputGate, RopeFacts, RopeLayers, Windows, llama,
};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "afmoe",
    hf: &["afmoe"],
    gguf: &["afmoe"],
    names: Names {
        ffn_norm: ("model.layers.{}.pre_mlp_layernorm", "blk.{}.ffn_norm"),
        ffn_post_norm: ("model.layers.{}.post_mlp_layernorm", "blk.{}.post_ffw_norm"),
        ..Names::LLAMA
    },
    blocks: BlockFacts {
        post: true,
        ..llama::FAMILY.blocks
    },
    embedding: EmbeddingFacts {
        scale: Number::SqrtHiddenIf(keys::SCALE_EMBEDDINGS),
        ..llama::FAMILY.embedding
    },
    attention: AttentionFacts {
        head_norms: HeadNorms {
            kind: HeadNormKind::Shared,
            ..llama::ATTENTION.head_norms
        },
        rope: RopeFacts {
            gguf_pairs: false,
            layers: RopeLayers::Windowed { or_all_without: false },
            ..llama::ATTENTION.rope
        },
        windows: Windows::Period(4),
        output_gate: OutputGate::Projection,
        ..llama::ATTENTION
    },
    moe: MoeFacts {
        names: MoeNames {
            router: ("model.layers.{}.mlp.router.gate", "blk.{}.ffn_gate_inp"),
            correction: &[("model.layers.{}.mlp.expert_bias", "blk.{}.exp_probs_b.bias")],
            ..MoeNames::QWEN
        },
        groups: Groups::None,
        normalise: NormaliseFact::Always { eps: 1e-20 },
        ..MoeFacts::DEEPSEEK
    },
    ..llama::FAMILY
};
