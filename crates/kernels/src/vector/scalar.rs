//! 4 lanes of plain Rust, for machines without a better instance and to test the kernels' logic at 4 lanes on any machine.

use super::{Simd, safe_methods, simd_methods};
use crate::float16::{bf16_to_f32, f16_to_f32};

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

const LANES: usize = 4;
type F32 = [f32; LANES];
type I32 = [i32; LANES];
type Mask = [bool; LANES];

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(a: [A; LANES], b: [B; LANES], op: impl Fn(A, B) -> C) -> [C; LANES] {
    std::array::from_fn(|i| op(a[i], b[i]))
}

/// As the conversion instruction of x86: the one value that means "no such integer" is `i32::MIN`.
#[inline(always)]
fn round_to_i32(x: f32) -> i32 {
    let rounded = x.round_ties_even();
    // 2^31 is the first f32 that i32 cannot hold.
    if (-2147483648.0..2147483648.0).contains(&rounded) {
        rounded as i32
    } else {
        i32::MIN
    }
}

/// The four products of the bytes of `weights`, read by `weight`, and the signed bytes of `x`.
#[inline(always)]
fn byte_dot(weights: i32, x: i32, weight: impl Fn(u8) -> i32) -> i32 {
    let (weights, x) = (weights.to_le_bytes(), x.to_le_bytes());
    (0..4).map(|i| weight(weights[i]) * i32::from(x[i] as i8)).sum()
}

// SAFETY: every load and store below is of 4 lanes, or of the first `count`.
unsafe impl Simd for Scalar {
    const LANES: usize = LANES;
    const REGISTERS: usize = 0;
    type F32 = F32;
    type I32 = I32;
    type Mask = Mask;
    type Narrow = I32;
    type F32x16 = [F32; 4];

    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}

    simd_methods! {
        fn load(from: *const f32) -> F32 { from.cast::<F32>().read_unaligned() }
        fn store(to: *mut f32, v: F32) { to.cast::<F32>().write_unaligned(v) }
        fn load_first(from: *const f32, count: usize) -> F32 {
            std::array::from_fn(|i| if i < count { from.add(i).read_unaligned() } else { 0.0 })
        }
        fn store_first(to: *mut f32, v: F32, count: usize) {
            for (i, x) in v.into_iter().enumerate().take(count) {
                to.add(i).write_unaligned(x);
            }
        }
        fn load_f16(from: *const u16) -> F32 { from.cast::<[u16; LANES]>().read_unaligned().map(f16_to_f32) }
        fn load_bf16(from: *const u16) -> F32 { from.cast::<[u16; LANES]>().read_unaligned().map(bf16_to_f32) }
        fn load_bytes(from: *const u8) -> I32 { from.cast::<[[u8; 4]; LANES]>().read_unaligned().map(i32::from_le_bytes) }
        fn load_i8(from: *const u8) -> I32 { from.cast::<[i8; LANES]>().read_unaligned().map(i32::from) }
        fn store_i8(to: *mut i8, v: I32) { to.cast::<[i8; LANES]>().write_unaligned(v.map(|x| x as i8)) }
    }

    safe_methods! {
        fn splat(x: f32) -> F32 { [x; LANES] }
        fn splat_x16(x: f32) -> [F32; 4] { [[x; LANES]; 4] }
        fn add(a: F32, b: F32) -> F32 { zip(a, b, |a, b| a + b) }
        fn sub(a: F32, b: F32) -> F32 { zip(a, b, |a, b| a - b) }
        fn mul(a: F32, b: F32) -> F32 { zip(a, b, |a, b| a * b) }
        fn div(a: F32, b: F32) -> F32 { zip(a, b, |a, b| a / b) }
        fn fma(a: F32, b: F32, c: F32) -> F32 { std::array::from_fn(|i| a[i].mul_add(b[i], c[i])) }
        fn neg(v: F32) -> F32 { v.map(|x| -x) }
        fn abs(v: F32) -> F32 { v.map(f32::abs) }
        fn max(a: F32, b: F32) -> F32 { zip(a, b, |a, b| if a > b { a } else { b }) }
        fn min(a: F32, b: F32) -> F32 { zip(a, b, |a, b| if a < b { a } else { b }) }

        fn less(a: F32, b: F32) -> Mask { zip(a, b, |a, b| a < b) }
        fn less_equal(a: F32, b: F32) -> Mask { zip(a, b, |a, b| a <= b) }
        fn select(mask: Mask, a: F32, b: F32) -> F32 { std::array::from_fn(|i| if mask[i] { a[i] } else { b[i] }) }

        fn splat_i32(x: i32) -> I32 { [x; LANES] }
        fn sub_i32(a: I32, b: I32) -> I32 { zip(a, b, i32::wrapping_sub) }
        fn max_i32(a: I32, b: I32) -> I32 { zip(a, b, i32::max) }
        fn and(a: I32, b: I32) -> I32 { zip(a, b, |a, b| a & b) }
        fn or(a: I32, b: I32) -> I32 { zip(a, b, |a, b| a | b) }
        fn shl(v: I32, count: u32) -> I32 { v.map(|x| x << count) }
        fn shr(v: I32, count: u32) -> I32 { v.map(|x| (x as u32 >> count) as i32) }
        fn lookup(table: &[u8; 16], indices: I32) -> I32 {
            indices.map(|four| i32::from_le_bytes(four.to_le_bytes().map(|i| table[usize::from(i & 15)])))
        }
        fn to_f32(v: I32) -> F32 { v.map(|x| x as f32) }
        fn to_i32(v: F32) -> I32 { v.map(round_to_i32) }
        fn to_bits(v: F32) -> I32 { v.map(|x| x.to_bits() as i32) }
        fn from_bits(v: I32) -> F32 { v.map(|x| f32::from_bits(x as u32)) }
        fn sum_i32(v: I32) -> i32 { v.into_iter().fold(0, i32::wrapping_add) }
        fn largest_i32(v: I32) -> i32 { v.into_iter().fold(i32::MIN, i32::max) }

        fn narrow_start(start: I32) -> I32 { start }
        fn narrow_dot(sum: I32, weights: I32, x: I32) -> I32 {
            std::array::from_fn(|i| sum[i] + byte_dot(weights[i], x[i], i32::from))
        }
        fn narrow_finish(sum: I32, _start: I32) -> I32 { sum }
        fn wide_start(_minus_128_sum: I32) -> I32 { [0; LANES] }
        fn wide_dot(sum: I32, weights: I32, x: I32) -> I32 {
            std::array::from_fn(|i| sum[i] + byte_dot(weights[i], x[i], |w| i32::from(w) - 128))
        }
    }
}
