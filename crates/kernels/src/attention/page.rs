//! The two products of attention with a page: queries · keys and weights · values, for a tile of `R` rows.

use std::marker::PhantomData;
use std::ops::Range;

use super::block::{BLOCK, HALF_BLOCK};
use super::kv::{KvLayout, PANEL_POSITIONS, SEGMENT_POSITIONS};
use super::segment::WIDE_TILE_ROWS;
use super::state::PerPosition;
use super::stored::Stored;
use crate::dispatch::Kernel;
use crate::scalar::norm::LANES;
use crate::vector::{Simd, Stretch};

/// Columns of V whose sums a tile holds at a time.
pub(super) const BLOCK_COLUMNS: usize = 256;

/// Element type of a page: how codes become numbers.
pub(super) trait Element {
    const STORED: Stored;
    /// Numbers of a key or value, from a multiple of it on, that one scale and one half of the codes serve.
    const RUN: usize = usize::MAX;
    /// What scales are multiplied with before [`Element::load`] uses them, in low and in high halves.
    const SCALE_FACTORS: [f32; 2] = [1.0, 1.0];

    /// Whether numbers from `index` on, a multiple of 16, lie in the high halves of their bytes.
    #[inline(always)]
    fn is_high(_index: usize) -> bool {
        false
    }

    /// Reads a register of numbers. The `scale`, multiplied with its factor, is ignored where the type has none.
    ///
    /// # Safety
    /// As every method of [`Simd`]; `from` is valid for `LANES` codes.
    unsafe fn load<S: Simd, const HIGH: bool>(from: *const u8, scale: S::F32) -> S::F32;
}

/// [`Stored::F32`]
pub(super) struct F32;
/// [`Stored::F16`]
pub(super) struct F16;
/// [`Stored::Q8_0`]
pub(super) struct Q8;
/// [`Stored::Q4`]
pub(super) struct Q4;

impl Element for F32 {
    const STORED: Stored = Stored::F32;

    #[inline(always)]
    unsafe fn load<S: Simd, const HIGH: bool>(from: *const u8, _scale: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load(from.cast()) }
    }
}

impl Element for F16 {
    const STORED: Stored = Stored::F16;

    #[inline(always)]
    unsafe fn load<S: Simd, const HIGH: bool>(from: *const u8, _scale: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load_f16(from.cast()) }
    }
}

impl Element for Q8 {
    const STORED: Stored = Stored::Q8_0;
    const RUN: usize = BLOCK;

    #[inline(always)]
    unsafe fn load<S: Simd, const HIGH: bool>(from: *const u8, scale: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::mul(S::to_f32(S::load_i8(from)), scale) }
    }
}

/// A code stays where it lies, at the top of a lane (low half) or of its byte (high half), and the scale makes up for it: all exact.
impl Element for Q4 {
    const STORED: Stored = Stored::Q4;
    const RUN: usize = HALF_BLOCK;
    const SCALE_FACTORS: [f32; 2] = [1.0 / (1 << 28) as f32, 1.0 / 16.0];

    #[inline(always)]
    fn is_high(index: usize) -> bool {
        index % BLOCK >= HALF_BLOCK
    }

    #[inline(always)]
    unsafe fn load<S: Simd, const HIGH: bool>(from: *const u8, scale: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe {
            let bytes = S::load_i8(from);
            let codes = if HIGH {
                S::and(bytes, S::splat_i32(!15))
            } else {
                S::shl(bytes, 28)
            };
            S::mul(S::to_f32(codes), scale)
        }
    }
}

/// Adds `rows[r][at] · columns[n]` to sum `n` of row `r`, for `N` registers of columns.
///
/// # Safety
/// As every method of [`Simd`]; `at` lies in every row.
#[inline(always)]
unsafe fn add_products<S: Simd, C: Columns<S>, const R: usize, const N: usize>(
    sums: &mut [[S::F32; N]; R],
    rows: &[*const f32; R],
    at: usize,
    columns: &C,
) {
    // SAFETY: required of the caller.
    unsafe {
        // The fewer operands stay in registers beside the sums, the others pass through one.
        if R < N {
            let mut factors = [S::splat(0.0); R];
            for (factor, row) in factors.iter_mut().zip(rows) {
                *factor = S::splat(*row.add(at));
            }
            for n in 0..N {
                let column = columns.load(n);
                for (sums, factor) in sums.iter_mut().zip(&factors) {
                    sums[n] = S::fma(column, *factor, sums[n]);
                }
            }
        } else {
            let mut loaded = [S::splat(0.0); N];
            for (n, column) in loaded.iter_mut().enumerate() {
                *column = columns.load(n);
            }
            for (sums, row) in sums.iter_mut().zip(rows) {
                let factor = S::splat(*row.add(at));
                for (sum, column) in sums.iter_mut().zip(&loaded) {
                    *sum = S::fma(*column, factor, *sum);
                }
            }
        }
    }
}

