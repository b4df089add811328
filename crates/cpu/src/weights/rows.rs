//! Rows of a tensor that are rows of a matrix, 16 at a time into a panel.

use std::ops::Range;

use goldcrest_format::{FormatError, TensorFiles, TensorInfo, blocks};
use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::spec::{Matrix, Storage};

use super::load::{Buffers, outputs_of, pack_rows, put_float, room};
use super::scales::Scales;
use super::window::{self, Window};
use super::{Panels, decode_error, find, mxfp4, stored_panel_type};
use crate::CpuError;

/// Rows in the order of the forward pass.
pub struct RowSource<'a> {
    files: &'a TensorFiles,
    info: &'a TensorInfo,
    matrix: &'a Matrix,
    making: Making<'a>,
}

/// How stored rows become what a panel is packed from.
enum Making<'a> {
    /// They are that.
    Nothing,
    /// Blocks are taken apart as integers.
    Integers,
    /// Blocks are made of nibbles and of the exponents in another tensor.
    Mxfp4 { exponents: &'a TensorInfo },
    /// They are decoded to f32.
    Decoded { scales: Option<Scales> },
}

/// Rows of one panel; the last panel may have fewer than 16.
type PanelRows<'a> = [&'a [u8]; PANEL_ROWS];

/// The bytes of its tensor from the first to the last row of some outputs of a matrix.
pub fn stored(matrix: &Matrix, outputs: Range<usize>) -> Range<u64> {
    stretch(matrix, outputs, stored_row_bytes(matrix))
}

/// The same of a tensor whose rows, of `row_bytes` bytes, stand for those.
fn stretch(matrix: &Matrix, outputs: Range<usize>, row_bytes: usize) -> Range<u64> {
    let sources = outputs.map(|output| matrix.source_row(output) as u64);
    let row_bytes = row_bytes as u64;
    let (first, end) = sources.fold((u64::MAX, 0), |(first, end), row| (first.min(row), end.max(row + 1)));
    first.min(end) * row_bytes..end * row_bytes
}

/// Bytes of a row in the matrix's tensor.
pub fn stored_row_bytes(matrix: &Matrix) -> usize {
    match matrix.storage {
        Storage::Mxfp4 { .. } => matrix.cols / mxfp4::BLOCK_VALUES * mxfp4::NIBBLE_BYTES,
        _ => matrix.cols / matrix.dtype.block_elements() * matrix.dtype.block_bytes(),
    }
}

impl<'a> RowSource<'a> {
    pub fn new(files: &'a TensorFiles, info: &'a TensorInfo, matrix: &'a Matrix) -> Result<Self, CpuError> {
        let making = match (&matrix.storage, stored_panel_type(matrix)) {
            (Storage::Mxfp4 { scales }, _) => Making::Mxfp4 {
                exponents: find(files, scales)?,
            },
            (_, Some(panel_type)) if panel_type.takes_integers() => Making::Integers,
            (_, Some(_)) => Making::Nothing,
            (_, None) => Making::Decoded {
                scales: Scales::load(files, info, matrix)?,
            },
        };
        Ok(RowSource {
            files,
            info,
            matrix,
            making,
        })
    }

    /// Reads the exponents of some outputs, where they are in a tensor of their own.
    pub fn load_exponents(&self, outputs: Range<usize>, window: &mut Window) -> Result<(), FormatError> {
        let Making::Mxfp4 { exponents } = self.making else {
            return Ok(());
        };
        let row_bytes = self.matrix.cols / mxfp4::BLOCK_VALUES;
        window.load_beside(self.files, exponents, stretch(self.matrix, outputs, row_bytes))
    }

