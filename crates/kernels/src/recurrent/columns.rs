//! Views of some columns of a row-major matrix.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

/// Some columns of a row-major f32 matrix.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    matrix: &'a [f32],
    /// Elements from one row of the matrix to the next.
    stride: usize,
    first: usize,
    columns: usize,
}

impl<'a> Columns<'a> {
    /// All `columns` of a matrix.
    ///
    /// # Panics
    /// If `matrix` is not a whole number of rows: a caller's bug.
    pub fn new(matrix: &'a [f32], columns: usize) -> Self {
        check_rows(matrix.len(), columns);
        Self {
            matrix,
            stride: columns,
            first: 0,
            columns,
        }
    }

    /// The columns `range` of these.
    ///
    /// # Panics
    /// If they are not all here: a caller's bug.
    pub fn range(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.columns,
            "columns {range:?} of {}",
            self.columns
        );
        Self {
            first: self.first + range.start,
            columns: range.len(),
            ..self
        }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.matrix.len() / self.stride.max(1)
    }

    /// How many columns are in the view.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// These columns of one row.
    ///
    /// # Panics
    /// If there is no such row: a caller's bug.
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.matrix[row * self.stride + self.first..][..self.columns]
    }

    /// Where a row of the view starts.
    ///
    /// # Safety
    /// There is such a row.
    #[inline(always)]
    pub(super) unsafe fn row_ptr(&self, row: usize) -> *const f32 {
        // SAFETY: required of the caller, and a range of columns ends in its row.
        unsafe { self.matrix.as_ptr().add(row * self.stride + self.first) }
    }
}

/// Some columns of a row-major f32 matrix, to be written. Views of different columns may be used by different threads at once.
#[derive(Debug)]
pub struct ColumnsMut<'a> {
    /// The first column of the view in the first row.
    start: *mut f32,
    rows: usize,
    columns: usize,
    stride: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view stands for `&mut [f32]` of each of its rows, and no other view has an element of them.
unsafe impl Send for ColumnsMut<'_> {}

impl<'a> ColumnsMut<'a> {
    /// All `columns` of a matrix.
    ///
    /// # Panics
    /// If `matrix` is not a whole number of rows: a caller's bug.
    pub fn new(matrix: &'a mut [f32], columns: usize) -> Self {
        let rows = check_rows(matrix.len(), columns);
        // SAFETY: the matrix is borrowed for 'a and holds these rows one after the other.
        unsafe { Self::from_raw_parts(matrix.as_mut_ptr(), (rows, columns), columns) }
    }

    /// The view of `size` = (rows, columns) whose first element is at `start` and whose rows begin `stride` elements apart.
    ///
    /// # Safety
    /// For every row `r`, `start + r · stride` is valid for reads and writes of `columns` elements during 'a, within one allocation,
    /// and nothing else reads or writes any of them meanwhile; `stride` is at least `columns`.
    pub unsafe fn from_raw_parts(start: *mut f32, size: (usize, usize), stride: usize) -> Self {
        let (rows, columns) = size;
        Self {
            start,
            rows,
            columns,
            stride,
            matrix: PhantomData,
        }
    }

    /// The columns before `column` and those from it on.
    ///
    /// # Panics
    /// If there are fewer columns: a caller's bug.
    pub fn split_at(self, column: usize) -> (ColumnsMut<'a>, ColumnsMut<'a>) {
        assert!(column <= self.columns, "column {column} of {}", self.columns);
        let Self {
            start, rows, stride, ..
        } = self;
        // SAFETY: this view is given up for two that share none of its elements. Of no rows the start is not read, so it may lie
        // anywhere.
        unsafe {
            (
                Self::from_raw_parts(start, (rows, column), stride),
                Self::from_raw_parts(start.wrapping_add(column), (rows, self.columns - column), stride),
            )
        }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns are in the view.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// These columns of one row.
    ///
    /// # Panics
    /// If there is no such row: a caller's bug.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row exists, belongs to this view alone, and the view is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.row_ptr(row), self.columns) }
    }

    /// The same view, borrowed for a while.
    pub(super) fn reborrow(&mut self) -> ColumnsMut<'_> {
        ColumnsMut { ..*self }
    }

    /// Where a row of the view starts.
    ///
    /// # Safety
    /// There is such a row.
    #[inline(always)]
    pub(super) unsafe fn row_ptr(&mut self, row: usize) -> *mut f32 {
        // SAFETY: required of the caller; rows lie in one allocation.
        unsafe { self.start.add(row * self.stride) }
    }
}

/// The number of rows of a matrix of `len` elements.
fn check_rows(len: usize, columns: usize) -> usize {
    assert!(
        len.is_multiple_of(columns.max(1)),
        "{len} elements as rows of {columns}"
    );
    len / columns.max(1)
}
