//! Activations of feed-forward layers, plain and gated.

use crate::Kernels;
use crate::elementwise::{LaneFunction, LanePairFunction, Map, MapRows};
use crate::math::{gelu_erf_lanes, gelu_tanh_lanes, silu_lanes};
use crate::vector::Simd;

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x·sigmoid(x), also called swish.
    Silu,
    /// GELU by tanh: x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))), computed as x·sigmoid(2·√(2/π)·(…)).
    GeluTanh,
    /// GELU by erf: x/2·(1 + erf(x/√2)).
    GeluErf,
    /// max(x, 0)²
    ReluSquared,
}

impl Activation {
    /// All activations.
    pub const ALL: [Activation; 4] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::ReluSquared,
    ];
}

impl Kernels {
    /// x ← activation(x)
    pub fn activate(self, activation: Activation, x: &mut [f32]) {
        match activation {
            Activation::Silu => self.run(Map { f: Silu, x }),
            Activation::GeluTanh => self.run(Map { f: GeluTanh, x }),
            Activation::GeluErf => self.run(Map { f: GeluErf, x }),
            Activation::ReluSquared => self.run(Map { f: ReluSquared, x }),
        }
    }

    /// gate ← activation(gate)·up
    ///
    /// # Panics
    /// If the lengths differ: a caller's bug.
    pub fn activate_gated(self, activation: Activation, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "lengths of gate and up");
        let (rows, y) = (gate, up);
        match activation {
            Activation::Silu => self.run(MapRows {
                f: Gated(Silu),
                rows,
                y,
            }),
            Activation::GeluTanh => self.run(MapRows {
                f: Gated(GeluTanh),
                rows,
                y,
            }),
            Activation::GeluErf => self.run(MapRows {
                f: Gated(GeluErf),
                rows,
                y,
            }),
            Activation::ReluSquared => self.run(MapRows {
                f: Gated(ReluSquared),
                rows,
                y,
            }),
        }
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

#[derive(Clone, Copy)]
struct Silu;

impl LaneFunction for Silu {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { silu_lanes::<S>(x) }
    }
}

#[derive(Clone, Copy)]
struct GeluTanh;

impl LaneFunction for GeluTanh {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { gelu_tanh_lanes::<S>(x) }
    }
}

#[derive(Clone, Copy)]
struct GeluErf;

impl LaneFunction for GeluErf {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { gelu_erf_lanes::<S>(x) }
    }
}

#[derive(Clone, Copy)]
struct ReluSquared;

impl LaneFunction for ReluSquared {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe {
            // Not max(0, x): NaN passes through.
            let zero = S::splat(0.0);
            let positive = S::select(S::less(x, zero), zero, x);
            S::mul(positive, positive)
        }
    }
}
