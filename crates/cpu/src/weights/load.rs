//! All matrices of a plan, read and packed by all threads.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::OnceLock;

use goldcrest_format::{FormatError, TensorFiles, TensorInfo};
use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::spec::{Matrix, Storage};

use super::columns::ColumnSource;
use super::rows::RowSource;
use super::window::{MOST_WINDOW_BYTES, Window};
use super::{Panels, find, weights_error};
use crate::CpuError;
use crate::buffer::HUGE_PAGE_BYTES;
use crate::memory;
use crate::pool::{Parts, Pool, Tiles};

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
    tile_panels: usize,
    /// No later matrix is in the same tensor.
    is_last_of_tensor: bool,
}

/// Where the panels of a matrix come from.
pub struct PanelSource<'a> {
    files: &'a TensorFiles,
    info: &'a TensorInfo,
    stored: Stored<'a>,
}

enum Stored<'a> {
    Rows(RowSource<'a>),
    Columns(ColumnSource<'a>),
}

impl<'a> PanelSource<'a> {
    pub fn new(files: &'a TensorFiles, info: &'a TensorInfo, matrix: &'a Matrix) -> Result<Self, CpuError> {
        let stored = match matrix.storage {
            Storage::Columns { first_input } => Stored::Columns(ColumnSource::new(files, info, matrix, first_input)?),
            Storage::Rows | Storage::Mxfp4 { .. } => Stored::Rows(RowSource::new(files, info, matrix)?),
        };
        Ok(PanelSource { files, info, stored })
    }

    /// The bytes of the tensor in which some panels lie, not all of which are theirs.
    pub fn stored(&self, panels: &Panels, indices: Range<usize>) -> Range<u64> {
        match &self.stored {
            Stored::Rows(rows) => rows.stored(panels.k, outputs_of(panels, indices)),
            Stored::Columns(columns) => columns.stored(panels.k),
        }
    }

    /// Reads some panels and packs them into `target`, one after the other; through the window of `buffers` if they have one.
    pub fn pack(
        &self,
        panels: &Panels,
        indices: Range<usize>,
        target: &mut [u8],
        buffers: &mut Buffers,
    ) -> Result<(), FormatError> {
        if let Some(window) = &mut buffers.window {
            window.load(self.files, self.info, self.stored(panels, indices.clone()))?;
        }
        match &self.stored {
            Stored::Rows(rows) => {
                let mut targets = target.chunks_exact_mut(panels.panel_bytes);
                indices
                    .zip(&mut targets)
                    .try_for_each(|(index, target)| rows.pack(panels, index, target, buffers))
            }
            Stored::Columns(columns) => columns.pack(panels, indices, target, buffers),
        }
    }
}

/// What reading weights leaves in the system's cache of the files' pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedPages {
    /// The pages, which makes the next start fast, unless memory is short.
    Keep,
    /// Next to nothing: memory is counted.
    Avoid,
}

/// Reads and packs matrices into the panels in `target`, which follow each other there. The threads take one stretch of panels after the
/// other and go on with the next matrix at once.
pub fn load_matrices(
    files: &TensorFiles,
    matrices: &[&Matrix],
    panels: &[Panels],
    target: &mut [u8],
    (pool, cached): (&Pool, CachedPages),
) -> Result<(), CpuError> {
    let forgets_pages = cached == CachedPages::Avoid || memory::is_scarce_for(target.len());
    let jobs = jobs(files, matrices, panels, target)?;
    let mut windows = windows(&jobs, (pool, cached))?;
    let windows = Parts::of_slice(&mut windows, 1, pool.threads());
    let failed = OnceLock::new();
    pool.run(&|thread| {
        let mut buffers = Buffers {
            window: windows.take_slice(thread).iter_mut().find_map(Option::take),
            ..Buffers::default()
        };
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

/// A window for each thread, if the files' pages are not to be kept.
fn windows(jobs: &[Job], (pool, cached): (&Pool, CachedPages)) -> Result<Vec<Option<Window>>, CpuError> {
    let stretch = |job: &Job| {
        let stored = job
            .source
            .stored(&job.panels, 0..job.tile_panels.min(job.panels.count()));
        stored.end - stored.start
    };
    let longest = jobs.iter().map(stretch).max().unwrap_or(0).min(MOST_WINDOW_BYTES);
    let window = |_| match cached {
        CachedPages::Keep => Ok(None),
        CachedPages::Avoid => Window::new(longest as usize).map(Some),
    };
    Ok((0..pool.threads()).map(window).collect::<Result<_, _>>()?)
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
            tile_panels,
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
