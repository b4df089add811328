//! MiniMax-Text-01: lightning attention in most layers, Mixtral's experts; each block's output is added to its normed input.

use super::{
    AttentionFacts, BlockFacts, Family, LightningFacts, LightningNames, NormedResidual, Number, Recurrence, Windows,
    mixtral,
};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "minimax",
    hf: &["minimax"],
    gguf: &[],
    blocks: BlockFacts {
        normed_residual: Some(NormedResidual {
            attention: [Number::Key(keys::ATTENTION_ALPHA), Number::Key(keys::ATTENTION_BETA)],
            recurrent: [Number::Key(keys::LINEAR_ALPHA), Number::Key(keys::LINEAR_BETA)],
            ffn: [Number::Key(keys::FFN_ALPHA), Number::Key(keys::FFN_BETA)],
        }),
        ..mixtral::FAMILY.blocks
    },
    attention: AttentionFacts {
        windows: Windows::All,
        ..mixtral::FAMILY.attention
    },
    recurrent: Some(Recurrence::Lightning(&LightningFacts {
        names: LightningNames {
            qkv: ("model.layers.{}.self_attn.qkv_proj", ""),
            norm: ("model.layers.{}.self_attn.norm", ""),
            gate: ("model.layers.{}.self_attn.output_gate", ""),
            output: ("model.layers.{}.self_attn.out_proj", ""),
        },
        norm_eps: 1e-6,
    })),
    ..mixtral::FAMILY
};
