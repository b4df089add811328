//! What can differ between families of decoders, as data. Every field is a fact about how such models are published.

use super::mla::MlaFacts;
use super::moe::MoeFacts;
use super::names::{Name, Names};
use super::recurrence::Recurrence;
use crate::read::Key;
use crate::spec::{Activation, NormKind};

/// A family: which files it reads, and its choices.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    /// `model_type` of Hugging Face configs.
    pub hf: &'static [&'static str],
    /// `general.architecture` of GGUF files.
    pub gguf: &'static [&'static str],
    pub names: Names,
    /// Beginnings of tensor names that the text model does without: vision towers, further prediction heads.
    pub ignored: &'static [&'static str],
    /// Keys of a config that change the model in ways that are not supported, unless they are null, false or 0.
    pub refused: &'static [&'static str],
    pub norm: NormFacts,
    pub blocks: BlockFacts,
    pub embedding: EmbeddingFacts,
    pub attention: AttentionFacts,
    /// Layers with a latent for keys and values, if the family has any.
    pub mla: Option<MlaFacts>,
    /// Layers with a recurrent state, if the family has any.
    pub recurrent: Option<Recurrence>,
    pub ffn: FfnFacts,
    /// Layers with a router are mixtures of experts.
    pub moe: MoeFacts,
    /// Such layers keep their dense block, side by side with the experts.
    pub beside: Option<BesideFacts>,
    pub head: HeadFacts,
}

/// A number of the architecture.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    One,
    /// Of the configuration; absent: 1.
    Key(Key),
    /// 1 over that of the configuration; absent: 1.
    Inverse(Key),
    /// √hidden
    SqrtHidden,
    /// √hidden if the configuration says true here, and in GGUF files, which do not say.
    SqrtHiddenIf(Key),
    /// Of the configuration; absent: this.
    KeyOr(Key, f64),
    /// That of the configuration (absent: this) over √layers.
    OverSqrtLayers(Key, f64),
    /// That of the configuration (absent: this) over hidden.
    OverHidden(Key, f64),
    /// An entry of a list of the configuration; absent: 1.
    Entry(Key, usize),
}

/// Norms of the stream.
#[derive(Clone, Copy, Debug)]
pub struct NormFacts {
    pub kind: NormKind,
    pub eps: Key,
    /// Checkpoints hold w of `1 + w`. GGUF files hold the sum.
    pub one_plus: bool,
}

/// How a layer's mixer and feed-forward block are placed.
#[derive(Clone, Copy, Debug)]
pub struct BlockFacts {
    pub layout: Layout,
    /// Each block's input is normed.
    pub pre: bool,
    /// Each block's output is normed before it is added (names `attention_post_norm`, `ffn_post_norm`).
    pub post: bool,
    /// One or the other: inputs in layers that have the tensor of the mixer's, outputs in others.
    pub pre_or_post: bool,
    pub parallel: Parallel,
    /// Multiplies what a block adds.
    pub residual_scale: Number,
    /// Factors of attention's input and output.
    pub attention_scales: [Number; 2],
    /// Factors of a recurrent block's input and output.
    pub recurrent_scales: [Number; 2],
    /// Factor of a feed-forward block's output.
    pub ffn_scale: Number,
    /// A block's output is added to its normed input instead of the stream.
    pub normed_residual: Option<NormedResidual>,
}

/// Factors of a block's normed input and of its output, whose sum is the stream.
#[derive(Clone, Copy, Debug)]
pub struct NormedResidual {
    pub attention: [Number; 2],
    pub recurrent: [Number; 2],
    pub ffn: [Number; 2],
}

/// What a layer is made of. Which kind of block it has, its tensors say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A mixer of positions, and a feed-forward block.
    MixerAndFfn,
    /// Attention and a recurrent block side by side, and a feed-forward block.
    MixersAndFfn,
    /// One block.
    One,
    /// Two mixers and two dense blocks in turns, named by `{2}`; the mixture of experts sees what the first dense block sees, and joins the
    /// stream at the end of the layer.
    Halves,
}

