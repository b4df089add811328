//! Factors of the elements of a tensor, one for each block of rows and columns.

use goldcrest_format::{TensorFiles, TensorInfo};
use goldcrest_model::spec::Matrix;

use super::{decode, find};
use crate::CpuError;

/// A factor for each block of a tensor.
pub struct Scales {
    values: Vec<f32>,
    block: [usize; 2],
    /// Blocks side by side.
    blocks_per_row: usize,
}

impl Scales {
    /// Those of a matrix in the tensor `info`; none where it has none.
    pub fn load(files: &TensorFiles, info: &TensorInfo, matrix: &Matrix) -> Result<Option<Scales>, CpuError> {
        let Some(scales) = &matrix.scales else { return Ok(None) };
        let stored = find(files, &scales.tensor)?;
        let mut values = vec![0.0; stored.elements()];
        decode(files, stored, &mut values)?;
        Ok(Some(Scales {
            values,
            block: scales.block,
            blocks_per_row: info.row_elements().div_ceil(scales.block[1]),
        }))
    }

    /// Columns of a block.
    pub fn block_columns(&self) -> usize {
        self.block[1]
    }

    /// Multiplies elements of row `row` of the tensor, from column `first_column` on, where a block begins.
    pub fn apply(&self, row: usize, first_column: usize, elements: &mut [f32]) {
        let factors = &self.values[row / self.block[0] * self.blocks_per_row..][..self.blocks_per_row];
        let factors = factors.iter().skip(first_column / self.block[1]);
        for (part, factor) in elements.chunks_mut(self.block[1]).zip(factors) {
            part.iter_mut().for_each(|x| *x *= factor);
        }
    }
}
