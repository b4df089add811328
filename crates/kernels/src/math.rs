//! Elementary f32 functions in lanes.
//!
//! Fixed polynomials with fma and true divides: within 2 ulp of the exact result over all f32 (infinities, subnormal results and NaN
//! included), and the same bits on every instruction set. [`scalar::math`](crate::scalar::math) states each formula.

use crate::Kernels;
use crate::dispatch::Kernel;
use crate::elementwise::{LaneFunction, map};
use crate::scalar::math::*;
use crate::vector::Simd;

/// An elementary function of one f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MathFunction {
    /// e^x
    Exp,
    /// e^x − 1, precise near 0 too.
    Expm1,
    /// ln(1 + x): −∞ at −1, NaN below.
    Log1p,
    /// Hyperbolic tangent.
    Tanh,
    /// The error function.
    Erf,
    /// 1 / (1 + e^−x)
    Sigmoid,
    /// ln(1 + e^x)
    Softplus,
}

impl MathFunction {
    /// All functions.
    pub const ALL: [MathFunction; 7] = [
        MathFunction::Exp,
        MathFunction::Expm1,
        MathFunction::Log1p,
        MathFunction::Tanh,
        MathFunction::Erf,
        MathFunction::Sigmoid,
        MathFunction::Softplus,
    ];

    /// The function of one value: the same bits as [`Kernels::apply`], slower.
    pub fn of(self, x: f32) -> f32 {
        match self {
            MathFunction::Exp => exp(x),
            MathFunction::Expm1 => expm1(x),
            MathFunction::Log1p => log1p(x),
            MathFunction::Tanh => tanh(x),
            MathFunction::Erf => erf(x),
            MathFunction::Sigmoid => sigmoid(x),
            MathFunction::Softplus => softplus(x),
        }
    }
}

impl Kernels {
    /// Replaces every element of `x` by its `function`.
    pub fn apply(self, function: MathFunction, x: &mut [f32]) {
        self.run(Apply { function, x });
    }
}

struct Apply<'a> {
    function: MathFunction,
    x: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: required of the caller.
        unsafe {
            match self.function {
                MathFunction::Exp => map::<S, _>(Exp, self.x),
                MathFunction::Expm1 => map::<S, _>(Expm1, self.x),
                MathFunction::Log1p => map::<S, _>(Log1p, self.x),
                MathFunction::Tanh => map::<S, _>(Tanh, self.x),
                MathFunction::Erf => map::<S, _>(Erf, self.x),
                MathFunction::Sigmoid => map::<S, _>(Sigmoid, self.x),
                MathFunction::Softplus => map::<S, _>(Softplus, self.x),
            }
        }
    }
}

/// Makes a [`LaneFunction`] of a vector function of this module.
macro_rules! lane_functions {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl LaneFunction for $name {
            #[inline(always)]
            unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
                // SAFETY: required of the caller.
                unsafe { $function::<S>(x) }
            }
        }
    )*};
}

lane_functions! {
    /// [`MathFunction::Exp`]
    Exp = exp_lanes;
    /// [`MathFunction::Expm1`]
    Expm1 = expm1_lanes;
    /// [`MathFunction::Log1p`]
    Log1p = log1p_lanes;
    /// [`MathFunction::Tanh`]
    Tanh = tanh_lanes;
    /// [`MathFunction::Erf`]
    Erf = erf_lanes;
    /// [`MathFunction::Sigmoid`]
    Sigmoid = sigmoid_lanes;
    /// [`MathFunction::Softplus`]
    Softplus = softplus_lanes;
    /// [`relu`]
    Relu = relu_lanes;
    /// [`relu_squared`]
    ReluSquared = relu_squared_lanes;
    /// [`silu`]
    Silu = silu_lanes;
    /// [`gelu_tanh`]
    GeluTanh = gelu_tanh_lanes;
    /// [`gelu_erf`]
    GeluErf = gelu_erf_lanes;
    /// [`quick_gelu`]
    QuickGelu = quick_gelu_lanes;
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn polynomial<S: Simd, const N: usize>(coefficients: &[f32; N], x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let mut sum = S::splat(coefficients[0]);
        for &coefficient in &coefficients[1..] {
            sum = S::fma(sum, x, S::splat(coefficient));
        }
        sum
    }
}

/// `magnitude`, which is not negative, with the sign of `x`.
///
/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn with_sign_of<S: Simd>(magnitude: S::F32, x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let sign = S::and(S::to_bits(x), S::splat_i32(i32::MIN));
        S::from_bits(S::or(S::to_bits(magnitude), sign))
    }
}

/// The parts of e^x = low·high·(1 + power_minus_one).
struct ExpParts<S: Simd> {
    power_minus_one: S::F32,
    /// 2^⌊n/2⌋
    low: S::F32,
    /// 2^⌈n/2⌉
    high: S::F32,
    /// 2^−⌈n/2⌉
    inverse_high: S::F32,
}

