//! Elementary f32 functions, one value at a time: the oracle of [`crate::math`].
//!
//! Each function is a fixed sequence of IEEE operations (fma, divide, integer steps on the bits), so its result is one value on every
//! machine. The polynomials are minimax fits (Remez, relative error below 2^-28) rounded to f32.

/// 1.5·2^23: adding it rounds to an integer (half to even), which then stands in the low bits of the sum.
pub(crate) const ROUND_MAGIC: f32 = 12_582_912.0;

/// Arguments of `exp` are clamped to this range: outside it the result has already reached 0 or infinity.
pub(crate) const EXP_MIN: f32 = -104.0;
/// See [`EXP_MIN`].
pub(crate) const EXP_MAX: f32 = 89.0;
/// ln 2 rounded to f32; the product with a small integer is exact inside an fma.
pub(crate) const LN2: f32 = std::f32::consts::LN_2;
/// ln 2 − [`LN2`].
pub(crate) const LN2_LOW: f32 = -1.904_654_3e-9;
/// exp(r) = 1 + r + r²·q(r) on |r| ≤ ln 2 / 2: coefficients of q, highest power first.
pub(crate) const EXP_POLYNOMIAL: [f32; 6] = [
    1.978_913_2e-4,
    1.394_575_1e-3,
    8.333_504e-3,
    4.166_628e-2,
    1.666_666_7e-1,
    0.5,
];

/// Bits of √½: `log1p` brings 1 + x into [√½, √2).
pub(crate) const SQRT_HALF_BITS: i32 = 0x3f35_04f3;
/// log(1 + f) = f + f²·(f·p(f) − ½) on [√½ − 1, √2 − 1]: coefficients of p, highest power first.
pub(crate) const LOG1P_POLYNOMIAL: [f32; 9] = [
    6.748_286e-2,
    -1.167_769_4e-1,
    1.188_856e-1,
    -1.240_530_3e-1,
    1.421_946_6e-1,
    -1.666_800_8e-1,
    2.000_212_4e-1,
    -2.500_001e-1,
    3.333_331_3e-1,
];

/// Below this magnitude `tanh` is its polynomial, above it comes from `exp`.
pub(crate) const TANH_SMALL: f32 = 0.63;
/// tanh(x) = x + x³·p(x²): coefficients of p, highest power first.
pub(crate) const TANH_POLYNOMIAL: [f32; 6] = [
    2.118_011_5e-3,
    -8.150_69e-3,
    2.169_015e-2,
    -5.394_489e-2,
    1.333_319_1e-1,
    -3.333_333_3e-1,
];

/// Below this magnitude `erf` is its polynomial, above it 1 − exp(g(|x|)).
pub(crate) const ERF_SMALL: f32 = 0.93;
/// From here on erf rounds to 1.
pub(crate) const ERF_ONE: f32 = 3.95;
/// erf(x) = x + x·p(x²): coefficients of p, highest power first.
pub(crate) const ERF_SMALL_POLYNOMIAL: [f32; 7] = [
    8.298_833e-5,
    -8.125_692e-4,
    5.199_519e-3,
    -2.685_878_2e-2,
    1.128_368_45e-1,
    -3.761_263_2e-1,
    1.283_791_7e-1,
];
/// g(x) = ln(1 − erf(x)) on [0.92, 3.95]: coefficients, highest power first.
pub(crate) const ERF_LARGE_POLYNOMIAL: [f32; 8] = [
    -2.109_623_5e-5,
    4.344_761_5e-4,
    -4.171_128e-3,
    2.511_959_5e-2,
    -1.082_803_46e-1,
    -6.333_467e-1,
    -1.129_515,
    1.747_073_8e-4,
];

/// √(2/π), of the tanh form of GELU.
pub(crate) const GELU_TANH_SCALE: f32 = 0.797_884_6;
/// The cubic coefficient of the tanh form of GELU.
pub(crate) const GELU_TANH_CUBIC: f32 = 0.044_715;
/// The scale in the sigmoid of the quick form of GELU.
pub(crate) const QUICK_GELU_SCALE: f32 = 1.702;

fn polynomial(coefficients: &[f32], x: f32) -> f32 {
    coefficients[1..]
        .iter()
        .fold(coefficients[0], |sum, &c| sum.mul_add(x, c))
}

