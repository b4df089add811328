//! Gemma 3, text: norms around both sublayers, norms stored as w of 1 + w, five windowed layers to each full one with a base of their own.

use super::{AttentionScale, Bias, Family, Names, RopeRows, Windows, llama};
use crate::read::keys;
use crate::spec::Activation;

pub const FAMILY: Family = Family {
    name: "gemma3",
    hf: &["gemma3_text"],
    gguf: &["gemma3"],
    names: Names {
        // Here `post_attention_layernorm` is what its name says; the feed-forward block has a norm of its own.
        ffn_norm: ("model.layers.{}.pre_feedforward_layernorm", "blk.{}.ffn_norm"),
        ..Names::LLAMA
    },
    one_plus_norms: true,
    post_norms: true,
    head_norms: true,
    embedding_sqrt_hidden: true,
    qkv_bias: Bias::Key(keys::ATTENTION_BIAS),
    output_bias: Bias::Key(keys::ATTENTION_BIAS),
    mlp_bias: Bias::Never,
    activation: Activation::GeluTanh,
    rope_rows: RopeRows {
        hf_pairs: false,
        gguf_pairs: false,
    },
    local_rope: true,
    windows: Windows::Period(6),
    attention_scale: AttentionScale::QueryScalar {
        hidden_per_head_at_layers: 62,
    },
    softcaps: true,
    tied: true,
    ..llama::FAMILY
};
