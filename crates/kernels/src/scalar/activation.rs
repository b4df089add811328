//! Activations of feed-forward layers, one value at a time: the oracle of [`crate::activation`].

use super::math;
use crate::activation::{Activation, GatedActivation, Xielu};

/// See [`Activation`].
pub fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => math::silu(x),
        Activation::GeluTanh => math::gelu_tanh(x),
        Activation::GeluErf => math::gelu_erf(x),
        Activation::QuickGelu => math::quick_gelu(x),
        Activation::Relu => math::relu(x),
        Activation::ReluSquared => math::relu_squared(x),
        Activation::Sigmoid => math::sigmoid(x),
        Activation::Tanh => math::tanh(x),
        Activation::Softplus => math::softplus(x),
        Activation::Exp => math::exp(x),
        Activation::Xielu(parameters) => xielu(parameters, x),
    }
}

/// See [`Xielu`].
pub fn xielu(parameters: Xielu, x: f32) -> f32 {
    let Xielu {
        alpha_p,
        alpha_n,
        beta,
        eps,
    } = parameters;
    if x > 0.0 {
        (alpha_p * x).mul_add(x, beta * x)
    } else {
        (math::expm1(at_most(x, eps)) - x).mul_add(alpha_n, beta * x)
    }
}

/// See [`GatedActivation`].
pub fn activate_gated(activation: GatedActivation, gate: f32, up: f32) -> f32 {
    match activation {
        GatedActivation::Plain(activation) => activate(activation, gate) * up,
        GatedActivation::ClampedSwiGlu { alpha, limit } => {
            let gate = at_most(gate, limit);
            (clamp(up, limit) + 1.0) * (gate * math::sigmoid(alpha * gate))
        }
        GatedActivation::LimitedSilu { limit } => math::silu(at_most(gate, limit)) * clamp(up, limit),
    }
}

/// min(x, limit), NaN for NaN.
fn at_most(x: f32, limit: f32) -> f32 {
    if limit < x { limit } else { x }
}

/// x within ±limit, NaN for NaN.
fn clamp(x: f32, limit: f32) -> f32 {
    let x = at_most(x, limit);
    if x < -limit { -limit } else { x }
}
