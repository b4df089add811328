//! 16 lanes of AVX-512.

use std::arch::x86_64::*;

use super::{Simd, safe_methods, simd_methods};

/// AVX-512 F, BW, VL, DQ and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// The first `count` lanes.
fn first_lanes(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

// SAFETY: every load and store below is of 16 lanes, or of the lanes selected by `first_lanes`.
unsafe impl Simd for Avx512 {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    type F32 = __m512;
    type I32 = __m512i;
    type Mask = __mmask16;
    type Narrow = __m512i;
    type F32x16 = [__m512; 1];

    simd_methods! {
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn splat_x16(x: f32) -> [__m512; 1] { [_mm512_set1_ps(x)] }
        fn load(from: *const f32) -> __m512 { _mm512_loadu_ps(from) }
        fn store(to: *mut f32, v: __m512) { _mm512_storeu_ps(to, v) }
        fn prefetch(from: *const u8) { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
        fn prefetch_second(from: *const u8) { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
        fn load_first(from: *const f32, count: usize) -> __m512 { _mm512_maskz_loadu_ps(first_lanes(count), from) }
        fn store_first(to: *mut f32, v: __m512, count: usize) { _mm512_mask_storeu_ps(to, first_lanes(count), v) }
        fn load_f16(from: *const u16) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        fn load_bf16(from: *const u16) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))))
        }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn neg(v: __m512) -> __m512 { _mm512_xor_ps(v, _mm512_set1_ps(-0.0)) }
        fn abs(v: __m512) -> __m512 { _mm512_andnot_ps(_mm512_set1_ps(-0.0), v) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }

        fn less(a: __m512, b: __m512) -> __mmask16 { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
        fn less_equal(a: __m512, b: __m512) -> __mmask16 { _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b) }
        fn select(mask: __mmask16, a: __m512, b: __m512) -> __m512 { _mm512_mask_blend_ps(mask, b, a) }

        fn splat_i32(x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn load_bytes(from: *const u8) -> __m512i { _mm512_loadu_si512(from.cast()) }
        fn load_i8(from: *const u8) -> __m512i { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
        fn store_i8(to: *mut i8, v: __m512i) { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(v)) }
        fn sub_i32(a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        fn max_i32(a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi32(a, b) }
        fn and(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn shl(v: __m512i, count: u32) -> __m512i { _mm512_sllv_epi32(v, _mm512_set1_epi32(count as i32)) }
        fn shr(v: __m512i, count: u32) -> __m512i { _mm512_srlv_epi32(v, _mm512_set1_epi32(count as i32)) }
        fn lookup(table: &[u8; 16], indices: __m512i) -> __m512i {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), indices)
        }
        fn to_f32(v: __m512i) -> __m512 { _mm512_cvtepi32_ps(v) }
        fn to_i32(v: __m512) -> __m512i { _mm512_cvtps_epi32(v) }
        fn to_bits(v: __m512) -> __m512i { _mm512_castps_si512(v) }
        fn from_bits(v: __m512i) -> __m512 { _mm512_castsi512_ps(v) }
        fn sum_i32(v: __m512i) -> i32 { _mm512_reduce_add_epi32(v) }
        fn largest_i32(v: __m512i) -> i32 { _mm512_reduce_max_epi32(v) }

        fn narrow_dot(sum: __m512i, weights: __m512i, x: __m512i) -> __m512i { _mm512_dpbusd_epi32(sum, weights, x) }
        fn wide_dot(sum: __m512i, weights: __m512i, x: __m512i) -> __m512i { _mm512_dpbusd_epi32(sum, weights, x) }
    }
    safe_methods! {
        fn narrow_start(start: __m512i) -> __m512i { start }
        fn narrow_finish(sum: __m512i, _start: __m512i) -> __m512i { sum }
        fn wide_start(minus_128_sum: __m512i) -> __m512i { minus_128_sum }
    }
}
