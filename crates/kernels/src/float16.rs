//! The 16-bit floats of weight files and of the KV cache, one value at a time.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// Bits of the largest finite half-precision float.
const F16_MAX_BITS: u16 = 0x7bff;
/// Bits of a half-precision float that is not a number.
pub(crate) const F16_NAN_BITS: u16 = 0x7e00;

/// The value of an IEEE half-precision float; exact.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// Rounds to the nearest half-precision floats, ties to even, in vectors where the machine can; overflows to infinity.
pub(crate) fn f32_slice_to_f16(values: &[f32], bits: &mut [u16]) {
    bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values);
}

/// The half-precision float nearest to `x` whose magnitude is not smaller; the largest finite one for what is larger. `x` is not NaN.
pub(crate) fn f16_away_from_zero(x: f32) -> u16 {
    let nearest = f16::from_f32(x);
    let bits = nearest.to_bits();
    let sign = bits & 0x8000;
    let magnitude = bits & 0x7fff;
    let larger = magnitude + u16::from(nearest.to_f32().abs() < x.abs());
    sign | larger.min(F16_MAX_BITS)
}

/// The value of a bfloat16; exact.
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}
