//! Names of tensors.

/// A tensor's name in Hugging Face checkpoints and in GGUF files, without `.weight` / `.bias`. `{}` stands for the layer, `{2}` for a
/// half of it, `{e}` for an expert, `{h}` for a head. `|` sets spellings apart, of which a layer has one. Empty: such files do not have it.
pub type Name = (&'static str, &'static str);

#[derive(Clone, Copy, Debug)]
pub struct Names {
    pub embedding: Name,
    pub positions: Name,
    pub embedding_norm: Name,
    pub attention_norm: Name,
    /// Query, key and value in one.
    pub qkv: Name,
    pub query: Name,
    pub key: Name,
    pub value: Name,
    pub output: Name,
    pub output_gate: Name,
    pub query_norm: Name,
    pub key_norm: Name,
    /// With its last part, as it has no `.weight`.
    pub sinks: Name,
    pub attention_post_norm: Name,
    pub ffn_norm: Name,
    pub gate: Name,
    pub up: Name,
    pub down: Name,
    pub ffn_post_norm: Name,
    /// Parameters of an activation, as parts of this name.
    pub xielu: Name,
    /// With its last part: one number that multiplies the stream that leaves a layer.
    pub layer_scale: Name,
    pub final_norm: Name,
    pub head: Name,
}

impl Names {
    /// As Llama spells them, and most after it.
    pub const LLAMA: Names = Names {
        embedding: ("model.embed_tokens", "token_embd"),
        positions: ("", "position_embd"),
        embedding_norm: ("", "token_embd_norm"),
        attention_norm: ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
        qkv: ("model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
        query: ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
        key: ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
        value: ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
        output: ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
        output_gate: ("model.layers.{}.self_attn.gate_proj", "blk.{}.attn_gate"),
        query_norm: ("model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"),
        key_norm: ("model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"),
        sinks: ("model.layers.{}.self_attn.sinks", "blk.{}.attn_sinks.weight"),
        attention_post_norm: ("model.layers.{}.post_attention_layernorm", "blk.{}.post_attention_norm"),
        ffn_norm: ("model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
        gate: ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
        up: ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
        down: ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
        ffn_post_norm: ("model.layers.{}.post_feedforward_layernorm", "blk.{}.post_ffw_norm"),
        xielu: ("model.layers.{}.mlp.act_fn", ""),
        layer_scale: ("model.layers.{}.layer_scalar", "blk.{}.layer_output_scale.weight"),
        final_norm: ("model.norm", "output_norm"),
        head: ("lm_head", "output"),
    };
}
