//! The tensors of a model's files, by name.

use std::collections::HashMap;
use std::sync::Arc;

use crate::blocks::{self, BlockError};
use crate::{DType, FormatError, Source};

/// Bytes of stored data that are decoded at a time.
const DECODE_BYTES: usize = 256 << 10;

/// One tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Storage type.
    pub dtype: DType,
    /// Sizes, outermost first; the last dimension is contiguous. A GGUF file's own order is the reverse.
    pub shape: Vec<usize>,
    /// Which file of the checkpoint holds it.
    pub source: usize,
    /// Offset of its data in that file, bytes.
    pub offset: u64,
    /// Size of its data, bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements; the product was checked at open.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of one row (the last dimension; 1 for a scalar).
    pub fn row_elements(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// The tensors of a checkpoint and the files that hold them. Clones share everything, between threads too.
#[derive(Debug, Clone)]
pub struct TensorFiles {
    sources: Arc<[Source]>,
    tensors: Arc<[TensorInfo]>,
    index: Arc<HashMap<String, usize>>,
}

impl TensorFiles {
    /// `TensorInfo::source` is an index into `sources`.
    pub(crate) fn new(sources: Vec<Source>, tensors: Vec<TensorInfo>) -> TensorFiles {
        TensorFiles {
            index: Arc::new(index(&tensors)),
            sources: sources.into(),
            tensors: tensors.into(),
        }
    }

    /// The same tensors, read from what `map` makes of each file.
    pub(crate) fn map_sources(&self, map: impl FnMut(&Source) -> Source) -> TensorFiles {
        TensorFiles {
            sources: self.sources.iter().map(map).collect(),
            tensors: Arc::clone(&self.tensors),
            index: Arc::clone(&self.index),
        }
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(*self.index.get(name)?)
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The files that hold the weights; `TensorInfo::source` indexes them.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        // Tensors of one file do not overlap, so the sum is at most the sum of file lengths.
        self.tensors
            .iter()
            .fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))
    }

    /// Reads stored bytes of a tensor, from `offset_in_tensor` on, until `out` is full.
    pub fn read(&self, tensor: &TensorInfo, offset_in_tensor: u64, out: &mut [u8]) -> Result<(), FormatError> {
        let (source, start) = self.place(tensor, offset_in_tensor, out.len())?;
        Ok(source.read_exact_at(start, out)?)
    }

    /// As [`TensorFiles::read`], by [`Source::read_uncached`].
    ///
    /// # Panics
    /// As [`Source::read_uncached`].
    pub fn read_uncached<'a>(
        &self,
        tensor: &TensorInfo,
        offset_in_tensor: u64,
        len: usize,
        room: &'a mut [u8],
    ) -> Result<&'a [u8], FormatError> {
        let (source, start) = self.place(tensor, offset_in_tensor, len)?;
        Ok(source.read_uncached(start, len, room)?)
    }

    /// Where bytes of a tensor lie.
    fn place(&self, tensor: &TensorInfo, offset_in_tensor: u64, len: usize) -> Result<(&Source, u64), FormatError> {
        let wanted = len as u64;
        let inside = offset_in_tensor
            .checked_add(wanted)
            .is_some_and(|end| end <= tensor.bytes);
        let start = tensor.offset.checked_add(offset_in_tensor);
        match (self.sources.get(tensor.source), start) {
            (Some(source), Some(start)) if inside => Ok((source, start)),
            _ => Err(FormatError::Range {
                name: tensor.name.clone(),
                offset: tensor.offset,
                bytes: tensor.bytes,
                from: offset_in_tensor,
                wanted,
            }),
        }
    }

    /// Tells the system that the file's pages with a tensor's data need not be kept: see [`Source::forget_pages`].
    pub fn forget_pages(&self, tensor: &TensorInfo) {
        if let Some(source) = self.sources.get(tensor.source) {
            source.forget_pages(tensor.offset, tensor.bytes);
        }
    }

    /// Decodes a whole tensor; `out` must have as many elements.
    pub fn decode(&self, tensor: &TensorInfo, out: &mut [f32]) -> Result<(), FormatError> {
        let wanted = tensor.elements();
        if out.len() != wanted {
            return Err(FormatError::OutputLength {
                name: tensor.name.clone(),
                found: out.len(),
                wanted,
            });
        }
        self.decode_from(tensor, 0, out)
    }

    /// Decodes rows of the last dimension from row `first_row` on; `out` must have the size of whole rows.
    pub fn decode_rows(&self, tensor: &TensorInfo, first_row: usize, out: &mut [f32]) -> Result<(), FormatError> {
        let wanted = tensor.row_elements();
        if wanted == 0 || !out.len().is_multiple_of(wanted) {
            return Err(FormatError::OutputLength {
                name: tensor.name.clone(),
                found: out.len(),
                wanted,
            });
        }
        let row_bytes = tensor
            .dtype
            .bytes(wanted as u64)
            .map_err(|error| decode_error(tensor, error.into()))?;
        // A start past the end of the address space is outside every tensor, as `read` then finds.
        self.decode_from(tensor, (first_row as u64).saturating_mul(row_bytes), out)
    }

    fn decode_from(&self, tensor: &TensorInfo, mut start: u64, out: &mut [f32]) -> Result<(), FormatError> {
        let block_bytes = tensor.dtype.block_bytes();
        let piece_blocks = DECODE_BYTES / block_bytes;
        let piece_elements = piece_blocks * tensor.dtype.block_elements();
        let mut stored = Vec::new();
        for piece in out.chunks_mut(piece_elements) {
            let bytes = tensor
                .dtype
                .bytes(piece.len() as u64)
                .map_err(|error| decode_error(tensor, error.into()))?;
            stored.resize(bytes as usize, 0);
            self.read(tensor, start, &mut stored)?;
            blocks::decode(tensor.dtype, &stored, piece).map_err(|error| decode_error(tensor, error))?;
            start = start.saturating_add(bytes);
        }
        Ok(())
    }
}

fn decode_error(tensor: &TensorInfo, error: BlockError) -> FormatError {
    FormatError::Decode {
        name: tensor.name.clone(),
        offset: tensor.offset,
        error,
    }
}

fn index(tensors: &[TensorInfo]) -> HashMap<String, usize> {
    tensors
        .iter()
        .enumerate()
        .map(|(at, tensor)| (tensor.name.clone(), at))
        .collect()
}
