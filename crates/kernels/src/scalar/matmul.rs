//! The oracle of the matrix product: straight from the published blocks of a weight row, one output at a time.

use crate::float16::{bf16_to_f32, f16_to_f32};
use crate::panel::PanelType;
use crate::panel::lanes::levels::{Fp4, Iq4, Levels};

/// Values of a block of activations.
const BLOCK: usize = 32;

/// 32 activations as integers: value `i` is near `quants[i] * scale`.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedBlock {
    /// `max |x| / 127`: 0 for a block that is all zero or too small to quantise, NaN if a value is not finite.
    pub scale: f32,
    /// In -127..=127.
    pub quants: [i8; BLOCK],
}

/// Quantises 32 activations. A block whose inverse scale overflows (`max |x|` below 3.8e-37) counts as zero.
pub fn quantize_block(x: &[f32; BLOCK]) -> QuantizedBlock {
    if x.iter().any(|x| !x.is_finite()) {
        return QuantizedBlock {
            scale: f32::NAN,
            quants: [0; BLOCK],
        };
    }
    let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    let inverse = 127.0 / largest;
    if !inverse.is_finite() {
        return QuantizedBlock {
            scale: 0.0,
            quants: [0; BLOCK],
        };
    }
    QuantizedBlock {
        scale: largest / 127.0,
        quants: x.map(|x| (x * inverse).round_ties_even() as i8),
    }
}

/// 32 weights: value `i` is `scale * sub_scales[i / 16] * quants[i] + minimum * sub_minimums[i / 16]`.
struct WeightBlock {
    scale: f32,
    /// Scales of 16 values, where the type has them: integers, but for NVFP4.
    sub_scales: [f32; 2],
    quants: [i32; BLOCK],
    /// What is added to every value, where the type has it.
    minimum: Option<f32>,
    /// Integer factors of 16 minimums, where the type has them.
    sub_minimums: [i32; 2],
}

impl WeightBlock {
    fn new(scale: f32, quants: [i32; BLOCK]) -> WeightBlock {
        WeightBlock {
            scale,
            sub_scales: [1.0; 2],
            quants,
            minimum: None,
            sub_minimums: [1; 2],
        }
    }

    fn with_minimum(scale: f32, quants: [i32; BLOCK], minimum: f32) -> WeightBlock {
        WeightBlock {
            minimum: Some(minimum),
            ..WeightBlock::new(scale, quants)
        }
    }

    fn with_sub_scales(scale: f32, sub_scales: [f32; 2], quants: [i32; BLOCK]) -> WeightBlock {
        WeightBlock {
            sub_scales,
            ..WeightBlock::new(scale, quants)
        }
    }
}

/// The dot product of a quantised weight row (as it is packed) and 8-bit activations: exact integers within a block of
/// 32, one chain of fused multiply-adds over the blocks from +0.
///
/// # Panics
/// If `row` does not hold `x.len()` weights of a quantised type: a mistake of the caller.
pub fn dot_q8(panel_type: PanelType, row: &[u8], x: &[f32]) -> f32 {
    let (x, rest) = x.as_chunks::<BLOCK>();
    assert!(rest.is_empty() && panel_type.is_quantized());
    let weights = weight_blocks(panel_type, row);
    assert_eq!(weights.len(), x.len());
    let mut sum = 0.0f32;
    for (weights, x) in weights.iter().zip(x) {
        let x = quantize_block(x);
        let mut dots = [0, 0];
        let mut x_sums = [0, 0];
        for (i, &q) in x.quants.iter().enumerate() {
            dots[i / 16] += weights.quants[i] * i32::from(q);
            x_sums[i / 16] += i32::from(q);
        }
        let [first, second] = dots.map(|dot| dot as f32);
        let dot = second.mul_add(weights.sub_scales[1], first * weights.sub_scales[0]);
        sum = dot.mul_add(weights.scale * x.scale, sum);
        if let Some(minimum) = weights.minimum {
            let x_sum = weights.sub_minimums[0] * x_sums[0] + weights.sub_minimums[1] * x_sums[1];
            sum = minimum.mul_add(x.scale * x_sum as f32, sum);
        }
    }
    sum
}

