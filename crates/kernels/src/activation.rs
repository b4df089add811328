//! Activations of feed-forward layers, plain and gated.

use crate::Kernels;
use crate::elementwise::{LaneFunction, LanePairFunction, Map, MapRows};
use crate::math::{
    Exp, GeluErf, GeluTanh, QuickGelu, Relu, ReluSquared, Sigmoid, Silu, Softplus, Tanh, expm1_lanes, sigmoid_lanes,
    silu_lanes,
};
use crate::vector::Simd;

/// An activation function. NaN gives NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// x·sigmoid(x), also called swish.
    Silu,
    /// GELU by tanh: x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))), computed as x·sigmoid(2·√(2/π)·(…)).
    GeluTanh,
    /// GELU by erf: x/2·(1 + erf(x/√2)).
    GeluErf,
    /// GELU by a scaled sigmoid: x·sigmoid(1.702·x).
    QuickGelu,
    /// max(x, 0)
    Relu,
    /// max(x, 0)²
    ReluSquared,
    /// 1 / (1 + e^−x)
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// ln(1 + e^x)
    Softplus,
    /// e^x
    Exp,
    /// [`Xielu`]
    Xielu(Xielu),
}

/// xIELU (arXiv 2411.13010), a parabola joined to an exponential linear unit:
///
/// ```text
/// x > 0:  fma(alpha_p·x, x, beta·x)
/// else:   fma(expm1(min(x, eps)) − x, alpha_n, beta·x)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// The parabola's coefficient: softplus of the stored parameter.
    pub alpha_p: f32,
    /// The coefficient of the negative side: beta + softplus of the stored parameter.
    pub alpha_n: f32,
    /// The slope at 0.
    pub beta: f32,
    /// The largest argument of expm1, a small negative number.
    pub eps: f32,
}

/// How a gated layer joins its two inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedActivation {
    /// activation(gate)·up
    Plain(Activation),
    /// SwiGLU with bounded inputs and a shifted factor:
    ///
    /// ```text
    /// g = min(gate, limit), u = clamp(up, −limit, limit)
    /// y = (u + 1)·(g·sigmoid(alpha·g))
    /// ```
    ClampedSwiGlu {
        /// The scale inside the sigmoid.
        alpha: f32,
        /// The bound of gate (from above) and up (both ways).
        limit: f32,
    },
    /// silu(min(gate, limit))·clamp(up, −limit, limit)
    LimitedSilu {
        /// The bound of gate (from above) and up (both ways).
        limit: f32,
    },
}

impl From<Activation> for GatedActivation {
    fn from(activation: Activation) -> GatedActivation {
        GatedActivation::Plain(activation)
    }
}

impl Kernels {
    /// x ← activation(x)
    pub fn activate(self, activation: Activation, x: &mut [f32]) {
        activation.give_to(Plain { kernels: self, x });
    }

    /// gate ← activation(gate)·up, or as the [`GatedActivation`] says.
    ///
    /// # Panics
    /// If the lengths differ: a caller's bug.
    pub fn activate_gated(self, activation: impl Into<GatedActivation>, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        let (rows, y) = (gate, up);
        match activation.into() {
            GatedActivation::Plain(activation) => activation.give_to(Gate {
                kernels: self,
                gate: rows,
                up: y,
            }),
            GatedActivation::ClampedSwiGlu { alpha, limit } => self.run(MapRows {
                f: ClampedSwiGlu { alpha, limit },
                rows,
                y,
            }),
            GatedActivation::LimitedSilu { limit } => self.run(MapRows {
                f: LimitedSilu { limit },
                rows,
                y,
            }),
        }
    }
}

/// Takes an activation as a type, to be compiled into a loop.
trait LaneFunctionUser {
    fn take<F: LaneFunction>(self, f: F);
}

impl Activation {
    fn give_to(self, user: impl LaneFunctionUser) {
        match self {
            Activation::Silu => user.take(Silu),
            Activation::GeluTanh => user.take(GeluTanh),
            Activation::GeluErf => user.take(GeluErf),
            Activation::QuickGelu => user.take(QuickGelu),
            Activation::Relu => user.take(Relu),
            Activation::ReluSquared => user.take(ReluSquared),
            Activation::Sigmoid => user.take(Sigmoid),
            Activation::Tanh => user.take(Tanh),
            Activation::Softplus => user.take(Softplus),
            Activation::Exp => user.take(Exp),
            Activation::Xielu(xielu) => user.take(xielu),
        }
    }
}

/// x ← f(x)
struct Plain<'a> {
    kernels: Kernels,
    x: &'a mut [f32],
}

impl LaneFunctionUser for Plain<'_> {
    fn take<F: LaneFunction>(self, f: F) {
        self.kernels.run(Map { f, x: self.x });
    }
}

/// gate ← f(gate)·up
struct Gate<'a> {
    kernels: Kernels,
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl LaneFunctionUser for Gate<'_> {
    fn take<F: LaneFunction>(self, f: F) {
        self.kernels.run(MapRows {
            f: Gated(f),
            rows: self.gate,
            y: self.up,
        });
    }
}

/// f(gate)·up
#[derive(Clone, Copy)]
struct Gated<F>(F);

impl<F: LaneFunction> LanePairFunction for Gated<F> {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, gate: S::F32, up: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::mul(self.0.of::<S>(gate), up) }
    }
}

impl LaneFunction for Xielu {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe {
            let linear = S::mul(S::splat(self.beta), x);
            let positive = S::fma(S::mul(S::splat(self.alpha_p), x), x, linear);
            let power = expm1_lanes::<S>(at_most::<S>(x, self.eps));
            let negative = S::fma(S::sub(power, x), S::splat(self.alpha_n), linear);
            S::select(S::less(S::splat(0.0), x), positive, negative)
        }
    }
}

/// See [`GatedActivation::ClampedSwiGlu`].
#[derive(Clone, Copy)]
struct ClampedSwiGlu {
    alpha: f32,
    limit: f32,
}

impl LanePairFunction for ClampedSwiGlu {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, gate: S::F32, up: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe {
            let gate = at_most::<S>(gate, self.limit);
            let glu = S::mul(gate, sigmoid_lanes::<S>(S::mul(S::splat(self.alpha), gate)));
            S::mul(S::add(clamp::<S>(up, self.limit), S::splat(1.0)), glu)
        }
    }
}

/// See [`GatedActivation::LimitedSilu`].
#[derive(Clone, Copy)]
struct LimitedSilu {
    limit: f32,
}

impl LanePairFunction for LimitedSilu {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, gate: S::F32, up: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe {
            S::mul(
                silu_lanes::<S>(at_most::<S>(gate, self.limit)),
                clamp::<S>(up, self.limit),
            )
        }
    }
}

/// min(x, limit), NaN for NaN.
///
/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn at_most<S: Simd>(x: S::F32, limit: f32) -> S::F32 {
    // SAFETY: required of the caller. The bound comes first: min gives its second argument for NaN.
    unsafe { S::min(S::splat(limit), x) }
}

/// x within ±limit, NaN for NaN.
///
/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn clamp<S: Simd>(x: S::F32, limit: f32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe { S::max(S::splat(-limit), at_most::<S>(x, limit)) }
}
