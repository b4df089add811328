//! Handing one mutable slice to many threads, each element to exactly one of them, without `unsafe` at the caller's.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use goldcrest_kernels::ColumnsMut;

use super::MAX_THREADS;

/// The `part`-th of `parts` contiguous ranges that cover `0..total`, their lengths equal within one. Past the last part: empty.
#[must_use]
pub fn split(total: usize, parts: usize, part: usize) -> Range<usize> {
    let parts = parts.max(1);
    let (short, longer) = (total / parts, total % parts);
    let start = |part: usize| (short * part.min(parts)) + part.min(longer);
    start(part.min(parts))..start(part.saturating_add(1).min(parts))
}

/// Deals out the numbers `0..total`, each once, in rising order, to whichever thread asks next.
#[derive(Debug)]
pub struct TileCounter {
    next: AtomicUsize,
    total: usize,
}

impl TileCounter {
    /// A counter over `0..total`.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self {
            next: AtomicUsize::new(0),
            total,
        }
    }

    /// The next number, none when all are dealt.
    pub fn next(&self) -> Option<usize> {
        // Looking first keeps the count from growing without end when many ask for nothing.
        if self.next.load(Ordering::Relaxed) >= self.total {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.total).then_some(number)
    }
}

/// A row-major matrix `[rows, columns]` borrowed mutably as a pointer, so that pieces can be lent to several threads.
struct Matrix<'a, T> {
    start: *mut T,
    rows: usize,
    columns: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a matrix is only a way to hand out `&mut [T]` of disjoint pieces; moving such a reference to another thread needs T: Send.
unsafe impl<T: Send> Send for Matrix<'_, T> {}
// SAFETY: as above; sharing the matrix gives no access to an element but through a piece.
unsafe impl<T: Send> Sync for Matrix<'_, T> {}

impl<'a, T> Matrix<'a, T> {
    /// # Panics
    /// If the slice does not hold whole rows.
    fn new(slice: &'a mut [T], columns: usize) -> Self {
        let rows = slice.len().checked_div(columns).unwrap_or(0);
        assert_eq!(
            rows * columns,
            slice.len(),
            "a matrix of {columns} columns in a slice of {} elements",
            slice.len()
        );
        Self {
            start: slice.as_mut_ptr(),
            rows,
            columns,
            slice: PhantomData,
        }
    }

    /// # Safety
    /// No element may be in two pieces that live at the same time; both ranges lie inside the matrix.
    unsafe fn piece(&self, rows: Range<usize>, columns: Range<usize>) -> Part<'a, T> {
        debug_assert!(rows.end <= self.rows && columns.end <= self.columns);
        Part {
            start: self.start,
            stride: self.columns,
            rows,
            columns,
            slice: PhantomData,
        }
    }
}

/// A rectangle of a row-major matrix that one thread may write.
pub struct Part<'a, T> {
    start: *mut T,
    stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a part stands for `&mut [T]` of its rows, which is Send when T is.
unsafe impl<T: Send> Send for Part<'_, T> {}

impl<T> Part<'_, T> {
    /// The matrix's rows in this part.
    #[must_use]
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The matrix's columns in this part.
    #[must_use]
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The part of one row, `row` counted in the matrix.
    ///
    /// # Panics
    /// If the row is not in the part.
    #[must_use]
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "row {row} of a part of rows {:?}", self.rows);
        // SAFETY: row and columns lie inside the matrix and belong to this part alone, which is borrowed mutably.
        unsafe {
            slice::from_raw_parts_mut(
                self.start.add(row * self.stride + self.columns.start),
                self.columns.len(),
            )
        }
    }
}

impl<T> Part<'_, T> {
    /// All of a part that has its rows whole.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn whole_rows_mut(&mut self) -> &mut [T] {
        assert_eq!(self.columns, 0..self.stride, "columns of a part with whole rows");
        // SAFETY: rows lie inside the matrix, follow each other, and belong to this part alone, which is borrowed mutably.
        unsafe {
            slice::from_raw_parts_mut(
                self.start.add(self.rows.start * self.stride),
                self.rows.len() * self.stride,
            )
        }
    }

    /// The part of some of its rows, counted in the matrix.
    ///
    /// # Panics
    /// If they are not in the part.
    #[must_use]
    pub fn of_rows(&mut self, rows: Range<usize>) -> Part<'_, T> {
        assert!(
            self.rows.start <= rows.start && rows.end <= self.rows.end,
            "rows {rows:?} of a part of rows {:?}",
            self.rows
        );
        Part {
            rows,
            columns: self.columns.clone(),
            ..*self
        }
    }
}

