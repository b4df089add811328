//! What can differ between latent attentions.

use super::names::Name;

/// Latent attention (MLA), in layers that have a projection to the latent.
#[derive(Clone, Copy, Debug)]
pub struct MlaFacts {
    pub names: MlaNames,
    /// Normed latents are multiplied by √(hidden / their width).
    pub scale_latents: bool,
    /// Rows attend to keys that an index chooses.
    pub indexer: Option<IndexerFacts>,
}

/// The index of latent attention that chooses keys.
#[derive(Clone, Copy, Debug)]
pub struct IndexerFacts {
    pub names: IndexerNames,
    /// Rotated dimensions, the first of a head, lie in pairs in safetensors.
    pub hf_pairs: bool,
    /// The same in GGUF.
    pub gguf_pairs: bool,
    /// A layer without an index takes the choice of the last one before.
    pub may_share: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct IndexerNames {
    pub query: Name,
    pub key: Name,
    pub key_norm: Name,
    pub weights: Name,
}

impl IndexerFacts {
    /// As DeepSeek publishes it.
    pub const DEEPSEEK: IndexerFacts = IndexerFacts {
        names: IndexerNames {
            query: ("model.layers.{}.self_attn.indexer.wq_b", "blk.{}.indexer.attn_q_b"),
            key: ("model.layers.{}.self_attn.indexer.wk", "blk.{}.indexer.attn_k"),
            key_norm: ("model.layers.{}.self_attn.indexer.k_norm", "blk.{}.indexer.k_norm"),
            weights: ("model.layers.{}.self_attn.indexer.weights_proj", "blk.{}.indexer.proj"),
        },
        hf_pairs: false,
        gguf_pairs: false,
        may_share: false,
    };
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
        indexer: None,
    };
}
