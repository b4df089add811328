//! The attention kernels: rows against one page, merging of states, the last division.
//!
//! Rows go in tiles of a few. A tile reads the K part panel by panel (scores of 32 positions at a time), then the V part in blocks of
//! 32 positions, so the page is one sequential stream however many rows there are.

use std::ops::Range;

use super::kv::{KvElement, KvLayout, PANEL_POSITIONS, SEGMENT_POSITIONS};
use super::{QueryRow, ScoreRule, attention_state_len};
use crate::dispatch::Kernel;
use crate::elementwise::{LaneFunction, LanePairFunction, Scale, Softcap, map, map_pairs};
use crate::math::exp_lanes;
use crate::norm::sum;
use crate::scalar::norm::LANES;
use crate::vector::Simd;

/// The most rows of a tile.
const MAX_TILE_ROWS: usize = 6;
/// Columns of V whose sums are kept on the stack at a time.
const BLOCK_COLUMNS: usize = 256;
/// Positions of V between two visits of a column, so that a block of V rows stays in the first cache.
const BLOCK_POSITIONS: usize = 32;

/// Element type of a page.
trait Element: Copy {
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

/// The arguments of [`crate::Kernels::attend_segment`], which checked all lengths.
pub(super) struct AttendSegment<'a> {
    pub layout: &'a KvLayout,
    pub page: &'a [u8],
    pub rule: &'a ScoreRule,
    pub rows: &'a [QueryRow<'a>],
    pub states: &'a mut [f32],
}

impl Kernel for AttendSegment<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: required of the caller.
        unsafe {
            match self.layout.element {
                KvElement::F16 => self.attend::<S, u16>(),
                KvElement::F32 => self.attend::<S, f32>(),
            }
        }
    }
}

impl AttendSegment<'_> {
    /// # Safety
    /// The machine has the instruction set of `S`; `E` is the element type of the page.
    #[inline(always)]
    unsafe fn attend<S: Simd, E: Element>(self) {
        let (k_part, v_part) = self.page.split_at(self.layout.v_offset_bytes());
        let page = Page::<E> {
            k: k_part.as_ptr().cast(),
            v: v_part.as_ptr().cast(),
            layout: self.layout,
            rule: self.rule,
        };
        let states = self.states.chunks_exact_mut(attention_state_len(self.layout.v_dim));
        let mut rows = self.rows.iter().zip(states).filter(|(row, _)| !row.visible.is_empty());
        loop {
            let mut tile = [TileRow::default(); MAX_TILE_ROWS];
            let mut states: [&mut [f32]; MAX_TILE_ROWS] = Default::default();
            let mut count = 0;
            while count < MAX_TILE_ROWS
                && let Some((row, state)) = rows.next()
            {
                tile[count] = TileRow {
                    q: row.q,
                    start: row.visible.start,
                    end: row.visible.end,
                };
                states[count] = state;
                count += 1;
            }
            let (tile, states) = (&tile[..count], &mut states[..count]);
            // SAFETY: required of the caller.
            unsafe {
                match count {
                    0 => return,
                    1 => page.attend::<S, 1>(tile, states),
                    2 => page.attend::<S, 2>(tile, states),
                    3 => page.attend::<S, 3>(tile, states),
                    4 => page.attend::<S, 4>(tile, states),
                    5 => {
                        page.attend::<S, 3>(&tile[..3], &mut states[..3]);
                        page.attend::<S, 2>(&tile[3..], &mut states[3..]);
                    }
                    _ => page.attend::<S, 6>(tile, states),
                }
            }
        }
    }
}

/// One row of a tile: a query and the slots that it sees, not empty.
#[derive(Clone, Copy, Default)]
struct TileRow<'a> {
    q: &'a [f32],
    start: usize,
    end: usize,
}

/// One number per position of a page.
type PerPosition = [f32; SEGMENT_POSITIONS];

/// A page of elements `E`, as large as `layout` says, and what its scores need.
struct Page<'a, E> {
    k: *const E,
    v: *const E,
    layout: &'a KvLayout,
    rule: &'a ScoreRule,
}