/// The dot product of a weight row (as it is packed), decoded, and f32 activations: one chain of fused multiply-adds
/// from +0.
///
/// # Panics
/// If `row` does not hold `x.len()` weights: a mistake of the caller.
pub fn dot_f32(panel_type: PanelType, row: &[u8], x: &[f32]) -> f32 {
    let weights = decode_row(panel_type, row);
    assert_eq!(weights.len(), x.len());
    let mut sum = 0.0f32;
    for (w, x) in weights.iter().zip(x) {
        sum = w.mul_add(*x, sum);
    }
    sum
}

/// The weights of a row as f32: the published decoding.
pub fn decode_row(panel_type: PanelType, row: &[u8]) -> Vec<f32> {
    match panel_type {
        PanelType::F32 => row
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect(),
        PanelType::F16 => row
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| f16_to_f32(u16::from_le_bytes(bytes)))
            .collect(),
        PanelType::BF16 => row
            .as_chunks()
            .0
            .iter()
            .map(|&bytes| bf16_to_f32(u16::from_le_bytes(bytes)))
            .collect(),
        _ => weight_blocks(panel_type, row).iter().flat_map(decode_block).collect(),
    }
}

fn decode_block(block: &WeightBlock) -> [f32; BLOCK] {
    std::array::from_fn(|i| {
        let scaled = (block.scale * block.sub_scales[i / 16]) * block.quants[i] as f32;
        block
            .minimum
            .map_or(scaled, |minimum| scaled + minimum * block.sub_minimums[i / 16] as f32)
    })
}

/// The blocks of 32 of a row. Empty for float types.
fn weight_blocks(panel_type: PanelType, row: &[u8]) -> Vec<WeightBlock> {
    let blocks = row.chunks_exact(panel_type.block_bytes());
    match panel_type {
        PanelType::F32 | PanelType::F16 | PanelType::BF16 => Vec::new(),
        PanelType::Q8_0 => blocks.map(q8_0).collect(),
        PanelType::Q4_0 => blocks.map(q4_0).collect(),
        PanelType::Q4_1 => blocks.map(q4_1).collect(),
        PanelType::Q5_0 => blocks.map(q5_0).collect(),
        PanelType::Q5_1 => blocks.map(q5_1).collect(),
        PanelType::Q2_K => blocks.flat_map(q2_k).collect(),
        PanelType::Q3_K => blocks.flat_map(q3_k).collect(),
        PanelType::Q4_K => blocks.flat_map(q4_k).collect(),
        PanelType::Q5_K => blocks.flat_map(q5_k).collect(),
        PanelType::Q6_K => blocks.flat_map(q6_k).collect(),
        PanelType::IQ1 | PanelType::IQ2 | PanelType::IQ3_XXS | PanelType::IQ3_S => blocks.flat_map(integers).collect(),
        PanelType::IQ4_NL => blocks.map(iq4_nl).collect(),
        PanelType::IQ4_XS => blocks.flat_map(iq4_xs).collect(),
        PanelType::TQ1_0 => blocks.flat_map(tq1_0).collect(),
        PanelType::TQ2_0 => blocks.flat_map(tq2_0).collect(),
        PanelType::MXFP4 => blocks.map(mxfp4).collect(),
        PanelType::NVFP4 => blocks.flat_map(nvfp4).collect(),
    }
}

fn f16_at(bytes: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[offset], bytes[offset + 1]]))
}

/// Nibble `i` of 32 in 16 bytes: the low ones first.
fn nibble(bytes: &[u8], i: usize) -> i32 {
    i32::from(bytes[i % 16] >> (4 * (i / 16)) & 15)
}

/// Bit `i` of `bytes`.
fn bit(bytes: &[u8], i: usize) -> i32 {
    i32::from(bytes[i / 8] >> (i % 8) & 1)
}

