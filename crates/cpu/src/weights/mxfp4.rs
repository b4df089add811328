//! MXFP4 as Hugging Face stores it: nibbles of neighbouring values in a byte, exponents in a tensor of their own.

/// Values of a block and bytes of their nibbles.
pub const BLOCK_VALUES: usize = 32;
pub const NIBBLE_BYTES: usize = BLOCK_VALUES / 2;

/// A row as blocks of GGUF: the exponent, then values 0..16 in low nibbles and 16..32 in high ones.
pub fn blocks(exponents: &[u8], nibbles: &[u8], out: &mut [u8]) {
    let stored = exponents.iter().zip(nibbles.chunks_exact(NIBBLE_BYTES));
    for (block, (exponent, nibbles)) in out.chunks_exact_mut(1 + NIBBLE_BYTES).zip(stored) {
        block[0] = *exponent;
        let (first, second) = nibbles.split_at(NIBBLE_BYTES / 2);
        for ((pair, low), high) in block[1..].chunks_exact_mut(2).zip(first).zip(second) {
            pair[0] = low & 15 | high << 4;
            pair[1] = low >> 4 | high & 0xf0;
        }
    }
}

#[cfg(test)]
mod tests {
    use goldcrest_format::{DType, blocks};

    /// The 4-bit floats (E2M1), by the definition of the format.
    const FP4: [f32; 16] = [
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    ];

    #[test]
    fn neighbouring_nibbles_become_blocks() {
        let nibbles: Vec<u8> = (0..96_u8).map(|i| i.wrapping_mul(37)).collect();
        let exponents = [127, 120, 0, 1, 130, 2];
        let mut stored = [0; 6 * 17];
        super::blocks(&exponents, &nibbles, &mut stored);
        let mut decoded = [0.0; 6 * 32];
        blocks::decode(DType::MXFP4, &stored, &mut decoded).unwrap();
        for (i, value) in decoded.into_iter().enumerate() {
            let exponent = i32::from(exponents[i / 32]) - 127;
            let code = nibbles[i / 2] >> (4 * (i % 2)) & 15;
            let expected = f64::from(FP4[usize::from(code)]) * libm::ldexp(1.0, exponent);
            assert_eq!(f64::from(value), expected, "value {i}");
        }
    }
}