impl<E: Element> Page<'_, E> {
    /// Attends from the `R` rows of `tile` and merges into their `states`.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; queries, ranges and states fit the layout.
    #[inline(always)]
    unsafe fn attend<S: Simd, const R: usize>(&self, tile: &[TileRow<'_>], states: &mut [&mut [f32]]) {
        let (Some(tile), Some(states)) = (tile.first_chunk::<R>(), states.first_chunk_mut::<R>()) else {
            return;
        };
        let mut weights = [[0.0; SEGMENT_POSITIONS]; R];
        let mut merges = [Merge::default(); R];
        // SAFETY: required of the caller; a block of columns ends within a V row and within `output`.
        unsafe {
            self.scores::<S, R>(tile, &mut weights);
            for (r, row) in tile.iter().enumerate() {
                let (max, sum) = softmax::<S>(&mut weights[r], row, self.rule);
                merges[r] = Merge::of::<S>(states[r], max, sum);
            }
            let (v_dim, v_stride) = (self.layout.v_dim, self.layout.v_stride());
            let mut first = 0;
            while first < v_dim {
                let mut output = [[0.0; BLOCK_COLUMNS]; R];
                let padded = BLOCK_COLUMNS.min(v_stride - first);
                self.weigh_values::<S, R>(tile, &weights, &mut output, first..first + padded);
                let columns = BLOCK_COLUMNS.min(v_dim - first);
                for (r, state) in states.iter_mut().enumerate() {
                    merges[r].columns::<S>(&mut state[2 + first..][..columns], &output[r][..columns]);
                }
                first += BLOCK_COLUMNS;
            }
        }
    }

    /// Dot products of all queries with the keys of every panel that a row of the tile sees.
    ///
    /// # Safety
    /// As [`Page::attend`].
    #[inline(always)]
    unsafe fn scores<S: Simd, const R: usize>(&self, tile: &[TileRow<'_>; R], scores: &mut [PerPosition; R]) {
        let start = tile.iter().map(|row| row.start).min().unwrap_or(0);
        let end = tile.iter().map(|row| row.end).max().unwrap_or(0);
        for panel in start / PANEL_POSITIONS..end.div_ceil(PANEL_POSITIONS) {
            // SAFETY: required of the caller. The number of registers suits the register file: 16 of 8 lanes, 32 of 16 lanes.
            unsafe {
                if S::LANES < 16 && R <= 3 {
                    self.panel_scores::<S, R, 4>(panel, tile, scores);
                } else {
                    self.panel_scores::<S, R, 2>(panel, tile, scores);
                }
            }
        }
    }

    /// Dot products with the 32 keys of one panel, `N` registers of positions at a time.
    ///
    /// # Safety
    /// As [`Page::attend`]; `N · LANES` divides 32.
    #[inline(always)]
    unsafe fn panel_scores<S: Simd, const R: usize, const N: usize>(
        &self,
        panel: usize,
        tile: &[TileRow<'_>; R],
        scores: &mut [PerPosition; R],
    ) {
        let first = panel * PANEL_POSITIONS;
        let mut lane = 0;
        while lane < PANEL_POSITIONS {
            // SAFETY: the panel holds `k_dim` lines of 32 elements, a query `k_dim` numbers, and the panel's positions lie below 256.
            unsafe {
                let mut keys = self.k.add(first * self.layout.k_dim + lane);
                let mut sums = [[S::splat(0.0); N]; R];
                for d in 0..self.layout.k_dim {
                    let mut key = [S::splat(0.0); N];
                    for (n, key) in key.iter_mut().enumerate() {
                        *key = E::load::<S>(keys.add(n * S::LANES));
                    }
                    for r in 0..R {
                        let q = S::splat(*tile[r].q.get_unchecked(d));
                        for n in 0..N {
                            sums[r][n] = S::fma(key[n], q, sums[r][n]);
                        }
                    }
                    keys = keys.add(PANEL_POSITIONS);
                }
                for r in 0..R {
                    for n in 0..N {
                        S::store(scores[r].as_mut_ptr().add(first + lane + n * S::LANES), sums[r][n]);
                    }
                }
            }
            lane += N * S::LANES;
        }
    }

    /// Adds weight · value to the `output` of every row, over the positions it sees, for the given columns of V.
    ///
    /// # Safety
    /// As [`Page::attend`]; the columns are whole groups of 16, at most [`BLOCK_COLUMNS`].
    #[inline(always)]
    unsafe fn weigh_values<S: Simd, const R: usize>(
        &self,
        tile: &[TileRow<'_>; R],
        weights: &[PerPosition; R],
        output: &mut [[f32; BLOCK_COLUMNS]; R],
        columns: Range<usize>,
    ) {
        // Positions that all rows see go through V together; the others row by row, since a hidden value must not be touched.
        let start = tile.iter().map(|row| row.start).max().unwrap_or(0);
        let end = tile.iter().map(|row| row.end).min().unwrap_or(0);
        let shared = if start < end {
            start..end
        } else {
            SEGMENT_POSITIONS..SEGMENT_POSITIONS
        };
        // SAFETY: required of the caller.
        unsafe {
            for r in 0..R {
                let own = tile[r].start..tile[r].end.min(shared.start);
                self.weigh_range::<S, 1>(own, [&weights[r]], [&mut output[r]], columns.clone());
            }
            self.weigh_range::<S, R>(shared.clone(), weights.each_ref(), output.each_mut(), columns.clone());
            for r in 0..R {
                let own = tile[r].start.max(shared.end)..tile[r].end;
                self.weigh_range::<S, 1>(own, [&weights[r]], [&mut output[r]], columns.clone());
            }
        }
    }

    /// Adds weight · value to the `output` of `R` rows over one range of positions.
    ///
    /// # Safety
    /// As [`Page::weigh_values`].
    #[inline(always)]
    unsafe fn weigh_range<S: Simd, const R: usize>(
        &self,
        positions: Range<usize>,
        weights: [&PerPosition; R],
        mut output: [&mut [f32; BLOCK_COLUMNS]; R],
        columns: Range<usize>,
    ) {
        let mut start = positions.start;
        while start < positions.end {
            let block = start..positions.end.min(start + BLOCK_POSITIONS);
            start = block.end;
            let mut column = columns.start;
            // SAFETY: required of the caller. The number of registers suits the register file: 16 of 8 lanes, 32 of 16 lanes.
            unsafe {
                while column < columns.end {
                    let left = columns.end - column;
                    let to = column - columns.start;
                    column += match (S::LANES, R) {
                        (16, 1) if left >= 128 => {
                            self.weigh_columns::<S, R, 8>(&block, &weights, &mut output, (column, to))
                        }
                        (16, _) if left >= 64 => {
                            self.weigh_columns::<S, R, 4>(&block, &weights, &mut output, (column, to))
                        }
                        (16, _) => self.weigh_columns::<S, R, 1>(&block, &weights, &mut output, (column, to)),
                        (8, 1) if left >= 64 => {
                            self.weigh_columns::<S, R, 8>(&block, &weights, &mut output, (column, to))
                        }
                        (8, 1..=3) if left >= 32 => {
                            self.weigh_columns::<S, R, 4>(&block, &weights, &mut output, (column, to))
                        }
                        (8, _) => self.weigh_columns::<S, R, 2>(&block, &weights, &mut output, (column, to)),
                        _ => self.weigh_columns::<S, R, 4>(&block, &weights, &mut output, (column, to)),
                    };
                }
            }
        }
    }

    /// Adds weight · value for `N` registers of columns, from column `from` of V to column `to` of `output`; returns how many columns.
    ///
    /// # Safety
    /// As [`Page::weigh_values`]; the columns exist in both.
    #[inline(always)]
    unsafe fn weigh_columns<S: Simd, const R: usize, const N: usize>(
        &self,
        positions: &Range<usize>,
        weights: &[&PerPosition; R],
        output: &mut [&mut [f32; BLOCK_COLUMNS]; R],
        (from, to): (usize, usize),
    ) -> usize {
        // SAFETY: required of the caller; positions lie below 256.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; R];
            for r in 0..R {
                for n in 0..N {
                    sums[r][n] = S::load(output[r].as_ptr().add(to + n * S::LANES));
                }
            }
            let mut values = self.v.add(positions.start * self.layout.v_stride() + from);
            for position in positions.clone() {
                let mut value = [S::splat(0.0); N];
                for (n, value) in value.iter_mut().enumerate() {
                    *value = E::load::<S>(values.add(n * S::LANES));
                }
                for r in 0..R {
                    let weight = S::splat(*weights[r].get_unchecked(position));
                    for n in 0..N {
                        sums[r][n] = S::fma(value[n], weight, sums[r][n]);
                    }
                }
                values = values.add(self.layout.v_stride());
            }
            for r in 0..R {
                for n in 0..N {
                    S::store(output[r].as_mut_ptr().add(to + n * S::LANES), sums[r][n]);
                }
            }
        }
        N * S::LANES
    }
}

/// Turns the dot products of one row into weights exp(score − max); 0 in the hidden slots beside its range. Returns (max, sum).
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
unsafe fn softmax<S: Simd>(dots: &mut PerPosition, row: &TileRow<'_>, rule: &ScoreRule) -> (f32, f32) {
    let first = row.start - row.start % LANES;
    let slots = &mut dots[first..row.end.next_multiple_of(LANES)];
    let visible = row.start - first..row.end - first;
    // SAFETY: required of the caller.
    unsafe {
        map::<S, _>(Scale(rule.scale), slots);
        if let Some(cap) = rule.softcap {
            map::<S, _>(Softcap(cap), slots);
        }
        slots[..visible.start].fill(f32::NEG_INFINITY);
        slots[visible.end..].fill(f32::NEG_INFINITY);
        let max = largest::<S>(slots);
        map::<S, _>(ExpMinus(max), slots);
        slots[..visible.start].fill(0.0);
        slots[visible.end..].fill(0.0);
        (max, sum::<S, false>(slots))
    }
}

/// The largest element that is not NaN; −∞ without one.
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
unsafe fn largest<S: Simd>(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    // SAFETY: a register has at most 16 lanes; `x` is a whole number of groups of 16.
    unsafe {
        let mut max = S::splat(f32::NEG_INFINITY);
        for chunk in x.chunks_exact(S::LANES) {
            max = S::max(S::load(chunk.as_ptr()), max);
        }
        S::store(lanes.as_mut_ptr(), max);
    }
    let mut largest = lanes[0];
    for lane in lanes {
        if lane > largest {
            largest = lane;
        }
    }
    largest
}

/// exp(x − amount)
#[derive(Clone, Copy)]
struct ExpMinus(f32);

impl LaneFunction for ExpMinus {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { exp_lanes::<S>(S::sub(x, S::splat(self.0))) }
    }
}

/// e^x of one number.
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
unsafe fn exp_one<S: Simd>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: required of the caller; a register has at most 16 lanes.
    unsafe { S::store(lanes.as_mut_ptr(), exp_lanes::<S>(S::splat(x))) };
    lanes[0]
}

