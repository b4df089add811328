//! A model as data: every choice resolved for every layer, so that nothing after this asks for a family's name or a layer's parity.

mod rope;

use std::ops::Range;

use goldcrest_format::DType;

pub use rope::{Rope, RopeScaling};

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
}

/// Residual stream → logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// The embedding table itself where the two are tied.
    pub projection: Linear,
    pub tied: bool,
    /// `cap · tanh(x / cap)` on every logit.
    pub softcap: Option<f32>,
}

/// One decoder layer: `x += mixer(x)`, then `x += ffn(x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub mixer: Sublayer<Mixer>,
    pub ffn: Sublayer<Ffn>,
}

/// A block with its norms: `pre` alone, `post` alone, or both ("sandwich").
#[derive(Clone, Debug, PartialEq)]
pub struct Sublayer<T> {
    pub pre: Option<Norm>,
    pub block: T,
    /// Applied to the block's output before it is added to the stream.
    pub post: Option<Norm>,
}

/// What mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    Attention(Attention),
}

/// What works on one position alone.
#[derive(Clone, Debug, PartialEq)]
pub enum Ffn {
    Dense(DenseFfn),
}

/// Softmax attention with grouped key and value heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    /// Norm of each query head and each key head, before the rotation.
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
    /// `None`: the layer has no positions.
    pub rope: Option<Rope>,
    /// A query at position p sees keys in (p − window, p].
    pub window: Option<usize>,
    /// Multiplies every score.
    pub scale: f32,
    /// `cap · tanh(x / cap)` on every scaled score.
    pub softcap: Option<f32>,
}

/// `down(activation(gate(x)) · up(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseFfn {
    pub activation: Activation,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

/// The nonlinearity of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`
    Silu,
    /// `x/2 · (1 + erf(x/√2))`
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`
    GeluTanh,
}

impl Activation {
    /// From the spelling of Hugging Face's `hidden_act`.
    pub fn from_name(name: &str) -> Option<Activation> {
        Some(match name {
            "silu" | "swish" => Activation::Silu,
            "gelu" => Activation::Gelu,
            "gelu_pytorch_tanh" | "gelu_new" => Activation::GeluTanh,
            _ => return None,
        })
    }
}

/// Normalisation over a row, or over each head of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    pub weight: Vector,
    pub eps: f32,
}

/// How a norm measures its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / √(mean(x²) + eps)`
    Rms,
}

/// `y = W·x + b`.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    pub weight: Matrix,
    pub bias: Option<Vector>,
}

/// A matrix of the file, `[rows, cols]`, one output a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// The tensor's name in the file.
    pub tensor: String,
    pub dtype: DType,
    /// The rows of that tensor that form this matrix.
    pub rows: Range<usize>,
    pub cols: usize,
    pub order: RowOrder,
}

/// A vector of the file, held as f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    pub tensor: String,
    pub len: usize,
    pub order: RowOrder,
    /// Added to every element while loading: 1 for norms stored as w in `1 + w`.
    pub offset: f32,
}

/// How the file orders the rows that a rotation pairs up. The forward pass knows halves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As the forward pass wants them.
    Plain,
    /// Within each head of `head_dim` rows the first `rotary` hold pairs (0,1), (2,3) …, which become halves: the loader takes row
    /// [`RowOrder::source`] for each row.
    Pairs { head_dim: usize, rotary: usize },
}

impl RowOrder {
    /// The file's row that holds row `row` of the forward pass.
    pub fn source(self, row: usize) -> usize {
        match self {
            RowOrder::Plain => row,
            RowOrder::Pairs { head_dim, rotary } => {
                let (head, i) = (row / head_dim, row % head_dim);
                let half = rotary / 2;
                let from = if i < half {
                    2 * i
                } else if i < rotary {
                    2 * (i - half) + 1
                } else {
                    i
                };
                head * head_dim + from
            }
        }
    }
}

impl Matrix {
    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::RowOrder;

    #[test]
    fn pairs_become_halves_and_the_rest_stays() {
        let order = RowOrder::Pairs { head_dim: 6, rotary: 4 };
        let rows: Vec<usize> = (0..12).map(|row| order.source(row)).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
    }
}