    /// Reads the rows of panel `index` and packs them into `target`.
    pub fn pack(
        &self,
        panels: &Panels,
        index: usize,
        target: &mut [u8],
        buffers: &mut Buffers,
    ) -> Result<(), FormatError> {
        let Panels { panel_type, k, .. } = *panels;
        let outputs = outputs_of(panels, index..index + 1);
        let count = outputs.len();
        let stored = self.read(
            self.info,
            stored_row_bytes(self.matrix),
            outputs.clone(),
            (&mut buffers.stored, buffers.window.as_mut()),
        )?;
        let stored = &stored[..count];
        let row_bytes = panel_type.row_bytes(k);
        let made = match self.making {
            Making::Nothing => &mut [],
            _ => room(&mut buffers.rows, count * row_bytes),
        };
        let pairs = stored.iter().zip(made.chunks_exact_mut(row_bytes));
        match &self.making {
            Making::Nothing => {
                panel_type.pack(stored, k, target);
                return Ok(());
            }
            Making::Integers => {
                for (stored, made) in pairs {
                    self.take_apart(stored, made, panel_type.block_bytes())?;
                }
            }
            Making::Mxfp4 { exponents } => {
                let row_blocks = k / mxfp4::BLOCK_VALUES;
                let memory = (&mut buffers.exponents, buffers.window.as_mut());
                let exponents = self.read(exponents, row_blocks, outputs, memory)?;
                for ((nibbles, made), exponents) in pairs.zip(exponents) {
                    mxfp4::blocks(exponents, nibbles, made);
                }
            }
            Making::Decoded { scales } => {
                let decoded = room(&mut buffers.decoded, k);
                for ((stored, made), output) in pairs.zip(outputs) {
                    blocks::decode(self.matrix.dtype, stored, decoded)
                        .map_err(|error| decode_error(self.info, error))?;
                    if let Some(scales) = scales {
                        scales.apply(self.matrix.source_row(output), 0, decoded);
                    }
                    for (bytes, value) in made.chunks_exact_mut(row_bytes / k).zip(&*decoded) {
                        put_float(*value, bytes);
                    }
                }
            }
        }
        pack_rows(panels, made, target);
        Ok(())
    }

    /// The rows of `tensor` that hold at most 16 outputs. Those that lie near each other, as pairs of a rotation do, are read at once.
    fn read<'b>(
        &self,
        tensor: &TensorInfo,
        row_bytes: usize,
        outputs: Range<usize>,
        (buffer, mut window): (&'b mut Vec<u8>, Option<&mut Window>),
    ) -> Result<PanelRows<'b>, FormatError> {
        let sources = outputs.clone().map(|output| self.matrix.source_row(output));
        let first = sources.clone().min().unwrap_or(0);
        let stretch = sources.clone().max().map_or(0, |last| last + 1 - first);
        let is_near = stretch <= 2 * PANEL_ROWS;
        let offset = |row: usize| row as u64 * row_bytes as u64;
        let bytes = room(buffer, if is_near { stretch } else { outputs.len() } * row_bytes);
        if is_near {
            window::read(window, self.files, tensor, offset(first), bytes)?;
        } else {
            for (row, source) in bytes.chunks_exact_mut(row_bytes).zip(sources.clone()) {
                window::read(window.as_deref_mut(), self.files, tensor, offset(source), row)?;
            }
        }
        let bytes = &*bytes;
        let mut rows = PanelRows::default();
        for ((i, row), source) in rows.iter_mut().enumerate().zip(sources) {
            let place = if is_near { source - first } else { i };
            *row = &bytes[place * row_bytes..][..row_bytes];
        }
        Ok(rows)
    }

    /// The blocks of a row as [`goldcrest_kernels::PanelType`] describes integer blocks, each of `block_bytes`.
    fn take_apart(&self, stored: &[u8], made: &mut [u8], block_bytes: usize) -> Result<(), FormatError> {
        let mut targets = made.chunks_exact_mut(block_bytes);
        let taken = blocks::integers(self.matrix.dtype, stored, |block| {
            if let Some(target) = targets.next() {
                target[..4].copy_from_slice(&block.scale.to_le_bytes());
                for (byte, integer) in target[4..].iter_mut().zip(block.scales.iter().chain(&block.quants)) {
                    *byte = *integer as u8;
                }
            }
        });
        taken.map_err(|error| decode_error(self.info, error))
    }
}
