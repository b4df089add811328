//! MiMo-V2-Flash: windowed layers have twice the KV heads, sinks and a rotation of their own; keys are wider than values, which are scaled.

use super::{AttentionFacts, Family, LocalRope, MoeFacts, Names, Number, RopeFacts, WindowedKvHeads, Windows, llama};
use crate::read::keys;

pub const FAMILY: Family = Family {
    name: "mimo_v2_flash",
    hf: &["mimo_v2_flash"],
    gguf: &["mimo2"],
    names: Names {
        sinks: (
            "model.layers.{}.self_attn.attention_sink_bias",
            "blk.{}.attn_sinks.weight",
        ),
        ..Names::LLAMA
    },
    ignored: &["model.mtp."],
    attention: AttentionFacts {
        windowed_kv_heads: WindowedKvHeads::KeyOrTimes(keys::WINDOW_KV_HEADS, 2),
        rope: RopeFacts {
            gguf_pairs: false,
            local: LocalRope::OwnBase,
            ..llama::ATTENTION.rope
        },
        windows: Windows::Typed,
        value_scale: Number::Key(keys::VALUE_SCALE),
        ..llama::ATTENTION
    },
    moe: MoeFacts::DEEPSEEK,
    ..llama::FAMILY
};
