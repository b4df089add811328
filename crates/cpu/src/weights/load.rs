//! All matrices of a plan, read and packed by all threads.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::OnceLock;

use goldcrest_format::{FormatError, TensorFiles, TensorInfo};
use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::spec::{Matrix, Storage};

use super::columns::ColumnSource;
use super::rows::RowSource;
use super::window::Window;
use super::{Panels, find, weights_error};
use crate::CpuError;
use crate::buffer::HUGE_PAGE_BYTES;
use crate::memory;
use crate::pool::{Pool, Tiles};

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
    /// Through which files are read whose pages are not to be kept.
    pub window: Option<Window>,
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
    source: PanelSource<'a>,
    tiles: Tiles<'a, u8>,
    /// No later matrix is in the same tensor.
    is_last_of_tensor: bool,
}

/// Where the panels of a matrix come from.
pub enum PanelSource<'a> {
    Rows(RowSource<'a>),
    Columns(ColumnSource<'a>),
}

impl<'a> PanelSource<'a> {
    pub fn new(files: &'a TensorFiles, info: &'a TensorInfo, matrix: &'a Matrix) -> Result<Self, CpuError> {
        Ok(match matrix.storage {
            Storage::Columns { first_input } => {
                PanelSource::Columns(ColumnSource::new(files, info, matrix, first_input)?)
            }
            Storage::Rows | Storage::Mxfp4 { .. } => PanelSource::Rows(RowSource::new(files, info, matrix)?),
        })
    }

    /// The bytes of the tensor in which some panels lie, not all of which are theirs.
    pub fn stored(&self, panels: &Panels, indices: Range<usize>) -> Range<u64> {
        match self {
            PanelSource::Rows(rows) => rows.stored(panels.k, outputs_of(panels, indices)),
            PanelSource::Columns(columns) => columns.stored(panels.k),
        }
    }

    /// Reads some panels and packs them into `target`, one after the other.
    pub fn pack(
        &self,
        panels: &Panels,
        indices: Range<usize>,
        target: &mut [u8],
        buffers: &mut Buffers,
    ) -> Result<(), FormatError> {
        match self {
            PanelSource::Rows(rows) => {
                let mut targets = target.chunks_exact_mut(panels.panel_bytes);
                indices
                    .zip(&mut targets)
                    .try_for_each(|(index, target)| rows.pack(panels, index, target, buffers))
            }
            PanelSource::Columns(columns) => columns.pack(panels, indices, target, buffers),
        }
    }
}

/// Reads and packs matrices into the panels in `target`, which follow each other there. The threads take one stretch of panels after the
/// other and go on with the next matrix at once.
pub fn load_matrices(
    files: &TensorFiles,
    matrices: &[&Matrix],
    panels: &[Panels],
    target: &mut [u8],
    pool: &Pool,
) -> Result<(), CpuError> {
    let forgets_pages = memory::is_scarce_for(target.len());
    let jobs = jobs(files, matrices, panels, target)?;
    let failed = OnceLock::new();
    pool.run(&|_| {
        let mut buffers = Buffers::default();
        for job in &jobs {
            while let Some(mut tile) = job.tiles.next() {
                if failed.get().is_some() {
                    return;
                }
                let indices = tile.rows();
                let target = tile.whole_rows_mut();
                if let Err(error) = job.source.pack(&job.panels, indices, target, &mut buffers) {
                    // Another thread's may have come first.
                    let _ = failed.set(weights_error(job.info, error));
                    return;
                }
                if forgets_pages && job.is_last_of_tensor && tile.rows().end == job.panels.count() {
                    files.forget_pages(job.info);
                }
            }
        }
    })?;
    if forgets_pages {
        // Systems that keep pages in large units keep those at the edges of a range.
        let sources = files.sources().iter();
        sources.for_each(|source| source.forget_pages(0, source.length()));
    }
    failed.into_inner().map_or(Ok(()), Err)
}

fn jobs<'a>(
    files: &'a TensorFiles,
    matrices: &[&'a Matrix],
    panels: &[Panels],
    mut target: &'a mut [u8],
) -> Result<Vec<Job<'a>>, CpuError> {
    let mut jobs = Vec::with_capacity(matrices.len());
    for (&matrix, &panels) in matrices.iter().zip(panels) {
        let (own, rest) = target.split_at_mut(panels.count() * panels.panel_bytes);
        target = rest;
        let info = find(files, &matrix.tensor)?;
        let tile_panels = (TILE_BYTES / panels.panel_bytes).max(1);
        jobs.push(Job {
            panels,
            info,
            source: PanelSource::new(files, info, matrix)?,
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