/// x = n·ln 2 + r: the powers of two of n in halves, as 2^n may lie outside the normal numbers, and e^r − 1.
///
/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn exp_parts<S: Simd>(x: S::F32) -> ExpParts<S> {
    // SAFETY: required of the caller.
    unsafe {
        // The bound comes first: min and max give their second argument for NaN.
        let x = S::max(S::splat(EXP_MIN), S::min(S::splat(EXP_MAX), x));
        let magic = S::splat(ROUND_MAGIC);
        let shifted = S::fma(x, S::splat(std::f32::consts::LOG2_E), magic);
        let n = S::sub(shifted, magic);
        let r = S::fma(n, S::splat(-LN2), x);
        let r = S::fma(n, S::splat(-LN2_LOW), r);
        let q = polynomial::<S, 6>(&EXP_POLYNOMIAL, r);
        // ⌊n/2⌋ + 128 by a logical shift, as n + 256 is positive.
        let bits = S::to_bits(shifted);
        let magic_bits = ROUND_MAGIC.to_bits() as i32;
        let half = S::shr(S::sub_i32(bits, S::splat_i32(magic_bits - 256)), 1);
        // ⌈n/2⌉ + 127
        let rest = S::sub_i32(S::sub_i32(bits, S::splat_i32(magic_bits - 255)), half);
        ExpParts {
            power_minus_one: S::fma(q, S::mul(r, r), r),
            low: S::from_bits(S::shl(S::sub_i32(half, S::splat_i32(1)), 23)),
            high: S::from_bits(S::shl(rest, 23)),
            inverse_high: S::from_bits(S::shl(S::sub_i32(S::splat_i32(254), rest), 23)),
        }
    }
}

/// [`exp`] in lanes.
///
/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let parts = exp_parts::<S>(x);
        let p = S::add(parts.power_minus_one, S::splat(1.0));
        S::mul(S::mul(p, parts.low), parts.high)
    }
}

/// [`expm1`] in lanes.
///
/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn expm1_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let parts = exp_parts::<S>(x);
        let offset = S::sub(parts.low, parts.inverse_high);
        S::mul(S::fma(parts.power_minus_one, parts.low, offset), parts.high)
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn log1p_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let one = S::splat(1.0);
        let offset = S::sub_i32(S::to_bits(S::add(one, x)), S::splat_i32(SQRT_HALF_BITS));
        let exponent = S::and(offset, S::splat_i32(!0x7f_ffff));
        let scaled = S::from_bits(S::sub_i32(S::to_bits(x), exponent));
        let four_scaled = S::from_bits(S::sub_i32(S::to_bits(S::splat(4.0)), exponent));
        let f = S::add(scaled, S::fma(four_scaled, S::splat(0.25), S::splat(-1.0)));
        // The exponent stands 23 bits up; both steps are exact.
        let k = S::mul(S::to_f32(exponent), S::splat(1.0 / 8_388_608.0));
        let p = polynomial::<S, 9>(&LOG1P_POLYNOMIAL, f);
        let q = S::fma(p, f, S::splat(-0.5));
        let y = S::fma(k, S::splat(LN2), S::fma(q, S::mul(f, f), f));

        let minus_one = S::splat(-1.0);
        let pole = S::select(S::less(x, minus_one), S::splat(f32::NAN), S::splat(f32::NEG_INFINITY));
        let y = S::select(S::less_equal(x, minus_one), pole, y);
        // Infinity and NaN are their own result.
        S::select(S::less(x, S::splat(f32::INFINITY)), y, x)
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn tanh_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let magnitude = S::abs(x);
        let square = S::mul(x, x);
        let p = polynomial::<S, 6>(&TANH_POLYNOMIAL, square);
        let small = S::fma(S::mul(p, square), x, x);
        let one = S::splat(1.0);
        let two = S::splat(2.0);
        let power = exp_lanes::<S>(S::mul(two, magnitude));
        let large = S::sub(one, S::div(two, S::add(power, one)));
        let is_small = S::less(magnitude, S::splat(TANH_SMALL));
        S::select(is_small, small, with_sign_of::<S>(large, x))
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn erf_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let magnitude = S::abs(x);
        let small = S::fma(polynomial::<S, 7>(&ERF_SMALL_POLYNOMIAL, S::mul(x, x)), x, x);
        let bounded = S::min(S::splat(ERF_ONE), magnitude);
        let power = exp_lanes::<S>(polynomial::<S, 8>(&ERF_LARGE_POLYNOMIAL, bounded));
        let large = S::sub(S::splat(1.0), power);
        let is_small = S::less(magnitude, S::splat(ERF_SMALL));
        S::select(is_small, small, with_sign_of::<S>(large, x))
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn sigmoid_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let one = S::splat(1.0);
        let z = exp_lanes::<S>(S::neg(S::abs(x)));
        let is_negative = S::less(x, S::splat(0.0));
        let quotient = S::div(S::select(is_negative, z, one), S::add(one, z));
        S::select(is_negative, S::fma(S::neg(z), quotient, z), quotient)
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn softplus_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let z = exp_lanes::<S>(S::neg(S::abs(x)));
        S::add(S::max(x, S::splat(0.0)), log1p_lanes::<S>(z))
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn silu_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe { S::mul(x, sigmoid_lanes::<S>(x)) }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn gelu_tanh_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let cube = S::mul(S::mul(x, x), x);
        let inner = S::fma(cube, S::splat(GELU_TANH_CUBIC), x);
        let twice = S::mul(inner, S::splat(2.0 * GELU_TANH_SCALE));
        S::mul(x, sigmoid_lanes::<S>(twice))
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn gelu_erf_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let e = erf_lanes::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2)));
        S::mul(S::mul(S::splat(0.5), x), S::add(S::splat(1.0), e))
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn quick_gelu_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe { S::mul(x, sigmoid_lanes::<S>(S::mul(x, S::splat(QUICK_GELU_SCALE)))) }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn relu_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        // Not max(0, x): NaN passes through.
        let zero = S::splat(0.0);
        S::select(S::less(x, zero), zero, x)
    }
}

/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn relu_squared_lanes<S: Simd>(x: S::F32) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        let positive = relu_lanes::<S>(x);
        S::mul(positive, positive)
    }
}
