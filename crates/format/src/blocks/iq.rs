//! Codebook quants: 256 elements in groups of 8 (or 4) that select a row of a grid; signs are stored apart.

use super::grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::{IntegerBlock, f16_at, nibble, u16_at, u32_at};
use half::f16;

/// Magnitudes of the 2-bit grids, in eighths of the scale. The grids hold no level 3.
const IQ2_LEVELS: [i8; 4] = [8, 25, 43, 0];
/// In halves of the published ones.
const IQ3_XXS_LEVELS: [i8; 8] = [2, 6, 10, 14, 18, 22, 26, 31];
const IQ3_S_LEVELS: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// In eighths, as the shift.
const IQ1_LEVELS: [i8; 4] = [-8, 0, 8, 0];
/// Shift of all elements of an IQ1 group, up or down.
const IQ1_DELTA: i8 = 1;

/// d, then for each 32 elements four grid indices (u8) and a u32 of four 7-bit sign indices and a 4-bit scale:
/// d·(s + ½)/4·level.
pub(super) fn iq2_xxs(block: &[u8; 66]) -> IntegerBlock {
    let mut out = IntegerBlock::new(f16_at(block, 0) / 8.0);
    for (i, quants) in out.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let at = 2 + 8 * (i / 4);
        let word = u32_at(block, at + 4);
        out.scales[i / 2] = odd((word >> 28) as u8);
        let row = IQ2_XXS[usize::from(block[at + i % 4])];
        signed_row(quants, even_signs(word >> (7 * (i % 4))), |j| IQ2_LEVELS[pair(row, j)]);
    }
    out
}

/// d, 32 words of a 9-bit grid index and a 7-bit sign index, 16 scales of 4 bits.
pub(super) fn iq2_xs(block: &[u8; 74]) -> IntegerBlock {
    let mut out = IntegerBlock::new(f16_at(block, 0) / 8.0);
    for (i, quants) in out.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 2 + 2 * i);
        out.scales[i / 2] = odd(nibble(&block[66..], i / 2));
        let row = IQ2_XS[usize::from(word & 0x1FF)];
        signed_row(quants, even_signs(u32::from(word >> 9)), |j| IQ2_LEVELS[pair(row, j)]);
    }
    out
}

/// d, 32 low bytes of the grid index, 32 bytes of signs, 8 bytes with two upper index bits each, 16 scales.
pub(super) fn iq2_s(block: &[u8; 82]) -> IntegerBlock {
    let mut out = IntegerBlock::new(f16_at(block, 0) / 8.0);
    let (low, signs, high, scales) = (&block[2..34], &block[34..66], &block[66..74], &block[74..]);
    for (i, quants) in out.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let upper = (high[i / 4] >> (2 * (i % 4))) & 0x03;
        out.scales[i / 2] = odd(nibble(scales, i / 2));
        let row = IQ2_S[usize::from(low[i]) | usize::from(upper) << 8];
        signed_row(quants, signs[i], |j| IQ2_LEVELS[pair(row, j)]);
    }
    out
}

/// d, 64 grid indices for 4 elements each, then for each 32 elements a u32 as in IQ2_XXS: d·(s + ½)/2·level.
pub(super) fn iq3_xxs(block: &[u8; 98]) -> IntegerBlock {
    let mut out = IntegerBlock::new(f16_at(block, 0) / 2.0);
    for (i, quants) in out.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u32_at(block, 66 + 4 * (i / 4));
        out.scales[i / 2] = odd((word >> 28) as u8);
        let rows = [2 * i, 2 * i + 1].map(|at| IQ3_XXS[usize::from(block[2 + at])]);
        let signs = even_signs(word >> (7 * (i % 4)));
        signed_row(quants, signs, |j| IQ3_XXS_LEVELS[triple(rows[j / 4], j % 4)]);
    }
    out
}

