//! Feed-forward blocks: dense, and mixtures of experts.

use std::fmt::{self, Display, Formatter};

use super::{Linear, Norm, Vector};

/// `down(activation(gate_scale · gate(x)) · up(x))`, or `down(activation(up(x)))` without a gate.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseFfn {
    pub activation: Activation,
    pub gate: Option<Linear>,
    pub gate_scale: f32,
    pub up: Linear,
    pub down: Linear,
}

/// The nonlinearity of a feed-forward block, of a gate or of a state's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x · sigmoid(x)`
    Silu,
    /// `x/2 · (1 + erf(x/√2))`
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    ReluSquared,
    Sigmoid,
    /// `ln(1 + exp(x))`
    Softplus,
    Exp,
    /// xIELU (Huang & Schlag 2024): `x > 0: alpha_p·x² + beta·x`, else `alpha_n·(expm1(min(x, eps)) − x) + beta·x`.
    Xielu {
        alpha_p: f32,
        alpha_n: f32,
        beta: f32,
        eps: f32,
    },
}

impl Activation {
    /// From the spelling of Hugging Face's `hidden_act`.
    pub fn from_name(name: &str) -> Option<Activation> {
        Some(match name {
            "silu" | "swish" => Activation::Silu,
            "gelu" => Activation::Gelu,
            "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            "relu2" => Activation::ReluSquared,
            "sigmoid" => Activation::Sigmoid,
            _ => return None,
        })
    }
}

/// How a gate and an up become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedActivation {
    /// `activation(gate) · up`
    Product(Activation),
    /// `(clamp(up, ±limit) + 1) · g · sigmoid(alpha·g)` with `g = min(gate, limit)` (gpt-oss).
    ClampedSwiGlu { alpha: f32, limit: f32 },
    /// `silu(min(gate, limit)) · clamp(up, ±limit)`
    LimitedSilu { limit: f32 },
}

/// What experts do between their first projections and their last. `G` is the gate of all.
#[derive(Clone, Debug, PartialEq)]
pub enum Gating<G> {
    /// `activation(up)`
    Ungated(Activation),
    Gated {
        activation: GatedActivation,
        gate: G,
    },
}

impl<G> Gating<G> {
    pub fn gate(&self) -> Option<&G> {
        match self {
            Gating::Ungated(_) => None,
            Gating::Gated { gate, .. } => Some(gate),
        }
    }

    /// The same with another form of the gate.
    pub fn map<H>(&self, gate: impl FnOnce(&G) -> H) -> Gating<H> {
        match self {
            Gating::Ungated(activation) => Gating::Ungated(*activation),
            Gating::Gated {
                activation,
                gate: linears,
            } => Gating::Gated {
                activation: *activation,
                gate: gate(linears),
            },
        }
    }
}

/// The activation's name and parameters.
impl<G> Display for Gating<G> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Gating::Ungated(activation) => write!(f, "{activation:?}"),
            Gating::Gated { activation, .. } => match activation {
                GatedActivation::Product(activation) => write!(f, "{activation:?}"),
                other => write!(f, "{other:?}"),
            },
        }
    }
}

/// A router's choice of experts, their weighted sum, and experts that always run.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    pub router: Router,
    pub experts: Experts,
    /// Always run, and added.
    pub shared: Option<SharedExpert>,
    /// Multiplies the sum of all.
    pub scale: f32,
}

/// Scores → chosen experts and their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// A norm of the router's own input.
    pub norm: Option<Norm>,
    /// Hidden → one logit an expert.
    pub logits: Linear,
    pub rule: RouteRule,
    /// Added to the scores for the choice alone.
    pub correction: Option<Vector>,
    /// A factor of each expert's weight.
    pub expert_scale: Option<Vector>,
}

/// How logits become chosen experts with weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteRule {
    pub experts: usize,
    pub top_k: usize,
    pub scoring: Scoring,
    /// Only experts of the best groups can be chosen.
    pub groups: Option<ExpertGroups>,
    pub normalise: Normalise,
    /// Multiplies every weight, after normalising.
    pub scale: f32,
}

/// Logits → scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// Softmax over all, then the choice.
    Softmax,
    /// The choice, then softmax over the chosen.
    SoftmaxOfChosen,
    Sigmoid,
    /// The choice by logits, then their sigmoid.
    SigmoidOfChosen,
    /// `√softplus`
    SqrtSoftplus,
    /// Two picks, each weight a softmax over the logits near that pick's maximum (Phi-3.5-MoE).
    SparseMixer {
        jitter: f32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertGroups {
    pub count: usize,
    pub keep: usize,
    pub score: GroupScore,
}

/// A group's score, from its experts'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GroupScore {
    Max,
    SumOfBestTwo,
}

/// What chosen weights are divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Normalise {
    None,
    /// Their sum, plus `eps`.
    Sum {
        eps: f32,
    },
    /// Their sum, or `least` if that is more.
    AtLeast {
        least: f32,
    },
}

/// The experts of a layer, alike in shape. Vectors have one entry an expert.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    pub gating: Gating<Vec<Linear>>,
    pub up: Vec<Linear>,
    pub down: Vec<Linear>,
    /// The router's weight multiplies an expert's input instead of its output.
    pub weigh_input: bool,
    /// So many ids after those of the experts return their input.
    pub identities: usize,
}

/// An expert that always runs.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpert {
    pub ffn: DenseFfn,
    /// One output, whose sigmoid multiplies the expert's.
    pub gate: Option<Linear>,
}
