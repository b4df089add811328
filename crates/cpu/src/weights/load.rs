//! All matrices of a plan, read and packed by all threads.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::OnceLock;

use goldcrest_format::{Checkpoint, FormatError, TensorInfo};
use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::spec::{Matrix, Storage};

use super::columns::ColumnSource;
use super::rows::RowSource;
use super::{Panels, find, weights_error};
use crate::CpuError;
use crate::buffer::HUGE_PAGE_BYTES;
use crate::memory;
use crate::pool::{Part, Pool, Tiles};

/// A thread takes about so many bytes of panels at a time: a page of theirs is then brought in, which clears it, by one thread and not
/// by all of them at once.
const TILE_BYTES: usize = HUGE_PAGE_BYTES;

/// A thread's memory while it loads. It is kept from panel to panel, and becomes as large as the rows of the largest panel.
#[derive(Default)]
pub struct Buffers {
    /// Rows as the file has them.
    pub stored: Vec<u8>,
    /// Exponents that the file has in a tensor of their own.
    pub exponents: Vec<u8>,
    /// Stored elements as numbers.
    pub decoded: Vec<f32>,
    /// Rows as the panel type wants them, where that differs.
    pub rows: Vec<u8>,
}

/// `len` elements of a buffer, whatever they hold.
pub fn room<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        // Given back first, so that both are never held.
        *buffer = Vec::new();
        *buffer = vec![T::default(); len];
    }
    &mut buffer[..len]
}

/// A matrix to be loaded.
struct Job<'a> {
    panels: Panels,
    info: &'a TensorInfo,
    source: Source<'a>,
    tiles: Tiles<'a, u8>,
    /// No later matrix is in the same tensor.
    is_last_of_tensor: bool,
}

enum Source<'a> {
    Rows(RowSource<'a>),
    Columns(ColumnSource<'a>),
}

/// Reads and packs matrices into the panels in `target`, which follow each other there. The threads take one stretch of panels after the
/// other and go on with the next matrix at once.
pub fn load_matrices(
    checkpoint: &Checkpoint,
    matrices: &[Matrix],
    panels: &[Panels],
    target: &mut [u8],
    pool: &Pool,
) -> Result<(), CpuError> {
    let forgets_pages = memory::is_scarce_for(target.len());
    let jobs = jobs(checkpoint, matrices, panels, target)?;
    let failed = OnceLock::new();
    pool.run(&|_| {
        let mut buffers = Buffers::default();
        for job in &jobs {
            while let Some(mut tile) = job.tiles.next() {
                if failed.get().is_some() {
                    return;
                }
                if let Err(error) = job.pack(&mut tile, &mut buffers) {
                    // Another thread's may have come first.
                    let _ = failed.set(weights_error(job.info, error));
                    return;
                }
                if forgets_pages && job.is_last_of_tensor && tile.rows().end == job.panels.count() {
                    checkpoint.forget_pages(job.info);
                }
            }
        }
    })?;
    if forgets_pages {
        // Systems that keep pages in large units keep those at the edges of a range.
        let sources = checkpoint.sources().iter();
        sources.for_each(|source| source.forget_pages(0, source.length()));
    }
    failed.into_inner().map_or(Ok(()), Err)
}

fn jobs<'a>(
    checkpoint: &'a Checkpoint,
    matrices: &'a [Matrix],
    panels: &[Panels],
    mut target: &'a mut [u8],
) -> Result<Vec<Job<'a>>, CpuError> {
    let mut jobs = Vec::with_capacity(matrices.len());
    for (matrix, &panels) in matrices.iter().zip(panels) {
        let (own, rest) = target.split_at_mut(panels.count() * panels.panel_bytes);
        target = rest;
        let info = find(checkpoint, &matrix.tensor)?;
        let source = match matrix.storage {
            Storage::Columns { first_input } => {
                Source::Columns(ColumnSource::new(checkpoint, info, matrix, first_input)?)
            }
            Storage::Rows | Storage::Mxfp4 { .. } => Source::Rows(RowSource::new(checkpoint, info, matrix)?),
        };
        let tile_panels = (TILE_BYTES / panels.panel_bytes).max(1);
        jobs.push(Job {
            panels,
            info,
            source,
            tiles: Tiles::new(own, panels.panel_bytes, (tile_panels, panels.panel_bytes)),
            is_last_of_tensor: false,
        });
    }
    let mut later = HashSet::new();
    for job in jobs.iter_mut().rev() {
        job.is_last_of_tensor = later.insert(&job.info.name);
    }
    Ok(jobs)
}

impl Job<'_> {
    fn pack(&self, tile: &mut Part<'_, u8>, buffers: &mut Buffers) -> Result<(), FormatError> {
        match &self.source {
            Source::Rows(rows) => {
                for index in tile.rows() {
                    rows.pack(&self.panels, index, tile.row_mut(index), buffers)?;
                }
                Ok(())
            }
            Source::Columns(columns) => columns.pack(&self.panels, tile, buffers),
        }
    }
}

/// The outputs that lie in some panels.
pub fn outputs_of(panels: &Panels, indices: Range<usize>) -> Range<usize> {
    indices.start * PANEL_ROWS..panels.outputs.min(indices.end * PANEL_ROWS)
}

/// Packs at most 16 rows, which follow each other, into a panel.
pub fn pack_rows(panels: &Panels, rows: &[u8], target: &mut [u8]) {
    let Panels { panel_type, k, .. } = *panels;
    let row_bytes = panel_type.row_bytes(k);
    let mut of_panel: [&[u8]; PANEL_ROWS] = Default::default();
    let places = of_panel.iter_mut().zip(rows.chunks_exact(row_bytes));
    places.for_each(|(place, row)| *place = row);
    panel_type.pack(&of_panel[..rows.len() / row_bytes], k, target);
}

/// Writes a number as a row of floats of `bytes.len()` bytes each has it: the upper bytes of an f32 are its BF16.
pub fn put_float(value: f32, bytes: &mut [u8]) {
    bytes.copy_from_slice(&value.to_le_bytes()[4 - bytes.len()..]);
}