/// d, 64 low bytes of the grid index for 4 elements each, 8 bytes of ninth bits, 32 of signs, 8 scales of 4 bits:
/// d·(2s + 1)·level.
pub(super) fn iq3_s(block: &[u8; 110]) -> IntegerBlock {
    let mut out = IntegerBlock::new(f16_at(block, 0));
    let (low, ninth, signs, scales) = (&block[2..66], &block[66..74], &block[74..106], &block[106..]);
    for (i, quants) in out.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        out.scales[i / 2] = odd(nibble(scales, i / 4));
        let rows = [2 * i, 2 * i + 1].map(|at| {
            let upper = (ninth[at / 8] >> (at % 8)) & 1;
            IQ3_S[usize::from(low[at]) | usize::from(upper) << 8]
        });
        signed_row(quants, signs[i], |j| IQ3_S_LEVELS[triple(rows[j / 4], j % 4)]);
    }
    out
}

/// d, 32 low bytes of the grid index, 8 words of four 3-bit upper parts, a 3-bit scale and the sign of the shift:
/// d·(2s + 1)·(level ± ⅛).
pub(super) fn iq1_s(block: &[u8; 50]) -> IntegerBlock {
    let mut out = IntegerBlock::new(f16_at(block, 0) / 8.0);
    for (i, quants) in out.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 34 + 2 * (i / 4));
        out.scales[i / 2] = odd((word >> 12) as u8 & 0x07);
        let upper = usize::from((word >> (3 * (i % 4))) & 0x07);
        let row = IQ1[usize::from(block[2 + i]) | upper << 8];
        shifted_row(quants, row, word & 0x8000 != 0);
    }
    out
}

/// 32 low bytes of the grid index, 32 nibbles of its upper part and the sign of the shift, 16 scales of 3 bits in 4
/// words, whose top nibbles are the f16 d.
pub(super) fn iq1_m(block: &[u8; 56]) -> IntegerBlock {
    let words = [48, 50, 52, 54].map(|at| u16_at(block, at));
    let d_bits = words[0] >> 12 | (words[1] >> 8) & 0x00F0 | (words[2] >> 4) & 0x0F00 | words[3] & 0xF000;
    let mut out = IntegerBlock::new(f16::from_bits(d_bits).to_f32() / 8.0);
    for (i, quants) in out.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let part = i / 2;
        out.scales[part] = odd((words[part / 4] >> (3 * (part % 4))) as u8 & 0x07);
        let upper = nibble(&block[32..48], i);
        let row = IQ1[usize::from(block[i]) | usize::from(upper & 0x07) << 8];
        shifted_row(quants, row, upper & 0x08 != 0);
    }
    out
}

/// What a stored scale of 3 or 4 bits stands for, all factors apart: 2s + 1.
fn odd(scale: u8) -> i8 {
    (2 * scale + 1) as i8
}

fn signed_row(quants: &mut [i8; 8], signs: u8, magnitude: impl Fn(usize) -> i8) {
    for (j, quant) in quants.iter_mut().enumerate() {
        let size = magnitude(j);
        *quant = if (signs >> j) & 1 == 0 { size } else { -size };
    }
}

fn shifted_row(quants: &mut [i8; 8], row: u16, down: bool) {
    let delta = if down { -IQ1_DELTA } else { IQ1_DELTA };
    for (j, quant) in quants.iter_mut().enumerate() {
        *quant = IQ1_LEVELS[pair(row, j)] + delta;
    }
}

/// Seven stored signs; the eighth makes the number of minus signs even.
fn even_signs(index: u32) -> u8 {
    let seven = (index & 0x7F) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Element `j` of a grid row of eight 2-bit values.
fn pair(row: u16, j: usize) -> usize {
    usize::from((row >> (2 * j)) & 0x03)
}

/// Element `j` of a grid row of four 3-bit values.
fn triple(row: u16, j: usize) -> usize {
    usize::from((row >> (3 * j)) & 0x07)
}
