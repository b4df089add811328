//! Columns of a tensor that are rows of a matrix: the file has the inputs one after the other, with all outputs of each.

use std::ops::Range;

use goldcrest_format::{FormatError, TensorFiles, TensorInfo, blocks};
use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::spec::Matrix;

use super::load::{Buffers, outputs_of, pack_rows, put_float, room};
use super::scales::Scales;
use super::{Panels, decode_error, window};
use crate::CpuError;

/// Columns in the order of the forward pass.
pub struct ColumnSource<'a> {
    files: &'a TensorFiles,
    info: &'a TensorInfo,
    matrix: &'a Matrix,
    first_input: usize,
    scales: Option<Scales>,
}

impl<'a> ColumnSource<'a> {
    pub fn new(
        files: &'a TensorFiles,
        info: &'a TensorInfo,
        matrix: &'a Matrix,
        first_input: usize,
    ) -> Result<Self, CpuError> {
        Ok(ColumnSource {
            files,
            info,
            matrix,
            first_input,
            scales: Scales::load(files, info, matrix)?,
        })
    }

    /// Reads, of every input, what lies between the first and the last output of some panels, and packs these into `target`.
    pub fn pack(
        &self,
        panels: &Panels,
        indices: Range<usize>,
        target: &mut [u8],
        buffers: &mut Buffers,
    ) -> Result<(), FormatError> {
        let Panels { panel_type, k, .. } = *panels;
        let outputs = outputs_of(panels, indices);
        let sources = outputs.clone().map(|output| self.matrix.source_row(output));
        // Whole blocks of the type, and of the factors.
        let unit = self.matrix.dtype.block_elements() * self.scales.as_ref().map_or(1, Scales::block_columns);
        let first = sources.clone().min().unwrap_or(0) / unit * unit;
        let last = sources.clone().max().map_or(0, |last| (last / unit + 1) * unit);
        let columns = first..last.min(self.info.row_elements());
        let row_bytes = panel_type.row_bytes(k);
        let element_bytes = row_bytes / k;
        let rows = room(&mut buffers.rows, outputs.len() * row_bytes);
        let decoded = room(&mut buffers.decoded, columns.len());
        let stored = room(&mut buffers.stored, stored_bytes(self.matrix, columns.len()));
        for input in 0..k {
            let tensor_row = self.first_input + input;
            let row_start = tensor_row as u64 * stored_bytes(self.matrix, self.info.row_elements()) as u64;
            let offset = row_start + stored_bytes(self.matrix, columns.start) as u64;
            window::read(buffers.window.as_mut(), self.files, self.info, offset, stored)?;
            blocks::decode(self.matrix.dtype, stored, decoded).map_err(|error| decode_error(self.info, error))?;
            if let Some(scales) = &self.scales {
                scales.apply(tensor_row, columns.start, decoded);
            }
            for (row, source) in rows.chunks_exact_mut(row_bytes).zip(sources.clone()) {
                put_float(
                    decoded[source - columns.start],
                    &mut row[input * element_bytes..][..element_bytes],
                );
            }
        }
        let targets = target.chunks_exact_mut(panels.panel_bytes);
        for (target, rows) in targets.zip(rows.chunks(PANEL_ROWS * row_bytes)) {
            pack_rows(panels, rows, target);
        }
        Ok(())
    }
}

/// The bytes of a matrix's tensor from the first to the last input, with all that lies between.
pub fn stored(info: &TensorInfo, matrix: &Matrix, first_input: usize) -> Range<u64> {
    let row_bytes = stored_bytes(matrix, info.row_elements()) as u64;
    first_input as u64 * row_bytes..(first_input + matrix.cols) as u64 * row_bytes
}

/// Bytes of whole blocks.
fn stored_bytes(matrix: &Matrix, elements: usize) -> usize {
    elements / matrix.dtype.block_elements() * matrix.dtype.block_bytes()
}
