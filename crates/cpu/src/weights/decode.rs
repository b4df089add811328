//! Rows of matrices that are not read as they lie in the file.

use goldcrest_format::{Checkpoint, FormatError, TensorInfo};
use goldcrest_model::spec::{BlockScales, Matrix, Storage};

use super::{decode, find};
use crate::CpuError;

/// Decodes one row of a matrix at a time to f32.
pub struct RowDecoder<'a> {
    checkpoint: &'a Checkpoint,
    info: &'a TensorInfo,
    matrix: &'a Matrix,
    scales: Option<Scales>,
    stored: Stored,
}

/// A factor for each block of a tensor.
struct Scales {
    values: Vec<f32>,
    block: [usize; 2],
    /// Blocks side by side.
    columns: usize,
}

impl Scales {
    fn load(checkpoint: &Checkpoint, info: &TensorInfo, scales: &BlockScales) -> Result<Scales, CpuError> {
        let stored = find(checkpoint, &scales.tensor)?;
        let mut values = vec![0.0; stored.elements()];
        decode(checkpoint, stored, &mut values)?;
        Ok(Scales {
            values,
            block: scales.block,
            columns: info.row_elements().div_ceil(scales.block[1]),
        })
    }

    /// Multiplies row `row` of the tensor.
    fn apply(&self, row: usize, elements: &mut [f32]) {
        let factors = &self.values[row / self.block[0] * self.columns..][..self.columns];
        for (part, factor) in elements.chunks_mut(self.block[1]).zip(factors) {
            part.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// What decoding needs at hand.
enum Stored {
    Rows,
    /// The matrix as the file has it, `[cols, stored outputs]`: a row of ours is a column.
    Columns {
        values: Vec<f32>,
        outputs: usize,
    },
}

impl<'a> RowDecoder<'a> {
    pub fn new(checkpoint: &'a Checkpoint, info: &'a TensorInfo, matrix: &'a Matrix) -> Result<Self, CpuError> {
        let scales = matrix.scales.as_ref();
        let scales = scales
            .map(|scales| Scales::load(checkpoint, info, scales))
            .transpose()?;
        let stored = match &matrix.storage {
            // Rows of MXFP4 are not decoded, but packed as they are.
            Storage::Rows | Storage::Mxfp4 { .. } => Stored::Rows,
            Storage::Columns { first_input } => {
                let outputs = info.row_elements();
                let mut values = vec![0.0; matrix.cols * outputs];
                checkpoint
                    .decode_rows(info, *first_input, &mut values)
                    .map_err(|source| weights_error(info, source))?;
                if let Some(scales) = &scales {
                    for (i, row) in values.chunks_exact_mut(outputs).enumerate() {
                        scales.apply(first_input + i, row);
                    }
                }
                Stored::Columns { values, outputs }
            }
        };
        Ok(RowDecoder {
            checkpoint,
            info,
            matrix,
            scales,
            stored,
        })
    }

    /// Output `row` of the matrix.
    pub fn decode(&self, row: usize, out: &mut [f32]) -> Result<(), FormatError> {
        let source = self.matrix.source_row(row);
        match &self.stored {
            Stored::Rows => {
                self.checkpoint.decode_rows(self.info, source, out)?;
                if let Some(scales) = &self.scales {
                    scales.apply(source, out);
                }
            }
            Stored::Columns { values, outputs } => {
                for (x, row) in out.iter_mut().zip(values.chunks_exact(*outputs)) {
                    *x = row[source];
                }
            }
        }
        Ok(())
    }
}

pub(super) fn weights_error(info: &TensorInfo, source: FormatError) -> CpuError {
    CpuError::Weights {
        tensor: info.name.clone(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use goldcrest_format::DType;
    use goldcrest_model::spec::{RowOrder, RowSelection};

    use super::*;

    /// A tensor of 6 rows and 5 columns of FP8, row r holding (−1)^r · 2^c, with factors 1, 3, 5 … for its blocks of 2 × 2.
    fn block_scaled(name: &str) -> Checkpoint {
        let folder = std::env::temp_dir().join(format!("goldcrest-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), "{}").unwrap();
        let header = br#"{"w":{"dtype":"F8_E4M3","shape":[6,5],"data_offsets":[0,30]},"#.to_vec();
        let header = [
            &header[..],
            br#""s":{"dtype":"F32","shape":[3,3],"data_offsets":[30,66]}}"#,
        ]
        .concat();
        let powers = |r: u8| (0..5).map(move |c| r % 2 * 0x80 + 0x38 + 8 * c);
        let elements: Vec<u8> = (0..6).flat_map(powers).collect();
        let factors: Vec<u8> = (0..9).flat_map(|i| (1.0 + 2.0 * i as f32).to_le_bytes()).collect();
        let length = (header.len() as u64).to_le_bytes();
        let file = [&length[..], &header, &elements, &factors].concat();
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        checkpoint
    }

    /// By the definition.
    fn element(row: usize, column: usize) -> f32 {
        let sign = if row.is_multiple_of(2) { 1.0 } else { -1.0 };
        sign * (1 << column) as f32 * (1 + 2 * (row / 2 * 3 + column / 2)) as f32
    }

    #[test]
    fn rows_and_columns_meet_the_factors_of_their_blocks() {
        let checkpoint = block_scaled("block-scaled");
        let info = find(&checkpoint, "w").unwrap();
        let rows = Matrix {
            tensor: "w".into(),
            dtype: DType::F8_E4M3,
            rows: RowSelection::stretch(1, 5),
            cols: 5,
            order: RowOrder::Plain,
            storage: Storage::Rows,
            scales: Some(BlockScales {
                tensor: "s".into(),
                block: [2, 2],
            }),
        };
        // Inputs from the middle of a block on, outputs into the last block, which is cut.
        let columns = Matrix {
            rows: RowSelection::stretch(1, 4),
            cols: 3,
            storage: Storage::Columns { first_input: 3 },
            ..rows.clone()
        };
        let decoded = |matrix: &Matrix, row| {
            let mut out = vec![0.0; matrix.cols];
            let decoder = RowDecoder::new(&checkpoint, info, matrix).unwrap();
            decoder.decode(row, &mut out).unwrap();
            out
        };
        for row in 0..5 {
            let expected: Vec<f32> = (0..5).map(|column| element(row + 1, column)).collect();
            assert_eq!(decoded(&rows, row), expected, "row {row}");
        }
        for output in 0..4 {
            let expected: Vec<f32> = (0..3).map(|input| element(input + 3, output + 1)).collect();
            assert_eq!(decoded(&columns, output), expected, "column {output}");
        }
    }
}
