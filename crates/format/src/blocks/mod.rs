//! Scalar decoding of every storage type to f32, and encoding of the simple ones.
//!
//! The results are those of the published Python package `gguf` (`gguf.quants`), bit for bit; kernels are compared
//! with them. Each formula is written with the same roundings: products first, then the minimum.

mod encode;
mod float;
mod grids;
mod iq;
mod k;
mod simple;
mod ternary;

use half::f16;

use crate::{DType, DTypeError};

/// Why blocks were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The elements are not whole blocks.
    #[error(transparent)]
    Size(#[from] DTypeError),
    /// The two buffers do not belong together.
    #[error("{elements} elements of {dtype} are {wanted} bytes, not {found}")]
    Length {
        /// The storage type.
        dtype: DType,
        /// Length of the f32 buffer.
        elements: usize,
        /// Bytes for so many elements.
        wanted: u64,
        /// Length of the byte buffer.
        found: usize,
    },
    /// Integers and truth values have no floating-point meaning of their own.
    #[error("{dtype} does not hold floating-point numbers; read its bytes instead")]
    NotFloat {
        /// The storage type.
        dtype: DType,
    },
    /// Blocks of this type are not taken apart.
    #[error("blocks of {dtype} are not given as integers; decode them")]
    NoIntegers {
        /// The storage type.
        dtype: DType,
    },
    /// There is no encoder.
    #[error("encoding to {dtype} is not supported")]
    NoEncoder {
        /// The storage type.
        dtype: DType,
    },
}

/// Decodes whole blocks: `bytes` must hold exactly `out.len()` elements.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), BlockError> {
    check_lengths(dtype, out.len(), bytes.len())?;
    match dtype {
        DType::F64 => each(bytes, out, float::f64),
        DType::F32 => each(bytes, out, float::f32),
        DType::F16 => each(bytes, out, float::f16),
        DType::BF16 => each(bytes, out, float::bf16),
        DType::F8_E4M3 => each(bytes, out, float::f8_e4m3),
        DType::F8_E5M2 => each(bytes, out, float::f8_e5m2),
        DType::F8_E8M0 => each(bytes, out, float::f8_e8m0),
        DType::Q4_0 => each(bytes, out, simple::q4_0),
        DType::Q4_1 => each(bytes, out, simple::q4_1),
        DType::Q5_0 => each(bytes, out, simple::q5_0),
        DType::Q5_1 => each(bytes, out, simple::q5_1),
        DType::Q8_0 => each(bytes, out, simple::q8_0),
        DType::Q2_K => each(bytes, out, k::q2_k),
        DType::Q3_K => each(bytes, out, k::q3_k),
        DType::Q4_K => each(bytes, out, k::q4_k),
        DType::Q5_K => each(bytes, out, k::q5_k),
        DType::Q6_K => each(bytes, out, k::q6_k),
        DType::Q8_K => each(bytes, out, k::q8_k),
        DType::IQ1_S => each(bytes, out, |block, out| iq::iq1_s(block).decode(out)),
        DType::IQ1_M => each(bytes, out, |block, out| iq::iq1_m(block).decode(out)),
        DType::IQ2_XXS => each(bytes, out, |block, out| iq::iq2_xxs(block).decode(out)),
        DType::IQ2_XS => each(bytes, out, |block, out| iq::iq2_xs(block).decode(out)),
        DType::IQ2_S => each(bytes, out, |block, out| iq::iq2_s(block).decode(out)),
        DType::IQ3_XXS => each(bytes, out, |block, out| iq::iq3_xxs(block).decode(out)),
        DType::IQ3_S => each(bytes, out, |block, out| iq::iq3_s(block).decode(out)),
        DType::IQ4_NL => each(bytes, out, simple::iq4_nl),
        DType::IQ4_XS => each(bytes, out, k::iq4_xs),
        DType::TQ1_0 => each(bytes, out, ternary::tq1_0),
        DType::TQ2_0 => each(bytes, out, ternary::tq2_0),
        DType::MXFP4 => each(bytes, out, simple::mxfp4),
        DType::NVFP4 => each(bytes, out, simple::nvfp4),
        DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64
        | DType::BOOL => return Err(BlockError::NotFloat { dtype }),
    }
    Ok(())
}

