//! Attention of many rows to one page, a tile of a few rows at a time.
//!
//! A tile reads the K part panel by panel and then the V part in blocks of positions, so the page is one sequential stream however
//! many rows share it.

use std::marker::PhantomData;
use std::ops::Range;

use super::kv::{KvElement, KvLayout, PANEL_POSITIONS, SEGMENT_POSITIONS};
use super::page::{BLOCK_COLUMNS, Element, F16, F32, Q4, Q8, Scores, WeighValues};
use super::state::{Merge, MergeOutput, PerPosition, Softmax};
use super::{Alibi, QueryRow, ScoreRule, SeenSlots, SlotSet, attention_state_len};
use crate::Kernels;
use crate::dispatch::Kernel;
use crate::vector::{Simd, Stretch};

/// The most rows of a tile whose sums, two registers of each, leave some of 16 registers for what they are made of.
const TILE_ROWS: usize = 6;
/// As [`TILE_ROWS`], of 32 registers of 16 lanes.
pub(super) const WIDE_TILE_ROWS: usize = 12;

/// The most rows of a tile.
struct MaxTileRows;

impl Kernel for MaxTileRows {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        if S::LANES == 16 { WIDE_TILE_ROWS } else { TILE_ROWS }
    }
}

/// A page and what its scores need. Its size is that of the layout.
pub(super) struct Page<'a> {
    pub kernels: Kernels,
    pub layout: &'a KvLayout,
    pub bytes: &'a [u8],
    pub rule: &'a ScoreRule,
    /// Where the stream of pages goes on, while it lies in memory still, as it does for the first tile.
    pub ahead: Option<Stretch>,
}

/// One row of a tile: a query and the slots that it sees, not empty.
#[derive(Clone, Copy, Default)]
pub(super) struct TileRow<'a> {
    q: &'a [f32],
    pub start: usize,
    pub end: usize,
    /// Of the slots between, those that it sees; otherwise all.
    pub chosen: Option<&'a SlotSet>,
    pub alibi: Option<Alibi>,
}