impl Part<'_, f32> {
    /// The part as a view for kernels that walk over rows.
    #[must_use]
    pub fn columns_mut(&mut self) -> ColumnsMut<'_> {
        // SAFETY: rows and columns lie inside the matrix and belong to this part alone, which is borrowed mutably.
        unsafe {
            ColumnsMut::from_raw_parts(
                self.start.add(self.rows.start * self.stride + self.columns.start),
                (self.rows.len(), self.columns.len()),
                self.stride,
            )
        }
    }
}

/// A matrix cut into fixed ranges of columns, one a thread. A plain slice is a matrix of one row.
pub struct Parts<'a, T> {
    matrix: Matrix<'a, T>,
    unit: usize,
    parts: usize,
    /// One bit a part: taken.
    taken: [AtomicU64; MAX_THREADS / 64],
}

impl<'a, T> Parts<'a, T> {
    /// Cuts the row-major `[_, columns]` matrix in `slice` into `parts` ranges of whole `unit` columns (the last unit of a row may be
    /// short), equal within one unit. Part `i` has the columns of units `split(units, parts, i)`.
    ///
    /// # Panics
    /// If the slice does not hold whole rows, `unit` is 0, or `parts` is not in `1..=MAX_THREADS`.
    #[must_use]
    pub fn of_columns(slice: &'a mut [T], columns: usize, unit: usize, parts: usize) -> Self {
        assert!(
            unit > 0 && (1..=MAX_THREADS).contains(&parts),
            "{parts} parts in units of {unit} columns"
        );
        Self {
            matrix: Matrix::new(slice, columns),
            unit,
            parts,
            taken: Default::default(),
        }
    }

    /// Cuts a slice into `parts` ranges of whole `unit` elements; see [`Parts::of_columns`].
    ///
    /// # Panics
    /// As [`Parts::of_columns`].
    #[must_use]
    pub fn of_slice(slice: &'a mut [T], unit: usize, parts: usize) -> Self {
        let columns = slice.len();
        Self::of_columns(slice, columns, unit, parts)
    }

    /// Part `part`; can be taken once.
    ///
    /// # Panics
    /// If there is no such part or it was taken before.
    #[must_use]
    pub fn take(&self, part: usize) -> Part<'a, T> {
        assert!(part < self.parts, "part {part} of {}", self.parts);
        let bit = 1 << (part % 64);
        let before = self.taken[part / 64].fetch_or(bit, Ordering::Relaxed);
        assert!(before & bit == 0, "part {part} taken twice");
        let units = split(self.matrix.columns.div_ceil(self.unit), self.parts, part);
        let column = |unit: usize| unit.saturating_mul(self.unit).min(self.matrix.columns);
        // SAFETY: ranges of different parts are disjoint by `split`, and the bit lets every part out once.
        unsafe {
            self.matrix
                .piece(0..self.matrix.rows, column(units.start)..column(units.end))
        }
    }

    /// The only row of part `part`, for a matrix of one row or a plain slice.
    ///
    /// # Panics
    /// As [`Parts::take`], or if the matrix has more than one row.
    #[must_use]
    pub fn take_slice(&self, part: usize) -> &'a mut [T] {
        assert!(
            self.matrix.rows <= 1,
            "a matrix of {} rows taken as a slice",
            self.matrix.rows
        );
        let Part { start, columns, .. } = self.take(part);
        // SAFETY: one row or none (then the range is empty), so the part is this slice, and nobody else has it; the matrix is
        // borrowed for 'a.
        unsafe { slice::from_raw_parts_mut(start.add(columns.start), columns.len()) }
    }
}

/// A matrix cut into tiles that threads claim one after another.
pub struct Tiles<'a, T> {
    matrix: Matrix<'a, T>,
    tile_rows: usize,
    tile_columns: usize,
    counter: TileCounter,
}

impl<'a, T> Tiles<'a, T> {
    /// Cuts the row-major `[_, columns]` matrix in `slice` into tiles of `tile` = (rows, columns); those at the edges may be smaller.
    ///
    /// # Panics
    /// If the slice does not hold whole rows, or a side of the tile is 0.
    #[must_use]
    pub fn new(slice: &'a mut [T], columns: usize, tile: (usize, usize)) -> Self {
        let (tile_rows, tile_columns) = tile;
        assert!(
            tile_rows > 0 && tile_columns > 0,
            "tiles of {tile_rows} x {tile_columns}"
        );
        let matrix = Matrix::new(slice, columns);
        let counter = TileCounter::new(matrix.rows.div_ceil(tile_rows) * columns.div_ceil(tile_columns));
        Self {
            matrix,
            tile_rows,
            tile_columns,
            counter,
        }
    }

