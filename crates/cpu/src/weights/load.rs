//! All matrices of a plan, read and packed by all threads.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::OnceLock;

use goldcrest_format::{FormatError, TensorFiles, TensorInfo};
use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::plan::{MatrixId, Plan};
use goldcrest_model::spec::{Matrix, Storage};

use super::columns::{self, ColumnSource};
use super::rows::{self, RowSource};
use super::window::{MOST_WINDOW_BYTES, Window};
use super::{Panels, find, weights_error};
use crate::buffer::HUGE_PAGE_BYTES;
use crate::memory;
use crate::pool::{Parts, Pool, Tiles};
use crate::{CpuError, CpuOptions};

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
pub struct PanelSource<'a> {
    files: &'a TensorFiles,
    info: &'a TensorInfo,
    matrix: &'a Matrix,
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
        Ok(PanelSource {
            files,
            info,
            matrix,
            stored,
        })
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
            let stretch = stored(self.info, self.matrix, indices.clone());
            window.load(self.files, self.info, stretch)?;
            if let Stored::Rows(rows) = &self.stored {
                rows.load_exponents(outputs_of(panels, indices.clone()), window)?;
            }
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

/// The bytes of its tensor in which some panels of a matrix lie, not all of which are theirs.
pub fn stored(info: &TensorInfo, matrix: &Matrix, indices: Range<usize>) -> Range<u64> {
    match matrix.storage {
        Storage::Columns { first_input } => columns::stored(info, matrix, first_input),
        Storage::Rows | Storage::Mxfp4 { .. } => rows::stored(matrix, outputs_of(&Panels::of(matrix), indices)),
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

impl CachedPages {
    /// Whoever has some of the weights read when they are wanted counts every byte.
    pub fn of(options: &CpuOptions) -> CachedPages {
        match options.streaming.is_some() || options.spares_page_cache {
            true => CachedPages::Avoid,
            false => CachedPages::Keep,
        }
    }
}

/// Most bytes that one thread takes to load the matrices of a plan that are not streamed.
pub fn most_bytes(
    (plan, files): (&Plan, &TensorFiles),
    is_streamed: &dyn Fn(MatrixId) -> bool,
    cached: CachedPages,
) -> Result<usize, CpuError> {
    let (mut window, mut buffers) = (0, 0);
    let resident = plan
        .matrices
        .iter()
        .enumerate()
        .filter(|(id, _)| !is_streamed(MatrixId(*id)));
    for (_, matrix) in resident {
        let info = find(files, &matrix.tensor)?;
        window = window.max(first_stretch(info, matrix, &Panels::of(matrix)));
        buffers = buffers.max(most_buffer_bytes(matrix));
    }
    Ok(match cached {
        CachedPages::Keep => buffers,
        CachedPages::Avoid => buffers.saturating_add(Window::memory_bytes(window)),
    })
}

/// Most bytes of [`Buffers`], without the window, that a matrix takes.
fn most_buffer_bytes(matrix: &Matrix) -> usize {
    let panels = Panels::of(matrix);
    let rows = match matrix.storage {
        Storage::Columns { .. } => tile_panels(&panels) * PANEL_ROWS,
        Storage::Rows | Storage::Mxfp4 { .. } => PANEL_ROWS,
    };
    let made = rows * panels.panel_type.row_bytes(matrix.cols);
    // Rows of a panel that lie near each other are read with what lies between.
    let stored = 2 * PANEL_ROWS * rows::stored_row_bytes(matrix);
    made.saturating_add(stored)
        .saturating_add(matrix.cols * size_of::<f32>())
}

/// Panels that a thread takes at a time.
fn tile_panels(panels: &Panels) -> usize {
    (TILE_BYTES / panels.panel_bytes).max(1)
}

/// Bytes that a window reads of a matrix at once, if it reads so many.
fn first_stretch(info: &TensorInfo, matrix: &Matrix, panels: &Panels) -> usize {
    let stored = stored(info, matrix, 0..tile_panels(panels).min(panels.count()));
    (stored.end - stored.start).min(MOST_WINDOW_BYTES) as usize
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
    let stretches = jobs
        .iter()
        .map(|job| first_stretch(job.info, job.source.matrix, &job.panels));
    let longest = stretches.max().unwrap_or(0);
    let window = |_| match cached {
        CachedPages::Keep => Ok(None),
        CachedPages::Avoid => Window::new(longest).map(Some),
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
        jobs.push(Job {
            panels,
            info,
            source: PanelSource::new(files, info, matrix)?,
            tiles: Tiles::new(own, panels.panel_bytes, (tile_panels(&panels), panels.panel_bytes)),
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
