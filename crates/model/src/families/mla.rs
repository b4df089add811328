//! What can differ between latent attentions.

use super::names::Name;

/// Latent attention (MLA), in layers that have a projection to the latent.
#[derive(Clone, Copy, Debug)]
pub struct MlaFacts {
    pub names: MlaNames,
    /// Normed latents are multiplied by √(hidden / their width).
    pub scale_latents: bool,
}

/// A query without a latent of its own, and the output, have the names of plain attention.
#[derive(Clone, Copy, Debug)]
pub struct MlaNames {
    /// Hidden → latent, and the rotated key after it.
    pub latent: Name,
    pub latent_norm: Name,
    /// Latent → for each head its key, and its value after it.
    pub up: Name,
    /// The keys of `up` alone, `[heads, latent, key]`: the other way.
    pub key_up: Name,
    /// The values of `up` alone.
    pub value_up: Name,
    /// Hidden → the query's latent.
    pub query_down: Name,
    pub query_norm: Name,
    pub query_up: Name,
}

impl MlaFacts {
    /// As DeepSeek publishes it, and most after it.
    pub const DEEPSEEK: MlaFacts = MlaFacts {
        names: MlaNames {
            latent: ("model.layers.{}.self_attn.kv_a_proj_with_mqa", "blk.{}.attn_kv_a_mqa"),
            latent_norm: ("model.layers.{}.self_attn.kv_a_layernorm", "blk.{}.attn_kv_a_norm"),
            up: ("model.layers.{}.self_attn.kv_b_proj", "blk.{}.attn_kv_b"),
            key_up: ("", "blk.{}.attn_k_b"),
            value_up: ("", "blk.{}.attn_v_b"),
            query_down: ("model.layers.{}.self_attn.q_a_proj", "blk.{}.attn_q_a"),
            query_norm: ("model.layers.{}.self_attn.q_a_layernorm", "blk.{}.attn_q_a_norm"),
            query_up: ("model.layers.{}.self_attn.q_b_proj", "blk.{}.attn_q_b"),
        },
        scale_latents: false,
    };
}
