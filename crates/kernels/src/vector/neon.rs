//! 4 lanes of NEON with the dot product instructions of ARMv8.2.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Simd, safe_methods, simd_methods};

/// NEON and DotProd.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

const LANES: usize = 4;

/// Adds the four products of signed bytes to each lane. In assembly until `vdotq_s32` is stable.
///
/// # Safety
/// The machine has NEON and DotProd.
#[inline(always)]
unsafe fn dot(mut sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: required of the caller; the instruction touches these registers only.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// `shift` bits to the left, to the right where it is negative; zeros come in.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn shift(v: int32x4_t, shift: i32) -> int32x4_t {
    // SAFETY: required of the caller.
    unsafe { vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), vdupq_n_s32(shift))) }
}

// SAFETY: every load and store below is of 4 lanes, or of the first `count`.
unsafe impl Simd for Neon {
    const LANES: usize = LANES;
    const REGISTERS: usize = 32;
    type F32 = float32x4_t;
    type I32 = int32x4_t;
    type Mask = uint32x4_t;
    type Narrow = int32x4_t;
    type F32x16 = [float32x4_t; 4];

    simd_methods! {
        fn splat(x: f32) -> float32x4_t { vdupq_n_f32(x) }
        fn splat_x16(x: f32) -> [float32x4_t; 4] { [vdupq_n_f32(x); 4] }
        fn load(from: *const f32) -> float32x4_t { vld1q_f32(from) }
        fn store(to: *mut f32, v: float32x4_t) { vst1q_f32(to, v) }
        // In assembly, as the intrinsic is not stable.
        fn prefetch(from: *const u8) {
            asm!("prfm pldl1keep, [{from}]", from = in(reg) from, options(readonly, nostack, preserves_flags))
        }
        fn load_first(from: *const f32, count: usize) -> float32x4_t {{
            let mut lanes = [0.0; LANES];
            for (i, lane) in lanes.iter_mut().enumerate().take(count) {
                *lane = from.add(i).read_unaligned();
            }
            vld1q_f32(lanes.as_ptr())
        }}
        fn store_first(to: *mut f32, v: float32x4_t, count: usize) {{
            let mut lanes = [0.0; LANES];
            vst1q_f32(lanes.as_mut_ptr(), v);
            for (i, lane) in lanes.into_iter().enumerate().take(count) {
                to.add(i).write_unaligned(lane);
            }
        }}
        fn load_f16(from: *const u16) -> float32x4_t { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))) }
        fn load_bf16(from: *const u16) -> float32x4_t { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from))) }
        fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
        fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t { vsubq_f32(a, b) }
        fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t { vdivq_f32(a, b) }
        fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { vfmaq_f32(c, a, b) }
        fn neg(v: float32x4_t) -> float32x4_t { vnegq_f32(v) }
        fn abs(v: float32x4_t) -> float32x4_t { vabsq_f32(v) }
        // Not the instructions of that name, which order the zeros and give NaN for NaN.
        fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t { vbslq_f32(vcgtq_f32(a, b), a, b) }
        fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t { vbslq_f32(vcltq_f32(a, b), a, b) }

        fn less(a: float32x4_t, b: float32x4_t) -> uint32x4_t { vcltq_f32(a, b) }
        fn less_equal(a: float32x4_t, b: float32x4_t) -> uint32x4_t { vcleq_f32(a, b) }
        fn select(mask: uint32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t { vbslq_f32(mask, a, b) }

        fn splat_i32(x: i32) -> int32x4_t { vdupq_n_s32(x) }
        fn load_bytes(from: *const u8) -> int32x4_t { vreinterpretq_s32_u8(vld1q_u8(from)) }
        fn load_i8(from: *const u8) -> int32x4_t {{
            let four = vreinterpret_s8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned()));
            vmovl_s16(vget_low_s16(vmovl_s8(four)))
        }}
        fn store_i8(to: *mut i8, v: int32x4_t) {{
            let words = vmovn_s32(v);
            let bytes = vmovn_s16(vcombine_s16(words, words));
            to.cast::<i32>().write_unaligned(vget_lane_s32::<0>(vreinterpret_s32_s8(bytes)));
        }}
        fn sub_i32(a: int32x4_t, b: int32x4_t) -> int32x4_t { vsubq_s32(a, b) }
        fn max_i32(a: int32x4_t, b: int32x4_t) -> int32x4_t { vmaxq_s32(a, b) }
        fn and(a: int32x4_t, b: int32x4_t) -> int32x4_t { vandq_s32(a, b) }
        fn or(a: int32x4_t, b: int32x4_t) -> int32x4_t { vorrq_s32(a, b) }
        fn shl(v: int32x4_t, count: u32) -> int32x4_t { shift(v, count as i32) }
        fn shr(v: int32x4_t, count: u32) -> int32x4_t { shift(v, -(count as i32)) }
        fn lookup(table: &[u8; 16], indices: int32x4_t) -> int32x4_t {
            vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table.as_ptr()), vreinterpretq_u8_s32(indices)))
        }
        fn to_f32(v: int32x4_t) -> float32x4_t { vcvtq_f32_s32(v) }
        // The conversion gives 0 for NaN and the nearest i32 for what is too large or too small.
        fn to_i32(v: float32x4_t) -> int32x4_t {{
            let not_too_large = vcltq_f32(v, vdupq_n_f32(2147483648.0));
            vbslq_s32(not_too_large, vcvtnq_s32_f32(v), vdupq_n_s32(i32::MIN))
        }}
        fn to_bits(v: float32x4_t) -> int32x4_t { vreinterpretq_s32_f32(v) }
        fn from_bits(v: int32x4_t) -> float32x4_t { vreinterpretq_f32_s32(v) }
        fn sum_i32(v: int32x4_t) -> i32 { vaddvq_s32(v) }
        fn largest_i32(v: int32x4_t) -> i32 { vmaxvq_s32(v) }

        // Weights are below 128: the same bytes signed.
        fn narrow_dot(sum: int32x4_t, weights: int32x4_t, x: int32x4_t) -> int32x4_t { dot(sum, weights, x) }
        fn wide_start(_minus_128_sum: int32x4_t) -> int32x4_t { vdupq_n_s32(0) }
        fn wide_dot(sum: int32x4_t, weights: int32x4_t, x: int32x4_t) -> int32x4_t {
            dot(sum, veorq_s32(weights, vreinterpretq_s32_s8(vdupq_n_s8(-128))), x)
        }
    }
    safe_methods! {
        fn narrow_start(start: int32x4_t) -> int32x4_t { start }
        fn narrow_finish(sum: int32x4_t, _start: int32x4_t) -> int32x4_t { sum }
    }
}
