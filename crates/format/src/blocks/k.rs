//! K-quants: 256 elements, scales of sub-blocks are themselves quantised.

use super::{f16_at, nibble, u32_at};

/// 16 scales (low nibble) and minimums (high), 64 bytes of 2-bit values, d, dmin: d·s·q − dmin·m.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, quants) = block.split_at(16);
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (i, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[i] & 0x0F);
        let minimum = dmin * f32::from(scales[i] >> 4);
        for (j, value) in values.iter_mut().enumerate() {
            *value = scale * f32::from(two_bits(quants, 16 * i + j)) - minimum;
        }
    }
}

/// 32 bytes of third bits, 64 bytes of 2-bit values, 16 scales of 6 bits, d: d·(s − 32)·(q − 4).
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (third_bits, quants, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = f16_at(block, 108);
    for (i, values) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = (scales[i % 8] >> (4 * (i / 8))) & 0x0F;
        let high = (scales[8 + i % 4] >> (2 * (i / 4))) & 0x03;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        for (j, value) in values.iter_mut().enumerate() {
            let element = 16 * i + j;
            let third = (third_bits[element % 32] >> (element / 32)) & 1;
            *value = scale * (f32::from(two_bits(quants, element) | third << 2) - 4.0);
        }
    }
}

/// d, dmin, 8 scales and minimums of 6 bits, 128 bytes of nibbles: d·s·q − dmin·m.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, quants) = (&block[4..16], &block[16..]);
    for (i, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(scales, i);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (j, value) in values.iter_mut().enumerate() {
            let q = (quants[i / 2 * 32 + j] >> (4 * (i % 2))) & 0x0F;
            *value = scale * f32::from(q) - minimum;
        }
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the nibbles.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, fifth_bits, quants) = (&block[4..16], &block[16..48], &block[48..]);
    for (i, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(scales, i);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (j, value) in values.iter_mut().enumerate() {
            let low = (quants[i / 2 * 32 + j] >> (4 * (i % 2))) & 0x0F;
            let fifth = (fifth_bits[j] >> i) & 1;
            *value = scale * f32::from(low | fifth << 4) - minimum;
        }
    }
}

/// 128 bytes of low nibbles, 64 of upper 2 bits, 16 int8 scales, d: d·s·(q − 32).
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16_at(block, 208);
    for (i, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // Each half of the block: two groups of low nibbles, then the high nibbles of the same bytes.
        let (half, nibble_shift, part) = (i / 4, 4 * (i / 2 % 2), i % 2);
        for (j, value) in values.iter_mut().enumerate() {
            let scale = d * f32::from(scales[2 * i + j / 16] as i8);
            let low = (low[half * 64 + part * 32 + j] >> nibble_shift) & 0x0F;
            let high = (high[half * 32 + j] >> (2 * (i % 4))) & 0x03;
            *value = scale * (f32::from(low | high << 4) - 32.0);
        }
    }
}

/// d (f32), 256 int8, 16 sums that decoding does not need: d·q.
pub(super) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_bits(u32_at(block, 0));
    for (value, &q) in out.iter_mut().zip(&block[4..260]) {
        *value = d * f32::from(q as i8);
    }
}

/// d, upper scale bits (u16), 8 scale nibbles, 128 bytes of nibbles that select a level: d·(s − 32)·level.
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let upper = super::u16_at(block, 2);
    let (scales, quants) = (&block[4..8], &block[8..]);
    for (i, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let high = ((upper >> (2 * i)) & 0x03) as u8;
        let scale = d * (f32::from(nibble(scales, i) | high << 4) - 32.0);
        for (j, value) in values.iter_mut().enumerate() {
            let q = (quants[16 * i + j % 16] >> (4 * (j / 16))) & 0x0F;
            *value = scale * f32::from(super::simple::IQ4_LEVELS[usize::from(q)]);
        }
    }
}

/// 2-bit element of 64 bytes: each 32 bytes hold 128 elements, one bit pair of all 32 after the other.
pub(super) fn two_bits(quants: &[u8], element: usize) -> u8 {
    (quants[element / 128 * 32 + element % 32] >> (2 * (element / 32 % 4))) & 0x03
}

/// Scale and minimum `i` of 8, six bits each in 12 bytes: bytes 0–3 scales 0–3, bytes 4–7 minimums 0–3, bytes 8–11
/// the low nibbles of the others, whose upper two bits sit on top of bytes 0–7.
fn scale_and_minimum(packed: &[u8], i: usize) -> (u8, u8) {
    match i {
        0..4 => (packed[i] & 0x3F, packed[i + 4] & 0x3F),
        _ => {
            let scale = packed[i + 4] & 0x0F | (packed[i - 4] >> 2) & 0x30;
            let minimum = packed[i + 4] >> 4 | (packed[i] >> 2) & 0x30;
            (scale, minimum)
        }
    }
}
