//! MXFP4 as Hugging Face stores it: nibbles of neighbouring values in a byte, exponents in a tensor of their own.

use goldcrest_format::{Checkpoint, TensorInfo};
use goldcrest_model::spec::Matrix;

use super::decode::weights_error;
use super::find;
use crate::CpuError;

/// Values of a block and bytes of their nibbles.
const BLOCK_VALUES: usize = 32;
const NIBBLE_BYTES: usize = BLOCK_VALUES / 2;

/// The rows of a matrix, often one expert of many.
pub struct Mxfp4Rows {
    /// Of the tensor: the first that is held.
    first_row: usize,
    row_blocks: usize,
    nibbles: Vec<u8>,
    exponents: Vec<u8>,
}

impl Mxfp4Rows {
    pub fn load(
        checkpoint: &Checkpoint,
        info: &TensorInfo,
        matrix: &Matrix,
        scales: &str,
    ) -> Result<Mxfp4Rows, CpuError> {
        let rows = || (0..matrix.outputs()).map(|row| matrix.source_row(row));
        let first_row = rows().min().unwrap_or(0);
        let count = rows().max().map_or(0, |last| last + 1 - first_row);
        let row_blocks = matrix.cols / BLOCK_VALUES;
        let part = |info, block_bytes| {
            bytes(
                checkpoint,
                info,
                (first_row * row_blocks * block_bytes, count * row_blocks * block_bytes),
            )
        };
        Ok(Mxfp4Rows {
            first_row,
            row_blocks,
            nibbles: part(info, NIBBLE_BYTES)?,
            exponents: part(find(checkpoint, scales)?, 1)?,
        })
    }

    /// Row `source` of the tensor as blocks of GGUF: the exponent, then values 0..16 in low nibbles and 16..32 in high ones.
    pub fn blocks(&self, source: usize, out: &mut [u8]) {
        let start = (source - self.first_row) * self.row_blocks;
        let nibbles = self.nibbles[start * NIBBLE_BYTES..].chunks_exact(NIBBLE_BYTES);
        let stored = self.exponents[start..].iter().zip(nibbles);
        for (block, (exponent, nibbles)) in out.chunks_exact_mut(1 + NIBBLE_BYTES).zip(stored) {
            block[0] = *exponent;
            let (first, second) = nibbles.split_at(NIBBLE_BYTES / 2);
            for ((pair, low), high) in block[1..].chunks_exact_mut(2).zip(first).zip(second) {
                pair[0] = low & 15 | high << 4;
                pair[1] = low >> 4 | high & 0xf0;
            }
        }
    }
}

fn bytes(checkpoint: &Checkpoint, info: &TensorInfo, (offset, count): (usize, usize)) -> Result<Vec<u8>, CpuError> {
    let mut bytes = vec![0; count];
    checkpoint
        .read(info, offset as u64, &mut bytes)
        .map_err(|source| weights_error(info, source))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use goldcrest_format::{DType, blocks};

    use super::*;

    /// The 4-bit floats (E2M1), by the definition of the format.
    const FP4: [f32; 16] = [
        0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
    ];

    #[test]
    fn neighbouring_nibbles_become_blocks() {
        let rows = Mxfp4Rows {
            first_row: 5,
            row_blocks: 2,
            nibbles: (0..96_u8).map(|i| i.wrapping_mul(37)).collect(),
            exponents: vec![127, 120, 0, 1, 130, 2],
        };
        for row in 0..3 {
            let mut stored = [0; 34];
            rows.blocks(5 + row, &mut stored);
            let mut decoded = [0.0; 64];
            blocks::decode(DType::MXFP4, &stored, &mut decoded).unwrap();
            for (i, value) in decoded.into_iter().enumerate() {
                let byte = rows.nibbles[row * 32 + i / 2];
                let exponent = i32::from(rows.exponents[row * 2 + i / 32]) - 127;
                let expected = f64::from(FP4[usize::from(byte >> (4 * (i % 2)) & 15)]) * libm::ldexp(1.0, exponent);
                assert_eq!(f64::from(value), expected, "row {row}, value {i}");
            }
        }
    }
}