/// Whether mixer and feed-forward block see the same stream, instead of one after the other. A block without a norm of its own shares the
/// other's.
#[derive(Clone, Copy, Debug)]
pub enum Parallel {
    Never,
    Always,
    /// As the configuration says; absent: this.
    Key(Key, bool),
}

#[derive(Clone, Copy, Debug)]
pub struct EmbeddingFacts {
    pub scale: Number,
    /// A learned row for each position is added.
    pub positions: bool,
    pub norm: bool,
    /// A small embedding for every layer, if the configuration gives it a width.
    pub per_layer: Option<PerLayerFacts>,
}

/// Embeddings of every layer.
#[derive(Clone, Copy, Debug)]
pub struct PerLayerFacts {
    /// Of one layer; absent or 0: none.
    pub width: Key,
    pub table: Name,
    pub projection: Name,
    pub norm: Name,
    /// Of each layer.
    pub gate: Name,
    pub layer_projection: Name,
    pub post_norm: Name,
}

/// A dense block and a mixture of experts side by side, each with norms of its own; the router sees the stream through a norm with a scale.
#[derive(Clone, Copy, Debug)]
pub struct BesideFacts {
    /// With its last part.
    pub router_scale: Name,
    /// A factor of each expert's weight; with its last part.
    pub expert_scale: Name,
    pub dense_post_norm: Name,
    pub moe_norm: Name,
    pub moe_post_norm: Name,
}

#[derive(Clone, Copy, Debug)]
pub struct HeadFacts {
    /// Whether embedding and head share a table when a Hugging Face config does not say.
    pub tied: bool,
    pub scale: Number,
    /// Logits may be capped.
    pub softcap: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct FfnFacts {
    /// Where the file names none.
    pub activation: Activation,
    pub bias: Bias,
    /// Blocks and experts have a gate: a tensor of its own, or rows of a tensor that holds the ups too.
    pub gated: bool,
    /// Multiplies the gate before its activation.
    pub gate_scale: Number,
    /// The matrices of Hugging Face checkpoints have outputs as columns, here and in attention.
    pub hf_columns: bool,
}

/// Whether a projection has a bias.
#[derive(Clone, Copy, Debug)]
pub enum Bias {
    /// As the tensors say.
    Stored,
    /// As the tensors say, but not without if this key of the config says true.
    Key(Key),
    Always,
}

/// Softmax attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionFacts {
    /// How query, key and value lie in a Hugging Face checkpoint that has them in one matrix.
    pub qkv: Qkv,
    /// One KV head if the first of these keys says true and the second does not, whatever the number of KV heads says.
    pub one_kv_head: Option<[Key; 2]>,
    pub windowed_kv_heads: WindowedKvHeads,
    pub qkv_bias: Bias,
    pub output_bias: Bias,
    /// Norms of queries and keys.
    pub head_norms: HeadNorms,
    /// Those norms come after the rotation.
    pub norm_after_rope: bool,
    /// Each value head is normed, without a weight.
    pub value_norm: bool,
    /// A layer without a projection of values takes the projected keys.
    pub value_may_be_key: bool,
    /// So many of the last layers see what the last layer of their kind before them stored.
    pub shared_kv: Option<Key>,
    pub rope: RopeFacts,
    pub windows: Windows,
    pub scale: AttentionScale,
    /// Scores may be capped.
    pub softcap: bool,
    /// Slopes instead of rotation.
    pub alibi: Alibi,
    pub output_gate: OutputGate,
    pub position_scale: PositionScaling,
    /// Multiplies the keys, and so the scores.
    pub key_scale: Number,
    /// Multiplies the values.
    pub value_scale: Number,
}

/// KV heads of windowed layers. GGUF files list those of every layer.
#[derive(Clone, Copy, Debug)]
pub enum WindowedKvHeads {
    Same,
    /// As the configuration says; absent: this many times those of other layers.
    KeyOrTimes(Key, usize),
}