/// Encodes whole blocks (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0): `bytes` must have exactly the size of
/// `values.len()` elements. Values must be finite; others give unspecified blocks.
pub fn encode(dtype: DType, values: &[f32], bytes: &mut [u8]) -> Result<(), BlockError> {
    check_lengths(dtype, values.len(), bytes.len())?;
    match dtype {
        DType::F32 => each_mut(values, bytes, encode::f32),
        DType::F16 => each_mut(values, bytes, encode::f16),
        DType::BF16 => each_mut(values, bytes, encode::bf16),
        DType::Q4_0 => each_mut(values, bytes, encode::q4_0),
        DType::Q4_1 => each_mut(values, bytes, encode::q4_1),
        DType::Q5_0 => each_mut(values, bytes, encode::q5_0),
        DType::Q5_1 => each_mut(values, bytes, encode::q5_1),
        DType::Q8_0 => each_mut(values, bytes, encode::q8_0),
        _ => return Err(BlockError::NoEncoder { dtype }),
    }
    Ok(())
}

/// 256 elements of a codebook type as integers: element `i` is `scale * scales[i / 16] * quants[i]`, which f32 holds exactly.
#[derive(Clone, Copy, Debug)]
pub struct IntegerBlock {
    /// Of all elements.
    pub scale: f32,
    /// Odd, 1 to 31; of 16 elements each.
    pub scales: [i8; 16],
    /// At most 43 in magnitude. IQ2: ±8, ±25, ±43. IQ3_XXS: ±2, ±6, … ±26, ±31. IQ3_S: ±1, ±3, … ±15. IQ1: ±1, ±7, ±9.
    pub quants: [i8; 256],
}

impl IntegerBlock {
    fn new(scale: f32) -> IntegerBlock {
        IntegerBlock {
            scale,
            scales: [0; 16],
            quants: [0; 256],
        }
    }

    fn decode(&self, out: &mut [f32; 256]) {
        for ((value, &quant), i) in out.iter_mut().zip(&self.quants).zip(0..) {
            *value = self.scale * f32::from(self.scales[i / 16]) * f32::from(quant);
        }
    }
}

/// Takes whole blocks of a codebook type (IQ1, IQ2 and IQ3 of all sizes) apart and hands out one after the other.
pub fn integers(dtype: DType, bytes: &[u8], mut take: impl FnMut(&IntegerBlock)) -> Result<(), BlockError> {
    let elements = bytes.len() / dtype.block_bytes() * dtype.block_elements();
    check_lengths(dtype, elements, bytes.len())?;
    match dtype {
        DType::IQ1_S => each_block(bytes, |block| take(&iq::iq1_s(block))),
        DType::IQ1_M => each_block(bytes, |block| take(&iq::iq1_m(block))),
        DType::IQ2_XXS => each_block(bytes, |block| take(&iq::iq2_xxs(block))),
        DType::IQ2_XS => each_block(bytes, |block| take(&iq::iq2_xs(block))),
        DType::IQ2_S => each_block(bytes, |block| take(&iq::iq2_s(block))),
        DType::IQ3_XXS => each_block(bytes, |block| take(&iq::iq3_xxs(block))),
        DType::IQ3_S => each_block(bytes, |block| take(&iq::iq3_s(block))),
        _ => return Err(BlockError::NoIntegers { dtype }),
    }
    Ok(())
}

fn check_lengths(dtype: DType, elements: usize, found: usize) -> Result<(), BlockError> {
    let wanted = dtype.bytes(elements as u64)?;
    if wanted == found as u64 {
        Ok(())
    } else {
        Err(BlockError::Length {
            dtype,
            elements,
            wanted,
            found,
        })
    }
}

/// Applies a decoder of blocks of `B` bytes and `N` elements.
fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn(&[u8; B], &mut [f32; N])) {
    for (block, values) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(block, values);
    }
}

fn each_block<const B: usize>(bytes: &[u8], take: impl FnMut(&[u8; B])) {
    bytes.as_chunks().0.iter().for_each(take);
}

/// Applies an encoder.
fn each_mut<const B: usize, const N: usize>(
    values: &[f32],
    bytes: &mut [u8],
    encode: impl Fn(&[f32; N], &mut [u8; B]),
) {
    for (values, block) in values.as_chunks().0.iter().zip(bytes.as_chunks_mut().0) {
        encode(values, block);
    }
}

/// The f16 number at byte `at` of a block.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_bits(u16_at(block, at)).to_f32()
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Four bits of a packed array of nibbles, low nibble first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    (bytes[index / 2] >> (4 * (index % 2))) & 0x0F
}
