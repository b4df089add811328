//! Writes the file, in pieces that are made independently of each other: memory stays small however large the model is, and the bytes do
//! not depend on the number of threads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use goldcrest_format::blocks::encode;

use super::blocks;
use super::error::SynthError;
use super::random::Random;
use super::routing::Skew;
use super::weights::{Fill, Tensor, VECTOR_STD};

/// A piece is as many whole rows as fit, at least one. The streams of random numbers depend on it.
const PIECE_BYTES: u64 = 4 << 20;

/// The data of a file: tensors, where each begins, and what decides their bytes.
pub(crate) struct Data<'a> {
    pub(crate) tensors: &'a [Tensor],
    /// One more than tensors: the last is the length of the file.
    pub(crate) offsets: &'a [u64],
    pub(crate) skew: Option<Skew>,
    pub(crate) seed: u64,
}

/// Rows of a tensor that are made at once.
struct Piece {
    tensor: usize,
    first_row: u64,
    rows: u64,
}

/// Writes head and data, beside the file first: one that is there is whole. Returns its length.
pub(crate) fn write(path: &Path, head: &[u8], data: &Data) -> Result<u64, SynthError> {
    let fail = |error| SynthError::Write {
        path: path.to_owned(),
        error,
    };
    let length = data.offsets.last().copied().unwrap_or(head.len() as u64);
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let file = File::create(&partial).map_err(fail)?;
    file.set_len(length).map_err(fail)?;
    file.write_all_at(head, 0).map_err(fail)?;
    let pieces = data.pieces()?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), SynthError> {
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let offset = data.make(piece, &mut bytes)?;
            file.write_all_at(&bytes, offset).map_err(fail)?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let panicked = |_| fail(io::Error::other("a thread that makes weights panicked"));
            worker.join().map_err(panicked)?
        })
    })?;
    std::fs::rename(&partial, path).map_err(fail)?;
    Ok(length)
}

impl Data<'_> {
    fn pieces(&self) -> Result<Vec<Piece>, SynthError> {
        let mut pieces = Vec::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            let rows_at_once = (PIECE_BYTES / tensor.row_bytes()?).max(1);
            let total = tensor.rows();
            let mut first_row = 0;
            while first_row < total {
                let rows = rows_at_once.min(total - first_row);
                pieces.push(Piece {
                    tensor: index,
                    first_row,
                    rows,
                });
                first_row += rows;
            }
        }
        Ok(pieces)
    }

    /// Puts a piece's bytes in place of `bytes`, and returns where they belong.
    fn make(&self, piece: &Piece, bytes: &mut Vec<u8>) -> Result<u64, SynthError> {
        let tensor = &self.tensors[piece.tensor];
        let row_bytes = tensor.row_bytes()?;
        bytes.clear();
        bytes.resize((row_bytes * piece.rows) as usize, 0);
        let mut random = Random::of(self.seed, [piece.tensor as u64, piece.first_row]);
        match &tensor.fill {
            Fill::Random { std } => blocks::fill(tensor.dtype, *std, &mut random, bytes)?,
            Fill::Around { mean } => blocks::fill_encoded(tensor.dtype, (*mean, VECTOR_STD), &mut random, bytes)?,
            Fill::Values(values) => encode(tensor.dtype, values, bytes)?,
            Fill::Embedding { std } => {
                blocks::fill(tensor.dtype, *std, &mut random, bytes)?;
                if let Some(skew) = &self.skew {
                    skew.mark_embedding(bytes, row_bytes as usize);
                }
            }
            Fill::Router { layer, std } => {
                blocks::fill(tensor.dtype, *std, &mut random, bytes)?;
                if let Some(skew) = &self.skew {
                    let experts = tensor.rows() as usize;
                    skew.mark_router(*layer, experts, (piece.first_row as usize, bytes));
                }
            }
        }
        Ok(self.offsets[piece.tensor] + row_bytes * piece.first_row)
    }
}