impl<'a> TileRow<'a> {
    fn new(row: &QueryRow<'a>) -> TileRow<'a> {
        let Range { start, end } = row.seen.span();
        TileRow {
            q: row.q,
            start,
            end,
            chosen: match row.seen {
                SeenSlots::Range(_) => None,
                SeenSlots::Chosen(set) => Some(set),
            },
            alibi: row.alibi,
        }
    }
}

impl Page<'_> {
    /// Attends from `rows` and merges into their `states`; all fit the layout.
    pub(super) fn attend(mut self, rows: &[QueryRow<'_>], states: &mut [f32]) {
        let states = states.chunks_exact_mut(attention_state_len(self.layout.v_dim));
        let mut rows = rows.iter().zip(states).filter(|(row, _)| !row.seen.span().is_empty());
        let max_rows = self.kernels.run(MaxTileRows);
        loop {
            let mut tile = [TileRow::default(); WIDE_TILE_ROWS];
            let mut states: [&mut [f32]; WIDE_TILE_ROWS] = Default::default();
            let mut count = 0;
            // The tile is asked first: a full one must not take a row.
            for ((tile_row, tile_state), (row, state)) in
                tile.iter_mut().zip(&mut states).take(max_rows).zip(rows.by_ref())
            {
                *tile_row = TileRow::new(row);
                *tile_state = state;
                count += 1;
            }
            if count == 0 {
                return;
            }
            self.attend_some(&tile[..count], &mut states[..count]);
            self.ahead = None;
        }
    }

    fn attend_some(&self, tile: &[TileRow<'_>], states: &mut [&mut [f32]]) {
        match tile.len() {
            1 => self.attend_tile::<1>(tile, states),
            2 => self.attend_tile::<2>(tile, states),
            3 => self.attend_tile::<3>(tile, states),
            4 => self.attend_tile::<4>(tile, states),
            5 => {
                self.attend_tile::<3>(&tile[..3], &mut states[..3]);
                self.attend_tile::<2>(&tile[3..], &mut states[3..]);
            }
            TILE_ROWS => self.attend_tile::<TILE_ROWS>(tile, states),
            WIDE_TILE_ROWS => self.attend_tile::<WIDE_TILE_ROWS>(tile, states),
            rows => {
                self.attend_tile::<TILE_ROWS>(&tile[..TILE_ROWS], &mut states[..TILE_ROWS]);
                self.attend_some(&tile[TILE_ROWS..rows], &mut states[TILE_ROWS..rows]);
            }
        }
    }

    /// Attends from the first `R` rows of `tile`.
    fn attend_tile<const R: usize>(&self, tile: &[TileRow<'_>], states: &mut [&mut [f32]]) {
        let (Some(tile), Some(states)) = (tile.first_chunk::<R>(), states.first_chunk_mut::<R>()) else {
            return;
        };
        match self.layout.element {
            KvElement::F16 => self.attend_rows::<F16, F16, R>(tile, states),
            KvElement::F32 => self.attend_rows::<F32, F32, R>(tile, states),
            KvElement::Q8_0 => self.attend_rows::<Q8, Q8, R>(tile, states),
            KvElement::Q4 => self.attend_rows::<Q8, Q4, R>(tile, states),
        }
    }

    /// Keys are stored as `K`, values as `V`.
    fn attend_rows<K: Element, V: Element, const R: usize>(
        &self,
        tile: &[TileRow<'_>; R],
        states: &mut [&mut [f32]; R],
    ) {
        let (keys, values) = self.bytes.split_at(self.layout.v_offset_bytes());
        let start = tile.iter().map(|row| row.start).min().unwrap_or(0);
        let end = tile.iter().map(|row| row.end).max().unwrap_or(0);
        let mut weights = [[0.0; SEGMENT_POSITIONS]; R];
        self.kernels.run(Scores::<K, R> {
            layout: self.layout,
            keys,
            queries: tile.map(|row| row.q),
            panels: start / PANEL_POSITIONS..end.div_ceil(PANEL_POSITIONS),
            scores: &mut weights,
            ahead: self.ahead,
            element: PhantomData,
        });
        let mut merges = [Merge::default(); R];
        self.kernels.run(Softmax {
            dots: &mut weights,
            rows: tile,
            states,
            merges: &mut merges,
            rule: self.rule,
        });
        for first in (0..self.layout.v_dim).step_by(BLOCK_COLUMNS) {
            let padded = first..self.layout.v_stride().min(first + BLOCK_COLUMNS);
            let block = first..self.layout.v_dim.min(first + BLOCK_COLUMNS);
            let mut output = [[0.0; BLOCK_COLUMNS]; R];
            self.weigh_values::<V, R>(values, tile, &weights, &mut output, padded);
            for (r, state) in states.iter_mut().enumerate() {
                self.kernels.run(MergeOutput {
                    merge: merges[r],
                    output: &mut state[2..][block.clone()],
                    next: &output[r][..block.len()],
                });
            }
        }
    }

    /// Adds weight · value to the `output` of every row, over the positions it sees, for some columns of V.
    fn weigh_values<E: Element, const R: usize>(
        &self,
        values: &[u8],
        tile: &[TileRow<'_>; R],
        weights: &[PerPosition; R],
        output: &mut [[f32; BLOCK_COLUMNS]; R],
        columns: Range<usize>,
    ) {
        // Positions that all rows see go through V together, the others row by row: a hidden value must not be touched.
        let start = tile.iter().map(|row| row.start).max().unwrap_or(0);
        let end = tile.iter().map(|row| row.end).min().unwrap_or(0);
        let shared = if start < end {
            start..end
        } else {
            SEGMENT_POSITIONS..SEGMENT_POSITIONS
        };
        let before = tile.map(|row| row.start..row.end.min(shared.start));
        let after = tile.map(|row| row.start.max(shared.end)..row.end);
        self.weigh_rows::<E, R>(values, &before, weights, output, columns.clone());
        self.kernels.run(WeighValues::<E, R> {
            layout: self.layout,
            values,
            positions: shared,
            weights: weights.each_ref(),
            columns: columns.clone(),
            output: output.each_mut(),
            ahead: self.ahead,
            element: PhantomData,
        });
        self.weigh_rows::<E, R>(values, &after, weights, output, columns);
    }

    /// The same row by row, each over its own range of positions.
    fn weigh_rows<E: Element, const R: usize>(
        &self,
        values: &[u8],
        positions: &[Range<usize>; R],
        weights: &[PerPosition; R],
        output: &mut [[f32; BLOCK_COLUMNS]; R],
        columns: Range<usize>,
    ) {
        for (r, positions) in positions
            .iter()
            .enumerate()
            .filter(|(_, positions)| !positions.is_empty())
        {
            self.kernels.run(WeighValues::<E, 1> {
                layout: self.layout,
                values,
                positions: positions.clone(),
                weights: [&weights[r]],
                columns: columns.clone(),
                output: [&mut output[r]],
                ahead: None,
                element: PhantomData,
            });
        }
    }
}
