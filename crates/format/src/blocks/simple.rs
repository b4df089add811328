//! Types with one scale for 32 elements (16 for NVFP4): low nibbles are the first half, high nibbles the second.

use super::{f16_at, u32_at};

/// Sixteen int8 levels, denser around zero.
pub(super) const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// E2M1 numbers times two.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// d (f16), 16 bytes of nibbles: d·(q − 8).
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    nibbles(&block[2..], out, |q| d * (f32::from(q) - 8.0));
}

/// d, m (f16), 16 bytes of nibbles: d·q + m.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    nibbles(&block[4..], out, |q| d * f32::from(q) + m);
}

/// d (f16), fifth bits (u32), 16 bytes of nibbles: d·(q − 16).
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    five_bits(u32_at(block, 2), &block[6..], out, |q| d * (f32::from(q) - 16.0));
}

/// d, m (f16), fifth bits (u32), 16 bytes of nibbles: d·q + m.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    five_bits(u32_at(block, 4), &block[8..], out, |q| d * f32::from(q) + m);
}

/// d (f16), 32 int8: d·q.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (value, &q) in out.iter_mut().zip(&block[2..]) {
        *value = d * f32::from(q as i8);
    }
}

/// d (f16), 16 bytes of nibbles that select a level.
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    nibbles(&block[2..], out, |q| d * f32::from(IQ4_LEVELS[usize::from(q)]));
}

/// Exponent (E8M0), 16 bytes of E2M1 numbers. OCP Microscaling Formats 1.0; the scale is halved because the
/// table is doubled.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let exponent = u32::from(block[0]);
    let half_scale = match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits((exponent - 1) << 23),
    };
    nibbles(&block[1..], out, |q| {
        half_scale * f32::from(E2M1_DOUBLED[usize::from(q)])
    });
}

/// Four scales (E4M3 without sign), four times 8 bytes of E2M1 numbers for 16 elements each.
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let (scales, numbers) = block.split_at(4);
    let parts = numbers.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0);
    for (&scale, (bytes, values)) in scales.iter().zip(parts) {
        let half_scale = half_of_unsigned_e4m3(scale);
        nibbles(bytes, values, |q| half_scale * f32::from(E2M1_DOUBLED[usize::from(q)]));
    }
}

/// Half of an E4M3 number whose sign bit is not used. 0x7F stands for 0, as in the published decoder.
fn half_of_unsigned_e4m3(byte: u8) -> f32 {
    if byte == 0x7F {
        return 0.0;
    }
    let (exponent, mantissa) = (u32::from(byte >> 3) & 0x0F, u32::from(byte & 0x07));
    match exponent {
        0 => mantissa as f32 / 1024.0,
        _ => f32::from_bits((exponent + 127 - 7 - 1) << 23 | mantissa << 20),
    }
}

/// Low nibbles to the first half of `out`, high nibbles to the second.
fn nibbles(bytes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(bytes.len());
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = value(byte & 0x0F);
        *high = value(byte >> 4);
    }
}

/// As `nibbles`, with bit i of `fifth` as the top bit of element i.
fn five_bits(fifth: u32, bytes: &[u8], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (i, ((low, high), &byte)) in low.iter_mut().zip(high).zip(bytes).enumerate() {
        *low = value(byte & 0x0F | ((fifth >> i) as u8 & 1) << 4);
        *high = value(byte >> 4 | ((fifth >> (i + 16)) as u8 & 1) << 4);
    }
}
