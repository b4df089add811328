//! Softmax attention, with heads of its own or through a shared latent (MLA).

use super::{Linear, Matrix, Norm, Rope, Vector};

/// Softmax attention with grouped key and value heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
    pub kv_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    pub value_dim: usize,
    pub query: Linear,
    pub query_norm: Option<HeadNorm>,
    pub kv: KeyValue,
    /// Query and key are normed after the rotation instead of before.
    pub norm_after_rope: bool,
    /// `None`: the layer has no rotation.
    pub rope: Option<Rope>,
    /// A factor of the query that grows with the position.
    pub position_scale: Option<PositionScale>,
    pub rule: AttentionRule,
    /// The mixed values are multiplied by the sigmoid of this.
    pub gate: Option<Linear>,
    pub output: Linear,
}

/// Where an attention layer's keys and values come from.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyValue {
    Own(Box<OwnKeyValue>),
    /// As another layer, earlier, has stored them.
    Shared {
        layer: usize,
    },
}

/// Keys and values that a layer computes.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnKeyValue {
    pub key: Linear,
    /// `None`: the value is the key as projected, before norm and rotation.
    pub value: Option<Linear>,
    pub key_norm: Option<HeadNorm>,
    pub value_norm: Option<HeadNorm>,
    /// Multiplies the value.
    pub value_scale: f32,
}

/// A norm of each head of a row, or of the row as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorm {
    pub norm: Norm,
    /// Equal parts of the row that are normed by themselves.
    pub groups: usize,
}

/// How queries see keys.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionRule {
    pub visible: Visible,
    /// Multiplies every score.
    pub scale: f32,
    /// `cap · tanh(x / cap)` on every scaled score.
    pub softcap: Option<f32>,
    /// One logit a head that joins the softmax and is dropped.
    pub sinks: Option<Vector>,
    /// Scores fall with the distance, by a slope of each head (ALiBi).
    pub alibi: bool,
}

/// The keys that a query at position p sees, itself among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    All,
    /// (p − window, p]
    Window(usize),
    /// From the last multiple of this on.
    Chunk(usize),
}

impl Visible {
    /// Positions that stay visible to later ones; `None`: all.
    pub fn window(self) -> Option<usize> {
        match self {
            Visible::All => None,
            Visible::Window(positions) | Visible::Chunk(positions) => Some(positions),
        }
    }
}

/// `1 + beta · ln(1 + ⌊(p + offset) / floor⌋)` at position p.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    pub beta: f32,
    pub floor: f32,
    pub offset: f32,
}

impl PositionScale {
    pub fn at(&self, position: usize) -> f32 {
        let steps = ((position as f64 + f64::from(self.offset)) / f64::from(self.floor)).floor();
        (1.0 + f64::from(self.beta) * libm::log1p(steps)) as f32
    }
}

/// Multi-head latent attention (DeepSeek-V2, section 2.1) in the absorbed form: keys and values of all heads are one latent row and one
/// rotated key, which are what is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Mla {
    pub heads: usize,
    /// Width of a query head that meets the latent.
    pub nope_dim: usize,
    pub rope_dim: usize,
    pub value_dim: usize,
    pub latent_dim: usize,
    pub query: MlaQuery,
    /// Hidden → latent.
    pub latent: Linear,
    pub latent_norm: Norm,
    /// Hidden → the rotated key.
    pub rope_key: Linear,
    /// For each head `[latent_dim, nope_dim]`: takes a query head into the latent.
    pub key_up: Vec<Matrix>,
    /// For each head `[value_dim, latent_dim]`: takes the mixed latent to the head's value.
    pub value_up: Vec<Matrix>,
    pub rope: Option<Rope>,
    pub position_scale: Option<PositionScale>,
    /// Factors of the normed latents of query and key.
    pub latent_scales: [f32; 2],
    pub rule: AttentionRule,
    /// Which of the visible keys count; `None`: all.
    pub choice: Option<KeyChoice>,
    pub output: Linear,
}

/// Which visible keys a row attends to.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyChoice {
    Own(Box<Indexer>),
    /// Those that the last layer before with an index chose.
    Earlier,
}

/// Scores keys by a small attention of its own: `Σ_h weight[h] · max(query[h] · key, 0)`; each row attends to the keys of the largest
/// scores (DeepSeek-V3.2).
#[derive(Clone, Debug, PartialEq)]
pub struct Indexer {
    pub heads: usize,
    pub head_dim: usize,
    /// Keys that a row attends to, if it sees as many.
    pub keep: usize,
    /// What the latent attention's query comes from → `[heads · head_dim]`.
    pub query: Linear,
    /// Hidden → one key for all heads.
    pub key: Linear,
    pub key_norm: Norm,
    /// Hidden → one weight a head, to be divided by √(heads · head_dim).
    pub weights: Linear,
    pub rope: Rope,
}

/// Hidden → query heads, in two parts: what meets the latent, and what is rotated.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaQuery {
    /// Through a latent of its own.
    pub down: Option<(Linear, Norm)>,
    /// `[heads · nope_dim, …]`
    pub nope: Linear,
    /// `[heads · rope_dim, …]`
    pub rope: Linear,
}

impl MlaQuery {
    /// Width of what the heads come from.
    pub fn inputs(&self) -> usize {
        self.nope.weight.cols
    }
}