/// Some registers of columns: positions for keys, numbers for values.
trait Columns<S: Simd> {
    /// # Safety
    /// As every method of [`Simd`]; register `n` exists.
    unsafe fn load(&self, n: usize) -> S::F32;
}

/// One dimension of the keys of adjacent positions.
struct KeyColumns<'a, S: Simd, E, const N: usize> {
    codes: *const u8,
    scales: &'a [S::F32; N],
    element: PhantomData<E>,
}

impl<S: Simd, E: Element, const N: usize> Columns<S> for KeyColumns<'_, S, E, N> {
    #[inline(always)]
    unsafe fn load(&self, n: usize) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe {
            let from = self.codes.add(n * S::LANES * E::STORED.code_stride());
            E::load::<S, false>(from, self.scales[n])
        }
    }
}

/// Adjacent numbers of one value, from the first of 16 in the low or high halves of a block on.
struct ValueColumns<E, const HIGH: bool> {
    codes: *const u8,
    /// Scales of the blocks from the first one on, for low halves; [`SCALES_OF_HALF`] further on for high halves.
    scales: *const f32,
    element: PhantomData<E>,
}

impl<S: Simd, E: Element, const HIGH: bool> Columns<S> for ValueColumns<E, HIGH> {
    #[inline(always)]
    unsafe fn load(&self, n: usize) -> S::F32 {
        let column = n * S::LANES;
        // SAFETY: required of the caller.
        unsafe {
            let from = self.codes.add(E::STORED.code_offset(column));
            if !E::STORED.is_quantized() {
                return E::load::<S, false>(from, S::splat(0.0));
            }
            let scale = self.scales.add(column / BLOCK);
            if HIGH || E::is_high(column) {
                E::load::<S, true>(from, S::splat(*scale.add(SCALES_OF_HALF)))
            } else {
                E::load::<S, false>(from, S::splat(*scale))
            }
        }
    }
}

/// Dot products of `R` queries with the keys of some panels: one fma chain over the dimensions in order.
pub(super) struct Scores<'a, E, const R: usize> {
    pub layout: &'a KvLayout,
    /// The K part of a page.
    pub keys: &'a [u8],
    /// Each as long as a key.
    pub queries: [&'a [f32]; R],
    /// Panels to read, at most those of a page.
    pub panels: Range<usize>,
    pub scores: &'a mut [PerPosition; R],
    /// If the keys lie in memory still, what they are part of.
    pub ahead: Option<Stretch>,
    pub element: PhantomData<E>,
}

