//! The 16-bit floats of weight files and of the KV cache, one value at a time.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// The value of an IEEE half-precision float; exact.
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// Rounds to the nearest half-precision floats, ties to even, in vectors where the machine can; overflows to infinity.
pub(crate) fn f32_slice_to_f16(values: &[f32], bits: &mut [u16]) {
    bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values);
}

/// The value of a bfloat16; exact.
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}
