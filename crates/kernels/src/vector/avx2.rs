//! 8 lanes of AVX2 with FMA and F16C.

use std::arch::x86_64::*;

use super::{Simd, simd_methods};

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// All bits of the first `count` lanes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn first_lanes(count: usize) -> __m256i {
    // SAFETY: required of the caller.
    unsafe {
        _mm256_cmpgt_epi32(
            _mm256_set1_epi32(count as i32),
            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
        )
    }
}

/// The two halves of a register.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn halves(v: __m256i) -> (__m128i, __m128i) {
    // SAFETY: required of the caller.
    unsafe { (_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v)) }
}

/// The low byte of each lane, saturated, in the low 8 bytes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn pack_i8(v: __m256i) -> __m128i {
    // SAFETY: required of the caller.
    unsafe {
        let words = _mm256_packs_epi32(v, v);
        let (low, high) = halves(_mm256_packs_epi16(words, words));
        _mm_unpacklo_epi32(low, high)
    }
}

// SAFETY: every load and store below is of 8 lanes, or of the lanes selected by `first_lanes`.
unsafe impl Simd for Avx2 {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    type F32 = __m256;
    type I32 = __m256i;
    type Mask = __m256;
    /// 16 sums of 16 bits, two a lane.
    type Narrow = __m256i;
    type F32x16 = [__m256; 2];

    simd_methods! {
        fn splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        fn splat_x16(x: f32) -> [__m256; 2] { [_mm256_set1_ps(x); 2] }
        fn load(from: *const f32) -> __m256 { _mm256_loadu_ps(from) }
        fn store(to: *mut f32, v: __m256) { _mm256_storeu_ps(to, v) }
        fn prefetch(from: *const u8) { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
        fn load_first(from: *const f32, count: usize) -> __m256 { _mm256_maskload_ps(from, first_lanes(count)) }
        fn store_first(to: *mut f32, v: __m256, count: usize) { _mm256_maskstore_ps(to, first_lanes(count), v) }
        fn load_f16(from: *const u16) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
        fn load_bf16(from: *const u16) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))))
        }
        fn add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn neg(v: __m256) -> __m256 { _mm256_xor_ps(v, _mm256_set1_ps(-0.0)) }
        fn abs(v: __m256) -> __m256 { _mm256_andnot_ps(_mm256_set1_ps(-0.0), v) }
        fn max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn min(a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }

        fn less(a: __m256, b: __m256) -> __m256 { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
        fn less_equal(a: __m256, b: __m256) -> __m256 { _mm256_cmp_ps::<_CMP_LE_OQ>(a, b) }
        fn select(mask: __m256, a: __m256, b: __m256) -> __m256 { _mm256_blendv_ps(b, a, mask) }

        fn splat_i32(x: i32) -> __m256i { _mm256_set1_epi32(x) }
        fn load_bytes(from: *const u8) -> __m256i { _mm256_loadu_si256(from.cast()) }
        fn load_i8(from: *const u8) -> __m256i { _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())) }
        fn store_i8(to: *mut i8, v: __m256i) { _mm_storel_epi64(to.cast(), pack_i8(v)) }
        fn sub_i32(a: __m256i, b: __m256i) -> __m256i { _mm256_sub_epi32(a, b) }
        fn max_i32(a: __m256i, b: __m256i) -> __m256i { _mm256_max_epi32(a, b) }
        fn and(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        fn or(a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        fn shl(v: __m256i, count: u32) -> __m256i { _mm256_sllv_epi32(v, _mm256_set1_epi32(count as i32)) }
        fn shr(v: __m256i, count: u32) -> __m256i { _mm256_srlv_epi32(v, _mm256_set1_epi32(count as i32)) }
        fn lookup(table: &[u8; 16], indices: __m256i) -> __m256i {
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), indices)
        }
        fn to_f32(v: __m256i) -> __m256 { _mm256_cvtepi32_ps(v) }
        fn to_i32(v: __m256) -> __m256i { _mm256_cvtps_epi32(v) }
        fn to_bits(v: __m256) -> __m256i { _mm256_castps_si256(v) }
        fn from_bits(v: __m256i) -> __m256 { _mm256_castsi256_ps(v) }
        fn sum_i32(v: __m256i) -> i32 {{
            let (low, high) = halves(v);
            let four = _mm_add_epi32(low, high);
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b01>(two)))
        }}
        fn largest_i32(v: __m256i) -> i32 {{
            let (low, high) = halves(v);
            let four = _mm_max_epi32(low, high);
            let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b01>(two)))
        }}

        fn narrow_start(_start: __m256i) -> __m256i { _mm256_setzero_si256() }
        fn narrow_dot(sum: __m256i, weights: __m256i, x: __m256i) -> __m256i {
            _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, x))
        }
        fn narrow_finish(sum: __m256i, start: __m256i) -> __m256i {
            _mm256_add_epi32(start, _mm256_madd_epi16(sum, _mm256_set1_epi16(1)))
        }
        // The products of |w| and x with the sign of w: |w| reaches 128, which fits an unsigned byte, and a pair of
        // products 2 * 128 * 127, which fits i16. The unsigned weights themselves would overflow it.
        fn wide_start(_minus_128_sum: __m256i) -> __m256i { _mm256_setzero_si256() }
        fn wide_dot(sum: __m256i, weights: __m256i, x: __m256i) -> __m256i {{
            let signed = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }}
    }
}
