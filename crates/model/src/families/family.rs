//! What can differ between families of decoders, as data. Every field is a fact about how such models are published.

use crate::read::Key;
use crate::spec::Activation;

/// A family: which files it reads, and its choices.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    /// `model_type` of Hugging Face configs.
    pub hf: &'static [&'static str],
    /// `general.architecture` of GGUF files.
    pub gguf: &'static [&'static str],
    pub names: Names,
    /// Norms of the checkpoint hold w of `1 + w`. GGUF files hold the sum.
    pub one_plus_norms: bool,
    /// Each sublayer's output is normed too (names `attention_post_norm`, `ffn_post_norm`).
    pub post_norms: bool,
    /// Each query and key head is normed before the rotation.
    pub head_norms: bool,
    /// Embedding rows are multiplied by √hidden.
    pub embedding_sqrt_hidden: bool,
    pub qkv_bias: Bias,
    pub output_bias: Bias,
    pub mlp_bias: Bias,
    /// Where the file names none.
    pub activation: Activation,
    pub rope_rows: RopeRows,
    pub rope_layers: RopeLayers,
    /// Windowed layers rotate by a base of their own, unscaled.
    pub local_rope: bool,
    pub windows: Windows,
    pub attention_scale: AttentionScale,
    /// Scores and logits may be capped.
    pub softcaps: bool,
    /// Whether embedding and head share a table when a Hugging Face config does not say.
    pub tied: bool,
}

/// Whether a projection has a bias.
#[derive(Clone, Copy, Debug)]
pub enum Bias {
    Never,
    Always,
    /// As this key of the config says (absent: no); in GGUF files, which lack it, as the tensors say.
    Key(Key),
}

/// Whether files hold the rows of query and key as halves or as pairs.
#[derive(Clone, Copy, Debug)]
pub struct RopeRows {
    pub hf_pairs: bool,
    pub gguf_pairs: bool,
}

/// Which layers rotate.
#[derive(Clone, Copy, Debug)]
pub enum RopeLayers {
    All,
    /// A list of 0 and 1 (1 = rotates); absent: every `default_period`-th layer does not.
    Listed {
        list: Key,
        period: Key,
        default_period: usize,
    },
}

/// Which layers see a window only. A config's `layer_types` wins where it is given.
#[derive(Clone, Copy, Debug)]
pub enum Windows {
    Never,
    /// Every layer, if the config has a window.
    All,
    /// As `layer_types` says, which must be there if the config has a window.
    Typed,
    /// Layers from `max_window_layers` on, if `use_sliding_window`.
    Upper,
    /// All but every n-th layer; n from the config, else this.
    Period(usize),
}

/// What multiplies attention scores.
#[derive(Clone, Copy, Debug)]
pub enum AttentionScale {
    /// head_dim^−½
    HeadDim,
    /// `query_pre_attn_scalar`^−½. Files without the key (all GGUF ones): head_dim, but hidden / heads in the model of this many layers,
    /// whose published configuration says so.
    QueryScalar { hidden_per_head_at_layers: usize },
}

/// Names of tensors, without `.weight` / `.bias`; `{}` stands for the layer.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    pub embedding: Name,
    pub attention_norm: Name,
    pub query: Name,
    pub key: Name,
    pub value: Name,
    pub output: Name,
    pub query_norm: Name,
    pub key_norm: Name,
    pub attention_post_norm: Name,
    pub ffn_norm: Name,
    pub gate: Name,
    pub up: Name,
    pub down: Name,
    pub ffn_post_norm: Name,
    pub final_norm: Name,
    pub head: Name,
}

/// A tensor's name in Hugging Face checkpoints and in GGUF files.
pub type Name = (&'static str, &'static str);

impl Names {
    /// As Llama spells them, and most after it.
    pub const LLAMA: Names = Names {
        embedding: ("model.embed_tokens", "token_embd"),
        attention_norm: ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
        query: ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
        key: ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
        value: ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
        output: ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
        query_norm: ("model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"),
        key_norm: ("model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"),
        attention_post_norm: ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ffn_norm: ("model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
        gate: ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
        up: ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
        down: ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
        ffn_post_norm: ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
        final_norm: ("model.norm", "output_norm"),
        head: ("lm_head", "output"),
    };
}
