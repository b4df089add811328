//! Activations of feed-forward layers, one value at a time: the oracle of [`crate::activation`].

use super::math;
use crate::activation::Activation;

/// See [`Activation`].
pub fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => math::silu(x),
        Activation::GeluTanh => math::gelu_tanh(x),
        Activation::GeluErf => math::gelu_erf(x),
        Activation::ReluSquared => {
            let positive = if x < 0.0 { 0.0 } else { x };
            positive * positive
        }
    }
}
