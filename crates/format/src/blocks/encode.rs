//! Encoders of the simple types, with the roundings of `gguf.quants.quantize`.

use half::f16;

pub(super) fn f32(values: &[f32; 1], block: &mut [u8; 4]) {
    *block = values[0].to_le_bytes();
}

pub(super) fn f16(values: &[f32; 1], block: &mut [u8; 2]) {
    *block = f16::from_f32(values[0]).to_le_bytes();
}

pub(super) fn bf16(values: &[f32; 1], block: &mut [u8; 2]) {
    *block = half::bf16::from_f32(values[0]).to_le_bytes();
}

/// The largest magnitude becomes −8.
pub(super) fn q4_0(values: &[f32; 32], block: &mut [u8; 18]) {
    let d = largest_magnitude(values) / -8.0;
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let inverse = inverse(d);
    pack(values, &mut block[2..], |value| level(value * inverse + 8.5, 15));
}

/// Minimum 0, maximum 15.
pub(super) fn q4_1(values: &[f32; 32], block: &mut [u8; 20]) {
    let (minimum, maximum) = range(values);
    let d = (maximum - minimum) / 15.0;
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(minimum).to_le_bytes());
    let inverse = inverse(d);
    pack(values, &mut block[4..], |value| {
        level((value - minimum) * inverse + 0.5, 15)
    });
}

/// The largest magnitude becomes −16.
pub(super) fn q5_0(values: &[f32; 32], block: &mut [u8; 22]) {
    let d = largest_magnitude(values) / -16.0;
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let inverse = inverse(d);
    let quant = |value: f32| level(value * inverse + 16.5, 31);
    block[2..6].copy_from_slice(&fifth_bits(values, quant).to_le_bytes());
    pack(values, &mut block[6..], |value| quant(value) & 0x0F);
}

/// Minimum 0, maximum 31.
pub(super) fn q5_1(values: &[f32; 32], block: &mut [u8; 24]) {
    let (minimum, maximum) = range(values);
    let d = (maximum - minimum) / 31.0;
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    block[2..4].copy_from_slice(&f16::from_f32(minimum).to_le_bytes());
    let inverse = inverse(d);
    let quant = |value: f32| level((value - minimum) * inverse + 0.5, 31);
    block[4..8].copy_from_slice(&fifth_bits(values, quant).to_le_bytes());
    pack(values, &mut block[8..], |value| quant(value) & 0x0F);
}

/// The largest magnitude becomes ±127; halves are rounded away from zero.
pub(super) fn q8_0(values: &[f32; 32], block: &mut [u8; 34]) {
    let d = largest_magnitude(values).abs() / 127.0;
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    let inverse = inverse(d);
    for (byte, value) in block[2..].iter_mut().zip(values) {
        *byte = (value * inverse).round() as i8 as u8;
    }
}

/// The first of the values with the largest magnitude, with its sign.
fn largest_magnitude(values: &[f32; 32]) -> f32 {
    values.iter().fold(
        0.0,
        |largest: f32, &value| if value.abs() > largest.abs() { value } else { largest },
    )
}

fn range(values: &[f32; 32]) -> (f32, f32) {
    values
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), &value| {
            (least.min(value), most.max(value))
        })
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Truncates towards zero and limits to 0..=most.
fn level(value: f32, most: u8) -> u8 {
    (value as u8).min(most)
}

/// First half to low nibbles, second half to high ones.
fn pack(values: &[f32; 32], bytes: &mut [u8], quant: impl Fn(f32) -> u8) {
    let (low, high) = values.split_at(16);
    for ((byte, &low), &high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = quant(low) | quant(high) << 4;
    }
}

fn fifth_bits(values: &[f32; 32], quant: impl Fn(f32) -> u8) -> u32 {
    values
        .iter()
        .enumerate()
        .fold(0, |bits, (i, &value)| bits | u32::from(quant(value) >> 4) << i)
}
