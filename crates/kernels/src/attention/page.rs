//! The two products of attention with a page: queries · keys and weights · values, for a tile of `R` rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::kv::{PANEL_POSITIONS, SEGMENT_POSITIONS};
use super::state::PerPosition;
use crate::dispatch::Kernel;
use crate::scalar::norm::LANES;
use crate::vector::Simd;

/// Columns of V whose sums a tile holds at a time.
pub(super) const BLOCK_COLUMNS: usize = 256;
/// Positions of V between two visits of a column, so that their rows stay in the first cache.
const BLOCK_POSITIONS: usize = 32;

/// Element type of a page.
pub(super) trait Element: Copy {
    /// # Safety
    /// As every method of [`Simd`]; `from` is valid for `LANES` elements.
    unsafe fn load<S: Simd>(from: *const Self) -> S::F32;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load(from) }
    }
}

/// f16 by its bits.
impl Element for u16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u16) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load_f16(from) }
    }
}

/// Reads `N` registers of consecutive elements.
///
/// # Safety
/// As every method of [`Simd`]; `from` is valid for `N · LANES` elements.
#[inline(always)]
unsafe fn load_all<S: Simd, E: Element, const N: usize>(from: *const E) -> [S::F32; N] {
    // SAFETY: required of the caller.
    unsafe {
        let mut registers = [S::splat(0.0); N];
        for (n, register) in registers.iter_mut().enumerate() {
            *register = E::load::<S>(from.add(n * S::LANES));
        }
        registers
    }
}

/// Adds `rows[r] · columns[n]` to sum `n` of row `r`, for `N` registers of consecutive columns.
///
/// # Safety
/// As every method of [`Simd`]; `columns` is valid for `N · LANES` elements.
#[inline(always)]
unsafe fn add_products<S: Simd, E: Element, const R: usize, const N: usize>(
    sums: &mut [[S::F32; N]; R],
    rows: &[f32; R],
    columns: *const E,
) {
    // SAFETY: required of the caller.
    unsafe {
        // The fewer operands stay in registers beside the sums, the others pass through one.
        if R < N {
            let mut factors = [S::splat(0.0); R];
            for (factor, row) in factors.iter_mut().zip(rows) {
                *factor = S::splat(*row);
            }
            for n in 0..N {
                let column = E::load::<S>(columns.add(n * S::LANES));
                for (sums, factor) in sums.iter_mut().zip(&factors) {
                    sums[n] = S::fma(column, *factor, sums[n]);
                }
            }
        } else {
            let columns = load_all::<S, E, N>(columns);
            for (sums, row) in sums.iter_mut().zip(rows) {
                let factor = S::splat(*row);
                for (sum, column) in sums.iter_mut().zip(&columns) {
                    *sum = S::fma(*column, factor, *sum);
                }
            }
        }
    }
}

/// Dot products of `R` queries with the keys of some panels: one fma chain over the dimensions in order.
pub(super) struct Scores<'a, E, const R: usize> {
    /// The K part of a page.
    pub keys: &'a [u8],
    /// Each as long as a key.
    pub queries: [&'a [f32]; R],
    /// Panels to read, at most those of a page.
    pub panels: Range<usize>,
    pub scores: &'a mut [PerPosition; R],
    pub element: PhantomData<E>,
}

impl<E: Element, const R: usize> Kernel for Scores<'_, E, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let k_dim = self.queries[0].len();
        let positions = self.panels.end * PANEL_POSITIONS;
        assert!(self.queries.iter().all(|query| query.len() == k_dim) && positions <= SEGMENT_POSITIONS);
        assert!(self.keys.len() >= positions * k_dim * size_of::<E>());
        for panel in self.panels.clone() {
            // SAFETY: required of the caller, and as asserted. The registers fit: 16 of 8 lanes, 32 of 16 lanes.
            unsafe {
                if S::LANES < 16 && R <= 2 {
                    self.panel::<S, 4>(panel);
                } else {
                    self.panel::<S, 2>(panel);
                }
            }
        }
    }
}

