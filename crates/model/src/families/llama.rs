//! Llama 1 to 3 and the many models published in its shape (SmolLM, TinyLlama, …): the base that other families change.

use super::{
    Alibi, AttentionFacts, AttentionScale, Bias, BlockFacts, EmbeddingFacts, Family, FfnFacts, HeadFacts, HeadNormKind,
    HeadNorms, Layout, LocalRope, Names, NormFacts, Number, OutputGate, Parallel, PositionScaling, Qkv, RopeFacts,
    RopeLayers, WindowedKvHeads, Windows,
};
use crate::read::keys;
use crate::spec::{Activation, NormKind};

pub const FAMILY: Family = Family {
    name: "llama",
    hf: &["llama"],
    gguf: &["llama"],
    names: Names::LLAMA,
    ignored: &[],
    refused: &[],
    norm: NormFacts {
        kind: NormKind::Rms,
        eps: keys::RMS_EPS,
        one_plus: false,
    },
    blocks: BlockFacts {
        layout: Layout::MixerAndFfn,
        pre: true,
        post: false,
        pre_or_post: false,
        parallel: Parallel::Never,
        residual_scale: Number::One,
        attention_scales: [Number::One; 2],
        recurrent_scales: [Number::One; 2],
        ffn_scale: Number::One,
        normed_residual: None,
    },
    embedding: EmbeddingFacts {
        scale: Number::One,
        positions: false,
        norm: false,
        per_layer: None,
    },
    attention: ATTENTION,
    mla: None,
    recurrent: None,
    ffn: FfnFacts {
        activation: Activation::Silu,
        bias: Bias::Key(keys::MLP_BIAS),
        gated: true,
        gate_scale: Number::One,
        hf_columns: false,
    },
    // Mixtral's, under this architecture's name in GGUF files.
    moe: super::mixtral::MOE,
    beside: None,
    head: HeadFacts {
        tied: false,
        scale: Number::One,
        softcap: false,
    },
};

pub const ATTENTION: AttentionFacts = AttentionFacts {
    qkv: Qkv::Stacked,
    one_kv_head: None,
    windowed_kv_heads: WindowedKvHeads::Same,
    qkv_bias: Bias::Key(keys::ATTENTION_BIAS),
    output_bias: Bias::Key(keys::ATTENTION_BIAS),
    head_norms: HeadNorms {
        kind: HeadNormKind::Never,
        norm: NormKind::Rms,
        only_if: None,
        gguf_without_at_experts: None,
    },
    norm_after_rope: false,
    value_norm: false,
    value_may_be_key: false,
    shared_kv: None,
    // The converter to GGUF interleaves the rows of query and key for this architecture.
    rope: RopeFacts {
        hf_pairs: false,
        gguf_pairs: true,
        whole_pairs: false,
        fraction: 1.0,
        layers: RopeLayers::All,
        local: LocalRope::Same,
        yarn_truncates: true,
    },
    // Mistral's window under this architecture's name in GGUF files; a Llama has none.
    windows: Windows::All,
    scale: AttentionScale::HeadDim,
    softcap: false,
    alibi: Alibi::Never,
    output_gate: OutputGate::None,
    position_scale: PositionScaling::None,
    key_scale: Number::One,
    value_scale: Number::One,
};
