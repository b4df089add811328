//! Ternary quants: 256 elements of −1, 0, 1 and one scale.

use super::f16_at;
use super::k::two_bits;

/// 48 bytes of five base-3 digits, 4 bytes of four, d. A byte is the digits as a fraction of 256, so the digit is
/// the whole part of three times what is left after multiplying by a power of three.
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let d = f16_at(block, 52);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (bytes, values) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], third)] {
        for (row, power) in values.chunks_mut(bytes.len()).zip(POWERS) {
            for (value, byte) in row.iter_mut().zip(bytes) {
                let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                *value = d * (f32::from(digit) - 1.0);
            }
        }
    }
}

/// 64 bytes of 2-bit values, d: d·(q − 1).
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 64);
    for (element, value) in out.iter_mut().enumerate() {
        *value = d * (f32::from(two_bits(&block[..64], element)) - 1.0);
    }
}