/// How query, key and value lie in one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// One after the other, as in all GGUF files.
    Stacked,
    /// For each KV head its queries, its key, its value.
    Grouped,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms {
    pub kind: HeadNormKind,
    pub norm: NormKind,
    /// Only if the configuration says true here; absent: this. GGUF files say it by their tensors.
    pub only_if: Option<(Key, bool)>,
    /// GGUF files say nothing about norms without weights: the published model with this many experts has none.
    pub gguf_without_at_experts: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNormKind {
    Never,
    /// Each head, all by one weight.
    Shared,
    /// Each head, by a weight of its own.
    Own,
    /// Each head, by weights that a Hugging Face checkpoint holds one by one; their names contain `{h}`.
    OwnTensors,
    /// All heads as one row.
    Row,
    /// Each head of a layer that rotates, without a weight.
    WeightlessIfRotating,
}

/// How queries and keys rotate.
#[derive(Clone, Copy, Debug)]
pub struct RopeFacts {
    /// Checkpoints hold the rows of query and key as pairs, not halves.
    pub hf_pairs: bool,
    pub gguf_pairs: bool,
    /// Those pairs cover whole heads, even where a part of each rotates.
    pub whole_pairs: bool,
    /// The fraction of a head that rotates, where a Hugging Face config does not say.
    pub fraction: f64,
    pub layers: RopeLayers,
    pub local: LocalRope,
    /// YaRN's ramp begins and ends at whole frequencies, where the file does not say.
    pub yarn_truncates: bool,
}

/// How windowed layers rotate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalRope {
    /// As all do.
    Same,
    /// By the base of all, unscaled.
    Unscaled,
    /// By a base of their own, unscaled.
    OwnBase,
}

/// Which layers rotate.
#[derive(Clone, Copy, Debug)]
pub enum RopeLayers {
    None,
    All,
    /// All if the configuration says "rope" here, otherwise none. GGUF files: all unless they say false.
    Named(Key),
    /// Windowed ones; all, if `or_all_without` and there are none.
    Windowed {
        or_all_without: bool,
    },
    /// Windowed ones, and those without experts if this number of the configuration is 1 or absent.
    WindowedOrDense(Key),
    /// All, unless a Hugging Face config gives null as their base.
    UnlessNullBase,
    /// A list of 0 and 1 (1 = rotates); absent: every `default_period`-th layer does not.
    Listed {
        list: Key,
        period: Key,
        default_period: usize,
    },
}

/// Which layers see a window only. A config's `layer_types` wins where it is given, then its list of 0 and 1 (1 = windowed).
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
    /// Layers that rotate see a chunk; absent: of this many positions.
    Chunks(Key, usize),
}

/// What multiplies attention scores.
#[derive(Clone, Copy, Debug)]
pub enum AttentionScale {
    /// head_dim^−½
    HeadDim,
    One,
    /// As the configuration says; absent: head_dim^−½.
    Key(Key),
    /// `query_pre_attn_scalar`^−½. Files without the key (all GGUF ones): head_dim, but hidden / heads in the model of this many layers,
    /// whose published configuration says so.
    QueryScalar {
        hidden_per_head_at_layers: usize,
    },
}

/// Whether scores fall with the distance.
#[derive(Clone, Copy, Debug)]
pub enum Alibi {
    Never,
    Always,
    /// As the configuration says; absent: no.
    Key(Key),
}

/// A sigmoid that multiplies the mixed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputGate {
    None,
    /// A matrix of its own.
    Projection,
    /// After each query head, in the query's matrix.
    InQuery,
}

/// A factor of the query that grows with the position.
#[derive(Clone, Copy, Debug)]
pub enum PositionScaling {
    None,
    /// By this number of the rope parameters, in steps of the original context.
    RopeParameter(&'static str),
    /// Llama 4: in layers without rotation, if `on` says so.
    Unrotated {
        on: Key,
        floor: Key,
        scale: Key,
    },
}