impl<E: Element, const R: usize> Kernel for Scores<'_, E, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        if const { R == WIDE_TILE_ROWS && S::LANES != 16 } {
            unreachable!("a wide tile of narrow registers");
        }
        let KvLayout { k_dim, element, .. } = *self.layout;
        assert!(self.queries.iter().all(|query| query.len() == k_dim) && element.keys() == E::STORED);
        assert!(self.panels.end * PANEL_POSITIONS <= SEGMENT_POSITIONS);
        assert!(self.keys.len() >= self.panels.end * self.layout.k_panel_bytes());
        for panel in self.panels.clone() {
            // SAFETY: required of the caller, and as asserted. The registers fit: 16 of 8 lanes, 32 of 16 or of 4.
            unsafe {
                match (S::REGISTERS, S::LANES, R) {
                    (32, 4, 1) => self.panel::<S, 8>(panel),
                    (32, 4, _) => self.panel::<S, 4>(panel),
                    (_, 4 | 8, 1 | 2) => self.panel::<S, 4>(panel),
                    _ => self.panel::<S, 2>(panel),
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
        let leading = self.layout.leading_k_dims();
        let mut lane = 0;
        while lane < PANEL_POSITIONS {
            // SAFETY: a panel is `k_panel_bytes` long: 32 scales for each block, 32 codes for each leading dimension, 32 f16 for each
            // plain one. The panel's positions lie in the page.
            unsafe {
                let keys = self.keys.as_ptr().add(panel * self.layout.k_panel_bytes());
                let codes = keys.add(self.layout.k_scale_bytes());
                let mut sums = [[S::splat(0.0); N]; R];
                let mut first = 0;
                while first < leading {
                    let dims = first..leading.min(first.saturating_add(E::RUN));
                    first = dims.end;
                    let lines = codes.add(E::STORED.code_offset(dims.start) * PANEL_POSITIONS);
                    let mut scales = [S::splat(0.0); N];
                    if E::STORED.is_quantized() {
                        let from = keys.cast::<u16>().add(dims.start / BLOCK * PANEL_POSITIONS + lane);
                        for (n, scale) in scales.iter_mut().enumerate() {
                            *scale = S::load_f16(from.add(n * S::LANES));
                        }
                    }
                    self.dimensions::<S, E, N>(lines, lane, dims, &scales, &mut sums);
                }
                let plain = keys.add(self.layout.k_plain_offset_bytes());
                let no_scales = [S::splat(0.0); N];
                self.dimensions::<S, F16, N>(plain, lane, leading..self.layout.k_dim, &no_scales, &mut sums);
                for (sums, scores) in sums.iter().zip(self.scores.iter_mut()) {
                    for (n, sum) in sums.iter().enumerate() {
                        let position = panel * PANEL_POSITIONS + lane + n * S::LANES;
                        S::store(scores.as_mut_ptr().add(position), *sum);
                    }
                }
            }
            lane += N * S::LANES;
        }
    }

    /// A run of dimensions that share their scales and are stored as `D`.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; from `lines` on, a line of 32 codes follows for each dimension, and queries have the
    /// dimensions; `lane + N · LANES` is at most 32.
    #[inline(always)]
    unsafe fn dimensions<S: Simd, D: Element, const N: usize>(
        &self,
        lines: *const u8,
        lane: usize,
        dims: Range<usize>,
        scales: &[S::F32; N],
        sums: &mut [[S::F32; N]; R],
    ) {
        let stride = D::STORED.code_stride();
        // SAFETY: required of the caller; the last line is stepped over, but not read there.
        unsafe {
            let mut codes = lines.add(lane * stride);
            let queries = self.queries.map(<[f32]>::as_ptr);
            for d in dims {
                if let Some(stretch) = self.ahead.filter(|_| lane == 0) {
                    stretch.read_ahead::<S>(codes, PANEL_POSITIONS * stride);
                }
                let columns = KeyColumns::<S, D, N> {
                    codes,
                    scales,
                    element: PhantomData,
                };
                add_products::<S, _, R, N>(sums, &queries, d, &columns);
                codes = codes.wrapping_add(PANEL_POSITIONS * stride);
            }
        }
    }
}

/// Blocks of [`BLOCK_COLUMNS`], rounded up to the widest register.
const SCALE_COLUMNS: usize = 16;
/// Scales of the low halves in a [`ValueScales`].
const SCALES_OF_HALF: usize = PANEL_POSITIONS * SCALE_COLUMNS;

/// Scales of a panel's values as f32, `[low and high halves][32 positions][16 blocks]`, times their factors.
struct ValueScales([f32; 2 * SCALES_OF_HALF]);

/// Adds weight · value to the outputs of `R` rows, over a range of positions that all of them see: per column one fma chain in order.
pub(super) struct WeighValues<'a, E, const R: usize> {
    pub layout: &'a KvLayout,
    /// The V part of a page.
    pub values: &'a [u8],
    /// Positions within the page.
    pub positions: Range<usize>,
    pub weights: [&'a PerPosition; R],
    /// Columns of V: whole groups of 16, at most [`BLOCK_COLUMNS`], from a multiple of it on.
    pub columns: Range<usize>,
    /// Sums of these columns.
    pub output: [&'a mut [f32; BLOCK_COLUMNS]; R],
    /// If the values lie in memory still, what they are part of.
    pub ahead: Option<Stretch>,
    pub element: PhantomData<E>,
}

impl<E: Element, const R: usize> Kernel for WeighValues<'_, E, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        if const { R == WIDE_TILE_ROWS && S::LANES != 16 } {
            unreachable!("a wide tile of narrow registers");
        }
        let Range { mut start, end } = self.positions.clone();
        let columns = self.columns.len();
        assert!(end <= SEGMENT_POSITIONS && self.layout.element.values() == E::STORED);
        assert!(self.values.len() >= end.div_ceil(PANEL_POSITIONS) * self.layout.v_panel_bytes());
        assert!(self.columns.end <= self.layout.v_stride() && self.columns.start.is_multiple_of(BLOCK_COLUMNS));
        assert!(columns <= BLOCK_COLUMNS && columns.is_multiple_of(LANES));
        let mut scales = ValueScales([0.0; 2 * SCALES_OF_HALF]);
        while start < end {
            // A panel at a time, so that its rows stay in the first cache between two visits of a column.
            let block = start..end.min((start + 1).next_multiple_of(PANEL_POSITIONS));
            start = block.end;
            // SAFETY: required of the caller, and as asserted.
            unsafe {
                if E::STORED.is_quantized() {
                    self.load_scales::<S>(&block, &mut scales);
                }
            }
            let mut column = 0;
            while column < columns {
                let left = columns - column;
                let block = block.clone();
                // SAFETY: required of the caller, and as asserted. The registers fit: 16 of 8 lanes, 32 of 16 or of 4. Strips of more
                // than 16 columns are whole blocks of 32 and begin with one, as all strips before them did.
                column += unsafe {
                    match (S::LANES, R) {
                        (16, WIDE_TILE_ROWS) if left >= 32 => self.strip::<S, 2, false>(block, column, &scales),
                        (16, 1) if left >= 128 => self.strip::<S, 8, false>(block, column, &scales),
                        (16, _) if left >= 64 => self.strip::<S, 4, false>(block, column, &scales),
                        (8, 1) if left >= 64 => self.strip::<S, 8, false>(block, column, &scales),
                        (8, 2) if left >= 32 => self.strip::<S, 4, false>(block, column, &scales),
                        (16, _) if E::is_high(column) => self.strip::<S, 1, true>(block, column, &scales),
                        (16, _) => self.strip::<S, 1, false>(block, column, &scales),
                        (8, _) if E::is_high(column) => self.strip::<S, 2, true>(block, column, &scales),
                        (8, _) => self.strip::<S, 2, false>(block, column, &scales),
                        (4, 1 | 2) if S::REGISTERS == 32 && left >= 32 => {
                            self.strip::<S, 8, false>(block, column, &scales)
                        }
                        _ if E::is_high(column) => self.strip::<S, 4, true>(block, column, &scales),
                        _ => self.strip::<S, 4, false>(block, column, &scales),
                    }
                };
            }
        }
    }
}

