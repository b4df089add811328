//! Plain floating-point types. Conversions are exact, but for F64, which is rounded once.

pub(super) fn f64(bytes: &[u8; 8], out: &mut [f32; 1]) {
    out[0] = f64::from_le_bytes(*bytes) as f32;
}

pub(super) fn f32(bytes: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*bytes);
}

pub(super) fn f16(bytes: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = half::f16::from_le_bytes(*bytes).to_f32();
}

/// The upper half of an f32.
pub(super) fn bf16(bytes: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
}

/// Sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, NaN where all lower bits are set.
pub(super) fn f8_e4m3(bytes: &[u8; 1], out: &mut [f32; 1]) {
    let byte = bytes[0];
    let (exponent, mantissa) = (u32::from(byte >> 3) & 0x0F, u32::from(byte & 0x07));
    let size = match (exponent, mantissa) {
        (0x0F, 0x07) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20),
    };
    out[0] = if byte & 0x80 == 0 { size } else { -size };
}

/// The upper half of an f16.
pub(super) fn f8_e5m2(bytes: &[u8; 1], out: &mut [f32; 1]) {
    out[0] = half::f16::from_bits(u16::from(bytes[0]) << 8).to_f32();
}

/// A power of two (bias 127), for scales; NaN at 0xFF.
pub(super) fn f8_e8m0(bytes: &[u8; 1], out: &mut [f32; 1]) {
    out[0] = match bytes[0] {
        0xFF => f32::NAN,
        // 2^-127 is subnormal.
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    };
}