/// Value `i` of 256 in 64 bytes of bit pairs: 32 bytes hold 128, one bit pair of all bytes after the other.
fn bit_pair(bytes: &[u8], i: usize) -> i32 {
    i32::from(bytes[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3)
}

fn q8_0(block: &[u8]) -> WeightBlock {
    WeightBlock::new(f16_at(block, 0), std::array::from_fn(|i| i32::from(block[2 + i] as i8)))
}

fn q4_0(block: &[u8]) -> WeightBlock {
    WeightBlock::new(f16_at(block, 0), std::array::from_fn(|i| nibble(&block[2..], i) - 8))
}

fn q4_1(block: &[u8]) -> WeightBlock {
    let quants = std::array::from_fn(|i| nibble(&block[4..], i));
    WeightBlock::with_minimum(f16_at(block, 0), quants, f16_at(block, 2))
}

fn q5_0(block: &[u8]) -> WeightBlock {
    let quants = std::array::from_fn(|i| (nibble(&block[6..], i) | bit(&block[2..], i) << 4) - 16);
    WeightBlock::new(f16_at(block, 0), quants)
}

fn q5_1(block: &[u8]) -> WeightBlock {
    let quants = std::array::from_fn(|i| nibble(&block[8..], i) | bit(&block[4..], i) << 4);
    WeightBlock::with_minimum(f16_at(block, 0), quants, f16_at(block, 2))
}

fn q2_k(superblock: &[u8]) -> [WeightBlock; 8] {
    let (d, dmin) = (f16_at(superblock, 80), f16_at(superblock, 82));
    std::array::from_fn(|b| {
        let halves = [superblock[2 * b], superblock[2 * b + 1]];
        WeightBlock {
            scale: d,
            sub_scales: halves.map(|half| f32::from(half & 15)),
            quants: std::array::from_fn(|i| bit_pair(&superblock[16..80], 32 * b + i)),
            minimum: Some(-dmin),
            sub_minimums: halves.map(|half| i32::from(half >> 4)),
        }
    })
}

fn q3_k(superblock: &[u8]) -> [WeightBlock; 8] {
    let (third, pairs, scales) = (&superblock[..32], &superblock[32..96], &superblock[96..108]);
    std::array::from_fn(|b| {
        let quants = std::array::from_fn(|i| bit_pair(pairs, 32 * b + i) + 4 * i32::from(third[i] >> b & 1) - 4);
        let sub_scales = [2 * b, 2 * b + 1].map(|i| {
            let low = scales[i % 8] >> (4 * (i / 8)) & 15;
            let high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            f32::from(low) + 16.0 * f32::from(high) - 32.0
        });
        WeightBlock::with_sub_scales(f16_at(superblock, 108), sub_scales, quants)
    })
}

fn q4_k(superblock: &[u8]) -> [WeightBlock; 8] {
    let quants = &superblock[16..];
    std::array::from_fn(|b| {
        let quants = std::array::from_fn(|i| i32::from(quants[32 * (b / 2) + i] >> (4 * (b % 2)) & 15));
        six_bit_scaled(superblock, b, quants)
    })
}

fn q5_k(superblock: &[u8]) -> [WeightBlock; 8] {
    let (fifth, quants) = (&superblock[16..48], &superblock[48..]);
    std::array::from_fn(|b| {
        let nibble = |i: usize| quants[32 * (b / 2) + i] >> (4 * (b % 2)) & 15;
        let quants = std::array::from_fn(|i| i32::from(nibble(i)) + 16 * i32::from(fifth[i] >> b & 1));
        six_bit_scaled(superblock, b, quants)
    })
}

/// Block `b` of Q4_K or Q5_K.
fn six_bit_scaled(superblock: &[u8], b: usize, quants: [i32; BLOCK]) -> WeightBlock {
    let scales = &superblock[4..16];
    let (scale, minimum) = match b {
        0..4 => (scales[b] & 63, scales[b + 4] & 63),
        _ => (
            scales[b + 4] & 15 | scales[b - 4] >> 6 << 4,
            scales[b + 4] >> 4 | scales[b] >> 6 << 4,
        ),
    };
    let scale = f16_at(superblock, 0) * f32::from(scale);
    let minimum = f16_at(superblock, 2) * f32::from(minimum);
    WeightBlock::with_minimum(scale, quants, -minimum)
}

fn q6_k(superblock: &[u8]) -> [WeightBlock; 8] {
    let (low, high, scales) = (&superblock[..128], &superblock[128..192], &superblock[192..208]);
    std::array::from_fn(|b| {
        // Each half of 128 values keeps four blocks in the nibbles of 64 bytes.
        let (half, quarter) = (b / 4, b % 4);
        let quants = std::array::from_fn(|i| {
            let nibble = low[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
            (i32::from(nibble) | bit_pair(high, 32 * b + i) << 4) - 32
        });
        let sub_scales = [2 * b, 2 * b + 1].map(|i| f32::from(scales[i] as i8));
        WeightBlock::with_sub_scales(f16_at(superblock, 208), sub_scales, quants)
    })
}

/// Codebook types: an f32 scale, 16 scales of 16 values, 256 quants.
fn integers(superblock: &[u8]) -> [WeightBlock; 8] {
    let scale = f32::from_le_bytes([superblock[0], superblock[1], superblock[2], superblock[3]]);
    std::array::from_fn(|b| {
        let sub_scales = [2 * b, 2 * b + 1].map(|i| f32::from(superblock[4 + i] as i8));
        let quants = std::array::from_fn(|i| i32::from(superblock[20 + 32 * b + i] as i8));
        WeightBlock::with_sub_scales(scale, sub_scales, quants)
    })
}

fn iq4_nl(block: &[u8]) -> WeightBlock {
    WeightBlock::new(
        f16_at(block, 0),
        std::array::from_fn(|i| level::<Iq4>(nibble(&block[2..], i))),
    )
}

fn iq4_xs(superblock: &[u8]) -> [WeightBlock; 8] {
    let pairs = u16::from_le_bytes([superblock[2], superblock[3]]);
    std::array::from_fn(|b| {
        let low = superblock[4 + b / 2] >> (4 * (b % 2)) & 15;
        let scale = f32::from(low) + 16.0 * f32::from(pairs >> (2 * b) & 3) - 32.0;
        let quants = std::array::from_fn(|i| level::<Iq4>(nibble(&superblock[8 + 16 * b..], i)));
        WeightBlock::new(f16_at(superblock, 0) * scale, quants)
    })
}

/// Five base-3 digits a byte, four in the last bytes: 32, 16 and 4 bytes give a digit each in turn.
fn tq1_0(superblock: &[u8]) -> [WeightBlock; 8] {
    let digit = |i: usize| {
        let (byte, place) = match i {
            0..160 => (i % 32, i / 32),
            160..240 => (32 + i % 16, (i - 160) / 16),
            _ => (48 + i % 4, (i - 240) / 4),
        };
        let fraction = superblock[byte].wrapping_mul([1, 3, 9, 27, 81][place]);
        i32::from(fraction) * 3 / 256
    };
    std::array::from_fn(|b| WeightBlock::new(f16_at(superblock, 52), std::array::from_fn(|i| digit(32 * b + i) - 1)))
}

fn tq2_0(superblock: &[u8]) -> [WeightBlock; 8] {
    let quants = |b: usize| std::array::from_fn(|i| bit_pair(superblock, 32 * b + i) - 1);
    std::array::from_fn(|b| WeightBlock::new(f16_at(superblock, 64), quants(b)))
}

fn mxfp4(block: &[u8]) -> WeightBlock {
    // Half of 2^(e - 127), as the levels are doubled.
    let scale = libm::ldexp(1.0, i32::from(block[0]) - 128) as f32;
    WeightBlock::new(scale, std::array::from_fn(|i| level::<Fp4>(nibble(&block[1..], i))))
}

fn nvfp4(superblock: &[u8]) -> [WeightBlock; 2] {
    let (scales, quants) = superblock.split_at(4);
    let half_of_e4m3 = |byte: u8| match (byte >> 3 & 15, byte & 7) {
        (15, 7) => 0.0,
        (0, mantissa) => f32::from(mantissa) / 1024.0,
        (exponent, mantissa) => (8.0 + f32::from(mantissa)) * (1_u32 << exponent) as f32 / 2048.0,
    };
    std::array::from_fn(|b| {
        let quants = std::array::from_fn(|i| {
            let byte = quants[8 * (2 * b + i / 16) + i % 8];
            level::<Fp4>(i32::from(byte >> (4 * (i % 16 / 8)) & 15))
        });
        let sub_scales = [scales[2 * b], scales[2 * b + 1]].map(half_of_e4m3);
        WeightBlock::with_sub_scales(1.0, sub_scales, quants)
    })
}

fn level<L: Levels>(code: i32) -> i32 {
    i32::from(L::VALUES[code as usize])
}