/// How the outputs of two states are combined: o·keep + next·add.
#[derive(Clone, Copy, Default)]
struct Merge {
    /// The first state has seen no key: the second is taken as it is.
    replace: bool,
    keep: f32,
    add: f32,
}

impl Merge {
    /// Merges the maximum and the sum of a later segment, which saw at least one key, into `state`.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`.
    #[inline(always)]
    unsafe fn of<S: Simd>(state: &mut [f32], next_max: f32, next_sum: f32) -> Merge {
        let (max, sum) = (state[0], state[1]);
        if sum == 0.0 {
            state[0] = next_max;
            state[1] = next_sum;
            return Merge {
                replace: true,
                ..Merge::default()
            };
        }
        let larger = if next_max > max { next_max } else { max };
        // SAFETY: required of the caller.
        let (keep, add) = unsafe { (exp_one::<S>(max - larger), exp_one::<S>(next_max - larger)) };
        state[0] = larger;
        state[1] = sum.mul_add(keep, next_sum * add);
        Merge {
            replace: false,
            keep,
            add,
        }
    }

    /// # Safety
    /// The machine has the instruction set of `S`; both slices are equally long.
    #[inline(always)]
    unsafe fn columns<S: Simd>(self, output: &mut [f32], next: &[f32]) {
        if self.replace {
            output.copy_from_slice(next);
        } else {
            // SAFETY: required of the caller.
            unsafe { map_pairs::<S, _>(self, output, next) }
        }
    }
}

