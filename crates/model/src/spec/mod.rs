//! A model as data: every choice resolved for every layer, so that nothing after this asks for a family's name or a layer's parity.

mod attention;
mod ffn;
mod recurrent;
mod rope;
mod weights;

pub use attention::{
    Attention, AttentionRule, HeadNorm, Indexer, KeyChoice, KeyValue, Mla, MlaQuery, OwnKeyValue, PositionScale,
    Visible,
};
pub use ffn::{
    Activation, DenseFfn, ExpertGroups, Experts, GatedActivation, Gating, GroupScore, Moe, Normalise, RouteRule,
    Router, Scoring, SharedExpert,
};
pub use recurrent::{Conv, DeltaNet, GatedNorm, KeySharing, Lightning, Mamba, Mamba2, ShortConv};
pub use rope::{Divisors, LongRopeList, Rope, RopeScaling};
pub use weights::{BlockScales, Linear, Matrix, RowOrder, RowSelection, Storage, Vector, VectorMap};

/// One model, resolved when its files are opened.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The family that read it; for people, never for decisions.
    pub family: &'static str,
    /// Rows of the embedding table: token ids are below it.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Positions the model was trained for.
    pub context: usize,
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    pub final_norm: Norm,
    pub head: Head,
}

/// Token id → first row of the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    pub table: Matrix,
    /// Multiplies the row (1 for most families, √hidden for Gemma).
    pub scale: f32,
    /// A row for each position, added.
    pub positions: Option<Matrix>,
    pub norm: Option<Norm>,
    pub per_layer: Option<PerLayerEmbedding>,
}

/// A small embedding of each token for every layer (Gemma 3n and 4): `(norm(projection · x · projection_scale) + table[id] · scale) / √2`,
/// one after the other, where x is the first row of the stream. [`PerLayerInput`] lets it in.
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayerEmbedding {
    /// `[vocabulary, layers · width]`
    pub table: Matrix,
    pub scale: f32,
    /// `[layers · width, hidden]`
    pub projection: Linear,
    pub projection_scale: f32,
    /// Of each layer's part.
    pub norm: Norm,
    /// Of one layer.
    pub width: usize,
}

/// Residual stream → logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The embedding table itself where the two are tied.
    pub projection: Linear,
    pub tied: bool,
    /// Multiplies every logit.
    pub scale: f32,
    /// `cap · tanh(x / cap)` on every logit.
    pub softcap: Option<f32>,
}

/// One decoder layer: what its sublayers add to the stream, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub sublayers: Vec<Sublayer>,
    /// Multiplies the stream that leaves the layer.
    pub scale: f32,
}

/// `x ← residual + scale · post(Σ branch(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sublayer {
    /// Side by side on the same stream; most sublayers have one.
    pub branches: Vec<Branch>,
    /// Applied to the sum before it is added to the stream.
    pub post: Option<Norm>,
    pub scale: f32,
    pub residual: Residual,
}

impl Sublayer {
    /// Branches whose sum is added to the stream as it is, or normed.
    pub fn plain(branches: Vec<Branch>, post: Option<Norm>) -> Sublayer {
        Sublayer {
            branches,
            post,
            scale: 1.0,
            residual: Residual::Stream,
        }
    }
}

/// What an update is added to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residual {
    Stream,
    /// The first branch's normed input times this, in place of the stream.
    NormedInput {
        scale: f32,
    },
}

/// `scale · post(block(pre(x)))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    pub pre: Option<Norm>,
    pub block: Block,
    pub post: Option<Norm>,
    /// Factors of the block's input and output.
    pub scales: [f32; 2],
    /// The output joins the stream at the end of the layer instead.
    pub deferred: bool,
}

impl Branch {
    /// A block as it is.
    pub fn plain(block: Block) -> Branch {
        Branch {
            pre: None,
            block,
            post: None,
            scales: [1.0, 1.0],
            deferred: false,
        }
    }
}

/// What a branch computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Attention(Box<Attention>),
    Mla(Box<Mla>),
    DeltaNet(Box<DeltaNet>),
    Mamba(Box<Mamba>),
    Mamba2(Box<Mamba2>),
    Lightning(Box<Lightning>),
    ShortConv(Box<ShortConv>),
    Dense(Box<DenseFfn>),
    Moe(Box<Moe>),
    PerLayerInput(Box<PerLayerInput>),
}

/// `projection · (activation(gate · x) · e)`, with the layer's part e of [`PerLayerEmbedding`].
#[derive(Clone, Debug, PartialEq)]
pub struct PerLayerInput {
    pub gate: Linear,
    pub activation: Activation,
    pub projection: Linear,
}

/// Normalisation over a row, or over each head of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    /// As long as a normed part, or with an entry for each element of all parts.
    pub weight: Option<Vector>,
    pub bias: Option<Vector>,
    pub eps: f32,
}

/// How a norm measures its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / √(mean(x²) + eps)`
    Rms,
    /// `(x − mean(x)) / √(variance(x) + eps)`
    Layer,
    /// `x / √(Σx² + eps)`
    Unit,
}