impl<E: Element, const R: usize> Scores<'_, E, R> {
    /// One panel, `N` registers of its 32 positions at a time.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; `N · LANES` divides 32; the panel exists and queries are equally long.
    #[inline(always)]
    unsafe fn panel<S: Simd, const N: usize>(&mut self, panel: usize) {
        let k_dim = self.queries[0].len();
        let first = panel * PANEL_POSITIONS;
        let mut lane = 0;
        while lane < PANEL_POSITIONS {
            // SAFETY: the panel holds `k_dim` lines of 32 elements, a query `k_dim` numbers, and the panel's positions lie in the page.
            unsafe {
                let mut keys = self.keys.as_ptr().cast::<E>().add(first * k_dim + lane);
                let mut sums = [[S::splat(0.0); N]; R];
                for d in 0..k_dim {
                    let mut factors = [0.0; R];
                    for (factor, query) in factors.iter_mut().zip(&self.queries) {
                        *factor = *query.get_unchecked(d);
                    }
                    add_products::<S, E, R, N>(&mut sums, &factors, keys);
                    keys = keys.add(PANEL_POSITIONS);
                }
                for (sums, scores) in sums.iter().zip(self.scores.iter_mut()) {
                    for (n, sum) in sums.iter().enumerate() {
                        S::store(scores.as_mut_ptr().add(first + lane + n * S::LANES), *sum);
                    }
                }
            }
            lane += N * S::LANES;
        }
    }
}

/// Adds weight · value to the outputs of `R` rows, over a range of positions that all of them see: per column one fma chain in order.
pub(super) struct WeighValues<'a, E, const R: usize> {
    /// The V part of a page.
    pub values: &'a [u8],
    /// Elements from one V row to the next.
    pub stride: usize,
    /// Positions within the page.
    pub positions: Range<usize>,
    pub weights: [&'a PerPosition; R],
    /// Columns of V: whole groups of 16, at most [`BLOCK_COLUMNS`].
    pub columns: Range<usize>,
    /// Sums of these columns.
    pub output: [&'a mut [f32; BLOCK_COLUMNS]; R],
    pub element: PhantomData<E>,
}

impl<E: Element, const R: usize> Kernel for WeighValues<'_, E, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let Range { start, end } = self.positions.clone();
        let columns = self.columns.len();
        assert!(end <= SEGMENT_POSITIONS && self.values.len() >= end * self.stride * size_of::<E>());
        assert!(self.columns.end <= self.stride && columns <= BLOCK_COLUMNS && columns.is_multiple_of(LANES));
        for first in (start..end).step_by(BLOCK_POSITIONS) {
            let block = first..end.min(first + BLOCK_POSITIONS);
            let mut column = 0;
            while column < columns {
                let left = columns - column;
                let block = block.clone();
                // SAFETY: required of the caller, and as asserted. The registers fit: 16 of 8 lanes, 32 of 16 lanes.
                column += unsafe {
                    match (S::LANES, R) {
                        (16, 1) if left >= 128 => self.strip::<S, 8>(block, column),
                        (16, _) if left >= 64 => self.strip::<S, 4>(block, column),
                        (16, _) => self.strip::<S, 1>(block, column),
                        (8, 1) if left >= 64 => self.strip::<S, 8>(block, column),
                        (8, 2) if left >= 32 => self.strip::<S, 4>(block, column),
                        (8, _) => self.strip::<S, 2>(block, column),
                        _ => self.strip::<S, 4>(block, column),
                    }
                };
            }
        }
    }
}

impl<E: Element, const R: usize> WeighValues<'_, E, R> {
    /// `N` registers of columns, from the `column`-th on; returns how many columns that is.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; positions and columns exist.
    #[inline(always)]
    unsafe fn strip<S: Simd, const N: usize>(&mut self, positions: Range<usize>, column: usize) -> usize {
        // SAFETY: the V part holds a row of `stride` elements for each position, every row of weights a weight, and the columns exist.
        unsafe {
            let values = self.values.as_ptr().cast::<E>();
            let mut values = values.add(positions.start * self.stride + self.columns.start + column);
            let mut sums = [[S::splat(0.0); N]; R];
            for (sums, output) in sums.iter_mut().zip(&self.output) {
                *sums = load_all::<S, f32, N>(output.as_ptr().add(column));
            }
            for position in positions {
                let mut factors = [0.0; R];
                for (factor, weights) in factors.iter_mut().zip(&self.weights) {
                    *factor = *weights.get_unchecked(position);
                }
                add_products::<S, E, R, N>(&mut sums, &factors, values);
                values = values.add(self.stride);
            }
            for (sums, output) in sums.iter().zip(&mut self.output) {
                for (n, sum) in sums.iter().enumerate() {
                    S::store(output.as_mut_ptr().add(column + n * S::LANES), *sum);
                }
            }
        }
        N * S::LANES
    }
}
