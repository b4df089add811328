//! Phi 3.5 MoE: norms and projections with biases, two experts by a sparse mixer, LongRoPE with factors of its own.

use super::{AttentionFacts, Family, MoeFacts, NormFacts, NormaliseFact, RopeFacts, ScoringFact, llama, mixtral};
use crate::read::keys;
use crate::spec::NormKind;

pub const FAMILY: Family = Family {
    name: "phimoe",
    hf: &["phimoe"],
    gguf: &["phimoe"],
    norm: NormFacts {
        kind: NormKind::Layer,
        eps: keys::RMS_EPS,
        one_plus: false,
    },
    attention: AttentionFacts {
        rope: RopeFacts {
            gguf_pairs: false,
            ..llama::ATTENTION.rope
        },
        ..llama::ATTENTION
    },
    moe: MoeFacts {
        scoring: ScoringFact::SparseMixer(keys::ROUTER_JITTER),
        normalise: NormaliseFact::Never,
        ..mixtral::MOE
    },
    ..llama::FAMILY
};