impl<E: Element, const R: usize> WeighValues<'_, E, R> {
    /// Reads the scales of some positions of one panel.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; positions and columns exist, and the element type has scales.
    #[inline(always)]
    unsafe fn load_scales<S: Simd>(&self, positions: &Range<usize>, scales: &mut ValueScales) {
        let panel = positions.start / PANEL_POSITIONS;
        // SAFETY: reading a register from the first block of a position on stays in the panel: at least 16 bytes of codes for each of its
        // 32 positions follow the scales. What lies beyond the position's own scales belongs to blocks without columns.
        unsafe {
            let all = self
                .values
                .as_ptr()
                .add(panel * self.layout.v_panel_bytes())
                .cast::<u16>();
            for position in positions.start % PANEL_POSITIONS..=(positions.end - 1) % PANEL_POSITIONS {
                let from = all.add(position * self.layout.v_blocks() + self.columns.start / BLOCK);
                let to = scales.0.as_mut_ptr().add(position * SCALE_COLUMNS);
                let mut i = 0;
                while i < BLOCK_COLUMNS / BLOCK {
                    let scale = S::load_f16(from.add(i));
                    for (half, factor) in E::SCALE_FACTORS.into_iter().enumerate() {
                        S::store(to.add(half * SCALES_OF_HALF + i), S::mul(scale, S::splat(factor)));
                    }
                    i += S::LANES;
                }
            }
        }
    }

    /// `N` registers of columns, from the `column`-th on; returns how many columns that is.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; positions, which lie in one panel, and columns exist; `scales` are those of the
    /// positions; the columns begin with a block of 32 or, if there are 16 of them, with a half of one, which `HIGH` says.
    #[inline(always)]
    unsafe fn strip<S: Simd, const N: usize, const HIGH: bool>(
        &mut self,
        positions: Range<usize>,
        column: usize,
        scales: &ValueScales,
    ) -> usize {
        let (panel, first) = (positions.start / PANEL_POSITIONS, positions.start % PANEL_POSITIONS);
        let row_bytes = self.layout.v_row_bytes();
        let from = panel * self.layout.v_panel_bytes()
            + self.layout.v_scale_bytes()
            + first * row_bytes
            + E::STORED.code_offset(self.columns.start + column);
        // SAFETY: the panel holds a row of codes and a scale for each position, every row of weights a weight, and the columns exist.
        unsafe {
            let mut values = ValueColumns::<E, HIGH> {
                codes: self.values.as_ptr().add(from),
                scales: scales.0.as_ptr().add(first * SCALE_COLUMNS + column / BLOCK),
                element: PhantomData,
            };
            let mut sums = [[S::splat(0.0); N]; R];
            for (sums, output) in sums.iter_mut().zip(&self.output) {
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(output.as_ptr().add(column + n * S::LANES));
                }
            }
            let weights = self.weights.map(|weights| weights.as_ptr());
            for position in positions {
                if let Some(stretch) = self.ahead {
                    stretch.read_ahead::<S>(values.codes, E::STORED.code_bytes(N * S::LANES));
                }
                add_products::<S, _, R, N>(&mut sums, &weights, position, &values);
                values.codes = values.codes.wrapping_add(row_bytes);
                values.scales = values.scales.wrapping_add(SCALE_COLUMNS);
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
