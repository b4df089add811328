//! Rows of a matrix, 16 at a time, into panels.

use goldcrest_format::{Checkpoint, FormatError, TensorInfo, blocks};
use goldcrest_kernels::{PANEL_ROWS, PanelType};
use goldcrest_model::spec::{Matrix, RowOrder, Storage};

use super::decode::RowDecoder;
use super::mxfp4::Mxfp4Rows;
use super::{Panels, stored_panel_type};
use crate::CpuError;

/// How rows are made what their panel is packed from.
pub enum RowSource<'a> {
    /// They are, as the file has them.
    Stored,
    /// Blocks of the file are taken apart as integers.
    Integers,
    /// Blocks are made of the nibbles and exponents of two tensors.
    Mxfp4(Mxfp4Rows),
    /// They are decoded to f32.
    Decoded(RowDecoder<'a>),
}

impl<'a> RowSource<'a> {
    pub fn new(checkpoint: &'a Checkpoint, info: &'a TensorInfo, matrix: &'a Matrix) -> Result<Self, CpuError> {
        Ok(match (&matrix.storage, stored_panel_type(matrix)) {
            (Storage::Mxfp4 { scales }, _) => RowSource::Mxfp4(Mxfp4Rows::load(checkpoint, info, matrix, scales)?),
            (_, Some(panel_type)) if panel_type.takes_integers() => RowSource::Integers,
            (_, Some(_)) => RowSource::Stored,
            (_, None) => RowSource::Decoded(RowDecoder::new(checkpoint, info, matrix)?),
        })
    }
}

/// Reads 16 rows at a time in the order of the forward pass.
pub struct RowReader<'a> {
    checkpoint: &'a Checkpoint,
    info: &'a TensorInfo,
    matrix: &'a Matrix,
    source: &'a RowSource<'a>,
    /// 16 rows as the panel type wants them.
    bytes: Vec<u8>,
    /// 16 rows as the file has them, where that differs.
    stored: Vec<u8>,
    /// One row as f32, for types without panels.
    decoded: Vec<f32>,
}

impl<'a> RowReader<'a> {
    pub fn new(
        checkpoint: &'a Checkpoint,
        info: &'a TensorInfo,
        matrix: &'a Matrix,
        source: &'a RowSource<'a>,
    ) -> Self {
        RowReader {
            checkpoint,
            info,
            matrix,
            source,
            bytes: Vec::new(),
            stored: Vec::new(),
            decoded: Vec::new(),
        }
    }

    pub fn pack_panel(&mut self, panels: &Panels, index: usize, target: &mut [u8]) -> Result<(), CpuError> {
        let first = index * PANEL_ROWS;
        let rows = PANEL_ROWS.min(panels.outputs - first);
        let row_bytes = panels.panel_type.row_bytes(panels.k);
        self.bytes.resize(rows * row_bytes, 0);
        self.read(first, panels).map_err(|source| CpuError::Weights {
            tensor: self.matrix.tensor.clone(),
            source: Box::new(source),
        })?;
        let slices: Vec<&[u8]> = self.bytes.chunks_exact(row_bytes).collect();
        panels.panel_type.pack(&slices, panels.k, target);
        Ok(())
    }

    /// Fills `bytes`, whole rows from row `first` of the matrix.
    fn read(&mut self, first: usize, panels: &Panels) -> Result<(), FormatError> {
        let row_bytes = panels.panel_type.row_bytes(panels.k);
        match self.source {
            RowSource::Stored => {
                let mut bytes = std::mem::take(&mut self.bytes);
                let read = self.read_stored(first, row_bytes, &mut bytes);
                self.bytes = bytes;
                read
            }
            RowSource::Integers => self.read_integers(first, panels),
            RowSource::Mxfp4(stored) => {
                for (i, blocks) in self.bytes.chunks_exact_mut(row_bytes).enumerate() {
                    stored.blocks(self.matrix.source_row(first + i), blocks);
                }
                Ok(())
            }
            RowSource::Decoded(decoder) => {
                // The upper bytes of an f32 are its BF16.
                let size = if panels.panel_type == PanelType::BF16 { 2 } else { 4 };
                self.decoded.resize(panels.k, 0.0);
                for (i, row) in self.bytes.chunks_exact_mut(row_bytes).enumerate() {
                    decoder.decode(first + i, &mut self.decoded)?;
                    for (bytes, value) in row.chunks_exact_mut(size).zip(&self.decoded) {
                        bytes.copy_from_slice(&value.to_le_bytes()[4 - size..]);
                    }
                }
                Ok(())
            }
        }
    }

    fn read_stored(&self, first: usize, row_bytes: usize, out: &mut [u8]) -> Result<(), FormatError> {
        let offset = |row| self.matrix.source_row(row) as u64 * row_bytes as u64;
        if self.matrix.order == RowOrder::Plain && self.matrix.rows.is_contiguous() {
            return self.checkpoint.read(self.info, offset(first), out);
        }
        for (i, row) in out.chunks_exact_mut(row_bytes).enumerate() {
            self.checkpoint.read(self.info, offset(first + i), row)?;
        }
        Ok(())
    }

    /// The blocks of a row as [`PanelType`] describes integer blocks.
    fn read_integers(&mut self, first: usize, panels: &Panels) -> Result<(), FormatError> {
        let dtype = self.matrix.dtype;
        let stored_row_bytes = panels.k / dtype.block_elements() * dtype.block_bytes();
        let rows = self.bytes.len() / panels.panel_type.row_bytes(panels.k);
        let mut stored = std::mem::take(&mut self.stored);
        stored.resize(rows * stored_row_bytes, 0);
        let read = self.read_stored(first, stored_row_bytes, &mut stored);
        self.stored = stored;
        read?;
        let mut targets = self.bytes.chunks_exact_mut(panels.panel_type.block_bytes());
        let taken = blocks::integers(dtype, &self.stored, |block| {
            if let Some(target) = targets.next() {
                target[..4].copy_from_slice(&block.scale.to_le_bytes());
                for (byte, integer) in target[4..].iter_mut().zip(block.scales.iter().chain(&block.quants)) {
                    *byte = *integer as u8;
                }
            }
        });
        taken.map_err(|error| FormatError::Decode {
            name: self.info.name.clone(),
            offset: self.info.offset,
            error,
        })
    }
}
