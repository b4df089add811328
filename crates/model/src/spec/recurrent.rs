//! Blocks that carry a state of fixed size from row to row.

use super::{Activation, Linear, Norm, Vector};

/// A causal depthwise convolution over the last `kernel` rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    pub channels: usize,
    pub kernel: usize,
    /// `[kernel, channels]`
    pub weight: Vector,
    pub bias: Option<Vector>,
}

/// Gated delta rule (Yang et al. 2024; Kimi Delta Attention with a decay for each key dimension): a matrix a head,
/// `S ← diag(decay)·S`, `S += k ⊗ β(v − Sᵀk)`, `out = Sᵀq`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNet {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub key_sharing: KeySharing,
    /// Each projected, convolved and activated by itself.
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub convs: [Conv; 3],
    pub activation: Activation,
    /// Added to the squares of queries and keys before they are brought to length one.
    pub unit_eps: f32,
    /// Its softplus, times `rate`, is the logarithm of the decay: one a value head, or one a key dimension. Two matrices: low rank.
    pub decay: Vec<Linear>,
    /// Negative; one a value head.
    pub rate: Vector,
    /// Its sigmoid, times `beta_scale`, is β.
    pub beta: Linear,
    pub beta_scale: f32,
    /// Of each head's output.
    pub norm: Norm,
    /// Multiplies the normed output, activated by `gate_activation`. Two matrices: low rank.
    pub gate: Vec<Linear>,
    pub gate_activation: Activation,
    pub output: Linear,
}

/// Which key head a value head uses, where there are fewer of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySharing {
    /// Value heads that share a key head follow each other.
    Neighbours,
    /// Value head h uses key head h mod their number.
    InTurns,
}

/// Mamba-2's state space (Dao & Gu 2024): a matrix a head, `S ← exp(dt·A)·S + (dt·x) ⊗ B`, `y = S·C + D·x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba2 {
    pub heads: usize,
    pub head_dim: usize,
    /// Heads of a group share B and C.
    pub groups: usize,
    pub state_dim: usize,
    pub gate: Linear,
    pub x: Linear,
    pub b: Linear,
    pub c: Linear,
    /// Its bias is the offset of the time step.
    pub dt: Linear,
    /// Of x, B and C.
    pub convs: [Conv; 3],
    pub activation: Activation,
    /// Time steps are kept within.
    pub dt_limits: [f32; 2],
    /// Negative; one a head.
    pub rate: Vector,
    /// D, one a head.
    pub skip: Vector,
    pub norm: Option<GatedNorm>,
    pub output: Linear,
    /// Factors of gate, x, B, C and dt, where a model has them.
    pub scales: [f32; 5],
}

/// A norm with a gate on one side of it.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedNorm {
    pub norm: Norm,
    pub groups: usize,
    /// The gate multiplies before the norm.
    pub gate_first: bool,
}

/// Mamba's selective scan (Gu & Dao 2023): `state_dim` numbers a channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba {
    pub channels: usize,
    pub state_dim: usize,
    pub gate: Linear,
    pub x: Linear,
    pub conv: Conv,
    pub activation: Activation,
    /// Convolved x → low-rank time step, B and C, each maybe normed.
    pub dt_low: Linear,
    pub b: Linear,
    pub c: Linear,
    /// Low rank → one time step a channel.
    pub dt: Linear,
    /// `[state_dim, channels]`, negative.
    pub rate: Vector,
    pub skip: Vector,
    pub output: Linear,
}

/// Lightning attention (Qin et al. 2024): a matrix a head, `S ← decay·S + k ⊗ v`, `out = Sᵀq`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lightning {
    pub heads: usize,
    pub head_dim: usize,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub activation: Activation,
    /// Head h of n decays by exp(−slope_scale · 2^(−8(h + 1)/n)).
    pub slope_scale: f32,
    pub norm: Norm,
    /// Its sigmoid multiplies the normed output.
    pub gate: Linear,
    pub output: Linear,
}

/// LFM2's gated short convolution: `out(c · conv(b · x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConv {
    pub b: Linear,
    pub c: Linear,
    pub x: Linear,
    pub conv: Conv,
    pub output: Linear,
}