/// 2^n for −126 ≤ n ≤ 127.
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// e^x.
pub fn exp(x: f32) -> f32 {
    // Written as comparisons so that NaN passes through.
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_MAGIC);
    let n = shifted - ROUND_MAGIC;
    // r = x − n·ln 2; the first step is exact.
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2, x));
    let p = polynomial(&EXP_POLYNOMIAL, r).mul_add(r * r, r) + 1.0;
    // Two steps: the first product is exact, the second rounds once, also into the subnormals and to infinity.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND_MAGIC.to_bits() as i32);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// e^x − 1, without the cancellation of `exp(x) - 1` near 0.
pub fn expm1(x: f32) -> f32 {
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_MAGIC);
    let n = shifted - ROUND_MAGIC;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2, x));
    // p = e^r − 1; 2^n·p + (2^n − 1) = 2^(n−half)·(2^half·p + (2^half − 2^(half−n))), where n = 0 gives p itself.
    let p = polynomial(&EXP_POLYNOMIAL, r).mul_add(r * r, r);
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND_MAGIC.to_bits() as i32);
    let half = n >> 1;
    let rest = n.wrapping_sub(half);
    let low = power_of_two(half);
    p.mul_add(low, low - power_of_two(rest.wrapping_neg())) * power_of_two(rest)
}

/// ln(1 + x); −∞ at −1, NaN below.
pub fn log1p(x: f32) -> f32 {
    if x.is_nan() || x <= -1.0 || x == f32::INFINITY {
        return if x == -1.0 {
            f32::NEG_INFINITY
        } else if x == f32::INFINITY {
            f32::INFINITY
        } else {
            f32::NAN
        };
    }
    // 1 + x = 2^k·(1 + f); f comes from x, not from the rounded sum: f = x·2^-k + (2^-k − 1).
    let exponent = ((1.0 + x).to_bits() as i32).wrapping_sub(SQRT_HALF_BITS) & !0x7f_ffff;
    let scaled = f32::from_bits((x.to_bits() as i32).wrapping_sub(exponent) as u32);
    let four_scaled = f32::from_bits((4f32.to_bits() as i32).wrapping_sub(exponent) as u32);
    let f = scaled + four_scaled.mul_add(0.25, -1.0);
    let k = (exponent >> 23) as f32;
    let q = polynomial(&LOG1P_POLYNOMIAL, f).mul_add(f, -0.5);
    k.mul_add(LN2, q.mul_add(f * f, f))
}

/// tanh x.
pub fn tanh(x: f32) -> f32 {
    if x.abs() < TANH_SMALL {
        let square = x * x;
        (polynomial(&TANH_POLYNOMIAL, square) * square).mul_add(x, x)
    } else {
        let magnitude = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
        magnitude.copysign(x)
    }
}

/// The error function.
pub fn erf(x: f32) -> f32 {
    let magnitude = x.abs();
    if magnitude < ERF_SMALL {
        polynomial(&ERF_SMALL_POLYNOMIAL, x * x).mul_add(x, x)
    } else {
        let bounded = if magnitude > ERF_ONE { ERF_ONE } else { magnitude };
        (1.0 - exp(polynomial(&ERF_LARGE_POLYNOMIAL, bounded))).copysign(x)
    }
}

/// 1 / (1 + e^−x), as z − z·z/(1 + z) with z = e^−|x| where x is negative: small results keep their precision.
pub fn sigmoid(x: f32) -> f32 {
    let z = exp(-x.abs());
    let quotient = (if x < 0.0 { z } else { 1.0 }) / (1.0 + z);
    if x < 0.0 { (-z).mul_add(quotient, z) } else { quotient }
}

/// ln(1 + e^x) = max(x, 0) + log1p(e^−|x|).
pub fn softplus(x: f32) -> f32 {
    (if x > 0.0 { x } else { 0.0 }) + log1p(exp(-x.abs()))
}

/// max(x, 0).
pub fn relu(x: f32) -> f32 {
    // Not f32::max: NaN passes through.
    if x < 0.0 { 0.0 } else { x }
}

/// max(x, 0)².
pub fn relu_squared(x: f32) -> f32 {
    relu(x) * relu(x)
}

/// x·sigmoid(1.702·x).
pub fn quick_gelu(x: f32) -> f32 {
    x * sigmoid(x * QUICK_GELU_SCALE)
}

/// x·sigmoid(x).
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// x·sigmoid(2u), u = √(2/π)·(x + 0.044715·x³): the same function as x/2·(1 + tanh u), without its cancellation for negative x.
pub fn gelu_tanh(x: f32) -> f32 {
    let inner = (x * x * x).mul_add(GELU_TANH_CUBIC, x);
    x * sigmoid(inner * (2.0 * GELU_TANH_SCALE))
}

/// x/2·(1 + erf(x/√2)).
pub fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}
