//! Random weights of a wanted size in every type that mixes use.
//!
//! A quantised block gets random bytes, of which the fields that decide its size are set: then it decodes to numbers whose mean is 0 and
//! whose mean square is known. The mean matters. Weights with a mean of their own would turn every stream into the direction (1, 1, …),
//! a little more at each layer; hence the random sign of scales whose quants are not symmetric, and minimums at the middle of the quants.

use goldcrest_format::DType;
use goldcrest_format::blocks::{BlockError, decode, encode};

use super::random::Random;

/// What decides the size of a block.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Offset of the scale, an f16.
    scale_at: usize,
    /// Mean of the squares of a block's elements, where the scale is 1.
    mean_square: f64,
    minimum: Option<Minimum>,
}

/// An f16 that is the scale times `factor`, so that elements are as often above 0 as below.
#[derive(Debug, Clone, Copy)]
struct Minimum {
    at: usize,
    factor: f32,
    /// Gives each part of a block the same small number for its scale and for its minimum.
    pair: fn(&mut [u8]),
}

/// Mean squares: q of b bits has (4ᵇ − 1)/12 around its middle, and 1/4 more where 0 is half a step beside it. In types with small scales
/// for parts of a block, random ones of 4, 6 or 8 bits multiply that by the mean of their squares.
fn layout(dtype: DType) -> Option<Layout> {
    const IQ4_LEVELS: f64 = 4548.0;
    let (scale_at, mean_square, minimum) = match dtype {
        DType::Q4_0 => (0, 21.5, None),
        DType::Q4_1 => (0, 21.25, Some((2, -7.5, keep as fn(&mut [u8])))),
        DType::Q5_0 => (0, 85.5, None),
        DType::Q5_1 => (0, 85.25, Some((2, -15.5, keep as _))),
        DType::Q8_0 => (0, 5461.5, None),
        DType::Q2_K => (80, 77.5 * 1.25, Some((82, 1.5, pair_nibbles as _))),
        DType::Q3_K => (108, 341.5 * 5.5, None),
        DType::Q4_K => (0, 1333.5 * 21.25, Some((2, 7.5, pair_six_bits as _))),
        DType::Q5_K => (0, 1333.5 * 85.25, Some((2, 15.5, pair_six_bits as _))),
        DType::Q6_K => (208, 5461.5 * 341.5, None),
        DType::IQ4_NL => (0, IQ4_LEVELS, None),
        DType::IQ4_XS => (0, 341.5 * IQ4_LEVELS, None),
        _ => return None,
    };
    Some(Layout {
        scale_at,
        mean_square,
        minimum: minimum.map(|(at, factor, pair)| Minimum { at, factor, pair }),
    })
}

fn keep(_: &mut [u8]) {}

/// Q2_K begins with 16 bytes: scale below, minimum above.
fn pair_nibbles(block: &mut [u8]) {
    for byte in block.iter_mut().take(16) {
        *byte = (*byte & 0x0F) * 0x11;
    }
}

/// Q4_K and Q5_K have the scales of parts 0 to 3 in bytes 4 to 7, the minimums in 8 to 11. The other parts have their upper bits on top of
/// those, and their lower ones as nibbles in 12 to 15.
fn pair_six_bits(block: &mut [u8]) {
    block.copy_within(4..8, 8);
    for byte in block.iter_mut().skip(12).take(4) {
        *byte = (*byte & 0x0F) * 0x11;
    }
}

/// Fills `bytes`, whole blocks of `dtype`, with weights of mean 0 and standard deviation `std`.
pub(crate) fn fill(dtype: DType, std: f64, random: &mut Random, bytes: &mut [u8]) -> Result<(), BlockError> {
    match layout(dtype) {
        Some(layout) => fill_scaled(dtype, layout, (std, random), bytes),
        None if dtype == DType::MXFP4 => {
            fill_mxfp4(std, random, bytes);
            Ok(())
        }
        None => fill_encoded(dtype, (0.0, std as f32), random, bytes),
    }
}

fn fill_scaled(
    dtype: DType,
    layout: Layout,
    (std, random): (f64, &mut Random),
    bytes: &mut [u8],
) -> Result<(), BlockError> {
    random.fill(bytes);
    let scale = f16((std / libm::sqrt(layout.mean_square)) as f32)?;
    let minimum = match layout.minimum {
        None => None,
        // Small scales have few bits: the minimum belongs to the scale as it is stored.
        Some(minimum) => {
            let mut stored = [0.0];
            decode(DType::F16, &scale, &mut stored)?;
            Some((minimum, f16(stored[0] * minimum.factor)?))
        }
    };
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        let scale_field = &mut block[layout.scale_at..][..2];
        let random_sign = scale_field[1] & 0x80;
        scale_field.copy_from_slice(&scale);
        match minimum {
            None => scale_field[1] |= random_sign,
            Some((minimum, value)) => {
                block[minimum.at..][..2].copy_from_slice(&value);
                (minimum.pair)(block);
            }
        }
    }
    Ok(())
}

fn f16(value: f32) -> Result<[u8; 2], BlockError> {
    let mut bytes = [0; 2];
    encode(DType::F16, &[value], &mut bytes)?;
    Ok(bytes)
}

/// Scales are powers of two, so two of them take turns in the proportion that gives the size.
fn fill_mxfp4(std: f64, random: &mut Random, bytes: &mut [u8]) {
    /// Of 0, ½, 1, 1½, 2, 3, 4 and 6.
    const MEAN_SQUARE: f64 = 8.5625;
    const BIAS: f64 = 127.0;
    random.fill(bytes);
    let mean_scale_square = std * std / MEAN_SQUARE;
    let exponent = libm::floor(libm::log2(mean_scale_square) / 2.0);
    // Between 1 and 4: 1 + 3 × the share of the larger scale.
    let ratio = mean_scale_square / libm::exp2(2.0 * exponent);
    let larger = ((ratio - 1.0) / 3.0) as f32;
    let byte = (exponent + BIAS) as u8;
    for block in bytes.chunks_exact_mut(DType::MXFP4.block_bytes()) {
        block[0] = byte.saturating_add(u8::from(random.unit() < larger));
    }
}

/// Fills `bytes` with uniform numbers of this mean and standard deviation, in a type that has an encoder.
pub(crate) fn fill_encoded(
    dtype: DType,
    (mean, std): (f32, f32),
    random: &mut Random,
    bytes: &mut [u8],
) -> Result<(), BlockError> {
    const PIECE: usize = 256;
    for piece in bytes.chunks_mut(PIECE * dtype.block_bytes()) {
        let mut values = [0.0; PIECE];
        let elements = piece.len() / dtype.block_bytes();
        let values = &mut values[..elements];
        values.fill_with(|| random.around(mean, std));
        encode(dtype, values, piece)?;
    }
    Ok(())
}