impl LanePairFunction for Merge {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, output: S::F32, next: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::fma(output, S::splat(self.keep), S::mul(next, S::splat(self.add))) }
    }
}

/// The arguments of [`crate::Kernels::merge_attention`], which checked all lengths.
pub(super) struct MergeRows<'a> {
    pub states: &'a mut [f32],
    pub next: &'a [f32],
    pub v_dim: usize,
}

impl Kernel for MergeRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = attention_state_len(self.v_dim);
        let pairs = self.states.chunks_exact_mut(len).zip(self.next.chunks_exact(len));
        for (state, next) in pairs {
            if next[1] != 0.0 {
                // SAFETY: required of the caller; states are equally long.
                unsafe { Merge::of::<S>(state, next[0], next[1]).columns::<S>(&mut state[2..], &next[2..]) }
            }
        }
    }
}

/// The arguments of [`crate::Kernels::finish_attention`], which checked all lengths.
pub(super) struct FinishRow<'a> {
    pub state: &'a [f32],
    pub sink: Option<f32>,
    pub out: &'a mut [f32],
}

impl Kernel for FinishRow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut head = [self.state[0], self.state[1]];
        if head[1] == 0.0 {
            self.out.fill(0.0);
            return;
        }
        self.out.copy_from_slice(&self.state[2..]);
        // SAFETY: required of the caller.
        unsafe {
            if let Some(logit) = self.sink {
                let merge = Merge::of::<S>(&mut head, logit, 1.0);
                let zero = 0.0 * merge.add;
                map::<S, _>(MultiplyAdd(merge.keep, zero), self.out);
            }
            map::<S, _>(Divide(head[1]), self.out);
        }
    }
}

/// fma(x, factor, addend)
#[derive(Clone, Copy)]
struct MultiplyAdd(f32, f32);

impl LaneFunction for MultiplyAdd {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::fma(x, S::splat(self.0), S::splat(self.1)) }
    }
}

/// x / divisor
#[derive(Clone, Copy)]
struct Divide(f32);

impl LaneFunction for Divide {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::div(x, S::splat(self.0)) }
    }
}
