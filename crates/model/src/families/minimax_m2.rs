//! MiniMax M2: all query heads, and all key heads, are normed as one row, a part of each head rotates; sigmoid scores, corrected for the
//! choice.

use super::{Family, Groups, MoeFacts, MoeNames, NormaliseFact, Number, mixtral, olmoe};

pub const FAMILY: Family = Family {
    name: "minimax_m2",
    hf: &["minimax_m2"],
    gguf: &["minimax-m2"],
    refused: &[],
    moe: MoeFacts {
        names: MoeNames {
            correction: &[(
                "model.layers.{}.block_sparse_moe.e_score_correction_bias",
                "blk.{}.exp_probs_b.bias",
            )],
            ..mixtral::NAMES
        },
        groups: Groups::None,
        normalise: NormaliseFact::Always { eps: 0.0 },
        scale: Number::One,
        ..MoeFacts::DEEPSEEK
    },
    ..olmoe::FAMILY
};
