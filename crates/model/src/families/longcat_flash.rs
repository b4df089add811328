//! LongCat-Flash: two latent attentions and two dense blocks a layer; the experts run beside the second half; some ids of the router return
//! their input.

use super::{
    BlockFacts, Family, Groups, Layout, MlaFacts, MlaNames, MoeFacts, MoeNames, Names, NormaliseFact, ScoringFact,
    deepseek_v3, llama,
};
use crate::read::keys;
use crate::spec::Scoring;

pub const FAMILY: Family = Family {
    name: "longcat_flash",
    hf: &["longcat_flash"],
    gguf: &[], // no converter writes it
    names: Names {
        attention_norm: ("model.layers.{}.input_layernorm.{2}", ""),
        query: ("model.layers.{}.self_attn.{2}.q_proj", ""),
        output: ("model.layers.{}.self_attn.{2}.o_proj", ""),
        ffn_norm: ("model.layers.{}.post_attention_layernorm.{2}", ""),
        gate: ("model.layers.{}.mlps.{2}.gate_proj", ""),
        up: ("model.layers.{}.mlps.{2}.up_proj", ""),
        down: ("model.layers.{}.mlps.{2}.down_proj", ""),
        ..Names::LLAMA
    },
    ignored: &["model.mtp."],
    blocks: BlockFacts {
        layout: Layout::Halves,
        ..llama::FAMILY.blocks
    },
    mla: Some(MlaFacts {
        names: MlaNames {
            latent: ("model.layers.{}.self_attn.{2}.kv_a_proj_with_mqa", ""),
            latent_norm: ("model.layers.{}.self_attn.{2}.kv_a_layernorm", ""),
            up: ("model.layers.{}.self_attn.{2}.kv_b_proj", ""),
            key_up: ("", ""),
            value_up: ("", ""),
            query_down: ("model.layers.{}.self_attn.{2}.q_a_proj", ""),
            query_norm: ("model.layers.{}.self_attn.{2}.q_a_layernorm", ""),
            query_up: ("model.layers.{}.self_attn.{2}.q_b_proj", ""),
        },
        scale_latents: true,
        indexer: None,
    }),
    moe: MoeFacts {
        names: MoeNames {
            router: ("model.layers.{}.mlp.router.classifier", ""),
            correction: &[("model.layers.{}.mlp.router.e_score_correction_bias", "")],
            ..MoeNames::QWEN
        },
        scoring: ScoringFact::Fixed(Scoring::Softmax),
        groups: Groups::None,
        normalise: NormaliseFact::Never,
        identities: Some(keys::IDENTITY_EXPERTS),
        ..MoeFacts::DEEPSEEK
    },
    ..deepseek_v3::FAMILY
};
