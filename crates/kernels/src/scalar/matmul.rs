//! The oracle of the matrix product: straight from the published blocks of a weight row, one output at a time.

use crate::float16::{bf16_to_f32, f16_to_f32};
use crate::panel::PanelType;

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

/// 32 weights: value `i` is `scale * sub_scales[i / 16] * quants[i] + minimum`.
struct WeightBlock {
    scale: f32,
    /// Integer scales of 16 values, where the type has them.
    sub_scales: [i32; 2],
    quants: [i32; BLOCK],
    /// What is added to every value, where the type has it.
    minimum: Option<f32>,
}

/// The dot product of a quantised weight row (published blocks) and 8-bit activations: exact integers within a block of
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
        let mut dot = 0;
        for i in 0..BLOCK {
            dot += weights.sub_scales[i / 16] * weights.quants[i] * i32::from(x.quants[i]);
        }
        sum = (dot as f32).mul_add(weights.scale * x.scale, sum);
        if let Some(minimum) = weights.minimum {
            let x_sum: i32 = x.quants.iter().map(|&q| i32::from(q)).sum();
            sum = minimum.mul_add(x.scale * x_sum as f32, sum);
        }
    }
    sum
}

/// The dot product of a weight row (published blocks), decoded, and f32 activations: one chain of fused multiply-adds
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
        let scaled = (block.scale * block.sub_scales[i / 16] as f32) * block.quants[i] as f32;
        block.minimum.map_or(scaled, |minimum| scaled + minimum)
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
        PanelType::Q4_K => blocks.flat_map(q4_k).collect(),
        PanelType::Q6_K => blocks.flat_map(q6_k).collect(),
    }
}

fn f16_at(bytes: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[offset], bytes[offset + 1]]))
}

/// Nibble `i` of 32 in 16 bytes: the low ones first.
fn nibble(bytes: &[u8], i: usize) -> i32 {
    i32::from(bytes[i % 16] >> (4 * (i / 16)) & 15)
}

fn q8_0(block: &[u8]) -> WeightBlock {
    let quants = std::array::from_fn(|i| i32::from(block[2 + i] as i8));
    WeightBlock {
        scale: f16_at(block, 0),
        sub_scales: [1; 2],
        quants,
        minimum: None,
    }
}

fn q4_0(block: &[u8]) -> WeightBlock {
    let quants = std::array::from_fn(|i| nibble(&block[2..], i) - 8);
    WeightBlock {
        scale: f16_at(block, 0),
        sub_scales: [1; 2],
        quants,
        minimum: None,
    }
}

fn q4_1(block: &[u8]) -> WeightBlock {
    let quants = std::array::from_fn(|i| nibble(&block[4..], i));
    WeightBlock {
        scale: f16_at(block, 0),
        sub_scales: [1; 2],
        quants,
        minimum: Some(f16_at(block, 2)),
    }
}

fn q5_0(block: &[u8]) -> WeightBlock {
    let high = |i: usize| i32::from(block[2 + i / 8] >> (i % 8) & 1);
    let quants = std::array::from_fn(|i| (nibble(&block[6..], i) | high(i) << 4) - 16);
    WeightBlock {
        scale: f16_at(block, 0),
        sub_scales: [1; 2],
        quants,
        minimum: None,
    }
}

fn q4_k(superblock: &[u8]) -> [WeightBlock; 8] {
    let (scales, quants) = (&superblock[4..16], &superblock[16..]);
    std::array::from_fn(|b| {
        let (scale, minimum) = match b {
            0..4 => (scales[b] & 63, scales[b + 4] & 63),
            _ => (
                scales[b + 4] & 15 | scales[b - 4] >> 6 << 4,
                scales[b + 4] >> 4 | scales[b] >> 6 << 4,
            ),
        };
        let quants = std::array::from_fn(|i| i32::from(quants[32 * (b / 2) + i] >> (4 * (b % 2)) & 15));
        WeightBlock {
            scale: f16_at(superblock, 0) * f32::from(scale),
            sub_scales: [1; 2],
            quants,
            minimum: Some(-(f16_at(superblock, 2) * f32::from(minimum))),
        }
    })
}

fn q6_k(superblock: &[u8]) -> [WeightBlock; 8] {
    let (low, high, scales) = (&superblock[..128], &superblock[128..192], &superblock[192..208]);
    std::array::from_fn(|b| {
        // Each half of 128 values keeps four blocks in the nibbles of 64 bytes and the bit pairs of 32.
        let (half, quarter) = (b / 4, b % 4);
        let quants = std::array::from_fn(|i| {
            let nibble = low[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
            let pair = high[32 * half + i] >> (2 * quarter) & 3;
            i32::from(nibble | pair << 4) - 32
        });
        let sub_scales = [2 * b, 2 * b + 1].map(|i| i32::from(scales[i] as i8));
        WeightBlock {
            scale: f16_at(superblock, 208),
            sub_scales,
            quants,
            minimum: None,
        }
    })
}
