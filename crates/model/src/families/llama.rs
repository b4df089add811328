//! Llama 1 to 3 and the many models published in its shape (SmolLM, TinyLlama, …): the base that other families change.

use super::{AttentionScale, Bias, Family, Names, RopeLayers, RopeRows, Windows};
use crate::read::keys;
use crate::spec::Activation;

pub const FAMILY: Family = Family {
    name: "llama",
    hf: &["llama"],
    gguf: &["llama"],
    names: Names::LLAMA,
    one_plus_norms: false,
    post_norms: false,
    head_norms: false,
    embedding_sqrt_hidden: false,
    qkv_bias: Bias::Key(keys::ATTENTION_BIAS),
    output_bias: Bias::Key(keys::ATTENTION_BIAS),
    mlp_bias: Bias::Key(keys::MLP_BIAS),
    activation: Activation::Silu,
    // The converter to GGUF interleaves the rows of query and key for this architecture.
    rope_rows: RopeRows {
        hf_pairs: false,
        gguf_pairs: true,
    },
    rope_layers: RopeLayers::All,
    local_rope: false,
    // Mistral's window under this architecture's name in GGUF files; a Llama has none.
    windows: Windows::All,
    attention_scale: AttentionScale::HeadDim,
    softcaps: false,
    tied: false,
};