    /// The next tile that nobody has claimed, none when all are. Tiles of the same columns follow each other, so that a weight panel
    /// is used for all row groups while it is in the cache.
    pub fn next(&self) -> Option<Part<'a, T>> {
        let tile = self.counter.next()?;
        let row_groups = self.matrix.rows.div_ceil(self.tile_rows);
        let range = |index: usize, size: usize, total: usize| index * size..total.min((index + 1).saturating_mul(size));
        let rows = range(tile % row_groups, self.tile_rows, self.matrix.rows);
        let columns = range(tile / row_groups, self.tile_columns, self.matrix.columns);
        // SAFETY: the counter deals every tile once, and tiles of different numbers are disjoint.
        Some(unsafe { self.matrix.piece(rows, columns) })
    }
}

/// Most matrices of a [`SharedTiles`].
pub const MOST_MATRICES: usize = 4;

/// Matrices of one shape, cut alike into tiles, which threads claim one after another.
pub struct SharedTiles<'a, T> {
    matrices: [Option<Matrix<'a, T>>; MOST_MATRICES],
    /// Where ranges of rows begin, and the end of the last.
    row_cuts: &'a [usize],
    /// Of the matrices.
    width: usize,
    /// Those that are cut into tiles.
    columns: Range<usize>,
    tile_columns: usize,
    order: TileOrder,
    counter: TileCounter,
}

/// The same tile of each matrix.
pub type SharedTile<'a, T> = [Option<Part<'a, T>>; MOST_MATRICES];

/// Some rows of a tile, counted in the matrices.
///
/// # Panics
/// If they are not in the tile.
pub fn of_rows<'t, T>(tile: &'t mut SharedTile<'_, T>, rows: Range<usize>) -> SharedTile<'t, T> {
    tile.each_mut()
        .map(|part| part.as_mut().map(|part| part.of_rows(rows.clone())))
}

/// Which tiles follow each other.
#[derive(Clone, Copy, Debug)]
pub enum TileOrder {
    /// Those of the same columns and the next rows, so that what the columns are made of is used while it is in the cache.
    Rows,
    /// Those of the same rows and the next columns.
    Columns,
}

impl<'a, T> SharedTiles<'a, T> {
    /// Tiles of the rows between two of `row_cuts` and of `tile_columns` of the `columns` of matrices that are `width` wide, the last of
    /// them perhaps fewer. No matrix yet.
    ///
    /// # Panics
    /// If the cuts do not rise, there are no such columns or `tile_columns` is 0.
    #[must_use]
    pub fn new(
        row_cuts: &'a [usize],
        (width, columns): (usize, Range<usize>),
        tile_columns: usize,
        order: TileOrder,
    ) -> Self {
        assert!(row_cuts.is_sorted(), "rows cut at {row_cuts:?}");
        assert!(
            columns.start <= columns.end && columns.end <= width,
            "columns {columns:?} of {width}"
        );
        let row_ranges = row_cuts.len().saturating_sub(1);
        Self {
            matrices: Default::default(),
            row_cuts,
            width,
            counter: TileCounter::new(row_ranges * columns.len().div_ceil(tile_columns)),
            columns,
            tile_columns,
            order,
        }
    }

    /// Makes a row-major matrix number `index`.
    ///
    /// # Panics
    /// If it does not have the columns, or the rows up to the last cut, or `index` is not below [`MOST_MATRICES`].
    pub fn set(&mut self, index: usize, slice: &'a mut [T]) {
        let matrix = Matrix::new(slice, self.width);
        assert_eq!(Some(&matrix.rows), self.row_cuts.last(), "rows of a matrix");
        self.matrices[index] = Some(matrix);
    }

    /// The next tile that nobody has claimed, of each matrix; none when all are.
    pub fn next(&self) -> Option<SharedTile<'a, T>> {
        let tile = self.counter.next()?;
        let column_tiles = self.columns.len().div_ceil(self.tile_columns);
        let row_ranges = self.row_cuts.len().saturating_sub(1);
        let (row_range, column_tile) = match self.order {
            TileOrder::Rows => (tile % row_ranges, tile / row_ranges),
            TileOrder::Columns => (tile / column_tiles, tile % column_tiles),
        };
        let rows = self.row_cuts[row_range]..self.row_cuts[row_range + 1];
        let start = self.columns.start + column_tile * self.tile_columns;
        let columns = start..self.columns.end.min(start + self.tile_columns);
        let piece = |matrix: &Matrix<'a, T>| {
            // SAFETY: the counter deals every tile once, tiles of different numbers are disjoint because the cuts rise, and every matrix
            // is a slice of its own.
            unsafe { matrix.piece(rows.clone(), columns.clone()) }
        };
        Some(self.matrices.each_ref().map(|matrix| matrix.as_ref().map(piece)))
    }
}
