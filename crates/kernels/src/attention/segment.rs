//! Attention of many rows to one page, a tile of a few rows at a time.
//!
//! The rows of one tile read the page as it is, one sequential stream. More rows share its panels, one after the other: a panel is decoded
//! once and stays in the first cache while all tiles use it.

use std::marker::PhantomData;
use std::ops::Range;

use super::kv::{KvElement, KvLayout, PANEL_POSITIONS, SEGMENT_POSITIONS};
use super::page::{BLOCK_COLUMNS, DecodeKeys, DecodeValues, Element, F16, F32, Q4, Q8, Scores, WeighValues};
use super::state::{Merge, MergeOutput, PerPosition, Softmax};
use super::{Alibi, QueryRow, ScoreRule, SeenSlots, SlotSet, attention_state_len};
use crate::Kernels;

/// The most rows of a tile.
const MAX_TILE_ROWS: usize = 6;

/// The most rows that share the panels of a page.
const MAX_ROWS: usize = 32;

/// Evaluates an expression with `$R` the number of rows of a tile, which is not empty.
macro_rules! match_rows {
    ($rows:expr; $R:ident => $body:expr) => {
        match_rows!(@ $rows; $R => $body; 1 2 3 4 5 6)
    };
    (@ $rows:expr; $R:ident => $body:expr; $($count:literal)*) => {
        match $rows {
            $($count => {
                const $R: usize = $count;
                $body
            })*
            rows => unreachable!("a tile of {rows} rows"),
        }
    };
}

/// Memory that attention to a page needs beside its results. It grows to what it is used for.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    /// Of each row: dot products, then weights.
    weights: Vec<PerPosition>,
    /// Of each row: sums of the columns at hand.
    outputs: Vec<[f32; BLOCK_COLUMNS]>,
    /// One panel of keys or values, decoded.
    panel: Vec<f32>,
}

impl AttentionScratch {
    /// Makes room for `rows` and the panels of a layout of f32.
    fn fit(&mut self, rows: usize, decoded: &KvLayout) {
        let panel = decoded.k_panel_bytes().max(decoded.v_panel_bytes()) / size_of::<f32>();
        self.panel.resize(self.panel.len().max(panel), 0.0);
        self.weights
            .resize(self.weights.len().max(rows), [0.0; SEGMENT_POSITIONS]);
        self.outputs.resize(self.outputs.len().max(rows), [0.0; BLOCK_COLUMNS]);
    }
}

/// Some panels of keys or values.
#[derive(Clone, Copy)]
struct Stream<'a> {
    layout: &'a KvLayout,
    /// From the first panel on.
    bytes: &'a [u8],
    /// Whether they lie in memory still.
    ahead: bool,
}

impl<'a> Stream<'a> {
    /// The stream of values of `all` positions from the panel of the first of `some` of them on.
    fn from(self, some: &Range<usize>, all: &Range<usize>) -> Stream<'a> {
        let panel = some.start / PANEL_POSITIONS - all.start / PANEL_POSITIONS;
        let bytes = panel * self.layout.v_panel_bytes();
        Stream {
            bytes: &self.bytes[bytes.min(self.bytes.len())..],
            ..self
        }
    }
}

/// The bytes of decoded numbers.
fn bytes_of(floats: &[f32]) -> &[u8] {
    // SAFETY: every byte of an f32 is a byte, and the slice is borrowed as long.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

/// A page and what its scores need. Its size is that of the layout.
pub(super) struct Page<'a> {
    pub kernels: Kernels,
    pub layout: &'a KvLayout,
    pub bytes: &'a [u8],
    pub rule: &'a ScoreRule,
}

/// One row of a tile: a query and the slots that it sees, not empty.
#[derive(Clone, Copy, Default)]
struct TileRow<'a> {
    q: &'a [f32],
    start: usize,
    end: usize,
    /// Of the slots between, those that it sees; otherwise all.
    chosen: Option<&'a SlotSet>,
    alibi: Option<Alibi>,
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

impl<'a> Page<'a> {
    /// Attends from `rows` and merges into their `states`; all fit the layout.
    pub(super) fn attend(&self, rows: &[QueryRow<'_>], states: &mut [f32], scratch: &mut AttentionScratch) {
        let states = states.chunks_exact_mut(attention_state_len(self.layout.v_dim));
        let mut rows = rows.iter().zip(states).filter(|(row, _)| !row.seen.span().is_empty());
        loop {
            let mut some = [TileRow::default(); MAX_ROWS];
            let mut states: [&mut [f32]; MAX_ROWS] = Default::default();
            let mut count = 0;
            // The places are asked first: when they are full, no row must be taken.
            for ((place, state_place), (row, state)) in some.iter_mut().zip(&mut states).zip(rows.by_ref()) {
                *place = TileRow::new(row);
                *state_place = state;
                count += 1;
            }
            if count == 0 {
                return;
            }
            let (some, states) = (&some[..count], &mut states[..count]);
            match self.layout.element {
                KvElement::F16 => self.attend_some::<F16, F16>(some, states, scratch),
                KvElement::F32 => self.attend_some::<F32, F32>(some, states, scratch),
                KvElement::Q8_0 => self.attend_some::<Q8, Q8>(some, states, scratch),
                KvElement::Q4 => self.attend_some::<Q8, Q4>(some, states, scratch),
            }
        }
    }

    /// Keys are stored as `K`, values as `V`.
    fn attend_some<K: Element, V: Element>(
        &self,
        rows: &[TileRow<'_>],
        states: &mut [&mut [f32]],
        scratch: &mut AttentionScratch,
    ) {
        scratch.fit(rows.len(), &self.decoded_layout());
        self.score::<K>(rows, scratch);
        let mut merges = [Merge::default(); MAX_ROWS];
        for (r, row) in rows.iter().enumerate() {
            merges[r] = self.kernels.run(Softmax {
                dots: &mut scratch.weights[r],
                visible: row.start..row.end,
                chosen: row.chosen,
                rule: self.rule,
                alibi: row.alibi,
                state: states[r],
            });
        }
        for first in (0..self.layout.v_dim).step_by(BLOCK_COLUMNS) {
            self.weigh::<V>(rows, first, scratch);
            let block = first..self.layout.v_dim.min(first + BLOCK_COLUMNS);
            for ((state, output), merge) in states.iter_mut().zip(&scratch.outputs).zip(merges) {
                self.kernels.run(MergeOutput {
                    merge,
                    output: &mut state[2..][block.clone()],
                    next: &output[..block.len()],
                });
            }
        }
    }

    /// How panels lie when they are decoded.
    fn decoded_layout(&self) -> KvLayout {
        KvLayout {
            element: KvElement::F32,
            plain_k_dims: 0,
            ..*self.layout
        }
    }

    /// The K part from a panel on.
    fn keys(&self, panel: usize) -> Stream<'a> {
        let keys = &self.bytes[..self.layout.v_offset_bytes()];
        Stream {
            layout: self.layout,
            bytes: &keys[panel * self.layout.k_panel_bytes()..],
            ahead: true,
        }
    }

    /// The V part from a panel on.
    fn values(&self, panel: usize) -> Stream<'a> {
        let values = &self.bytes[self.layout.v_offset_bytes()..];
        Stream {
            layout: self.layout,
            bytes: &values[panel * self.layout.v_panel_bytes()..],
            ahead: true,
        }
    }

    /// The dot products of all rows with the keys that they see.
    fn score<K: Element>(&self, rows: &[TileRow<'_>], scratch: &mut AttentionScratch) {
        let panels = panels(&span(rows));
        let AttentionScratch {
            weights,
            panel: decoded,
            ..
        } = scratch;
        if rows.len() <= MAX_TILE_ROWS {
            let keys = self.keys(panels.start);
            return self.score_tile::<K>(keys, panels, rows, weights);
        }
        let layout = &self.decoded_layout();
        for panel in panels {
            self.kernels.run(DecodeKeys::<K> {
                layout: self.layout,
                keys: self.keys(panel).bytes,
                decoded,
                element: PhantomData,
            });
            let keys = Stream {
                layout,
                bytes: bytes_of(decoded),
                ahead: false,
            };
            for (tile, weights) in rows.chunks(MAX_TILE_ROWS).zip(weights.chunks_mut(MAX_TILE_ROWS)) {
                if self::panels(&span(tile)).contains(&panel) {
                    self.score_tile::<F32>(keys, panel..panel + 1, tile, weights);
                }
            }
        }
    }

    /// The dot products of the rows of one tile with the keys of `panels`, which the stream begins with.
    fn score_tile<E: Element>(
        &self,
        keys: Stream<'_>,
        panels: Range<usize>,
        rows: &[TileRow<'_>],
        weights: &mut [PerPosition],
    ) {
        match_rows!(rows.len(); R => {
            let mut weights = weights.iter_mut();
            self.kernels.run(Scores::<E, R> {
                layout: keys.layout,
                keys: keys.bytes,
                queries: std::array::from_fn(|r| rows[r].q),
                panels,
                scores: std::array::from_fn(|_| weights.next().expect("weights of every row")),
                ahead: keys.ahead,
                element: PhantomData,
            })
        })
    }

    /// The outputs of all rows, as far as this page goes: some columns from `first` on.
    fn weigh<V: Element>(&self, rows: &[TileRow<'_>], first: usize, scratch: &mut AttentionScratch) {
        let columns = first..self.layout.v_stride().min(first + BLOCK_COLUMNS);
        let AttentionScratch {
            weights,
            outputs,
            panel: decoded,
        } = scratch;
        outputs[..rows.len()]
            .iter_mut()
            .for_each(|output| output[..columns.len()].fill(0.0));
        let positions = span(rows);
        if rows.len() <= MAX_TILE_ROWS {
            let values = self.values(positions.start / PANEL_POSITIONS);
            return self.weigh_tile::<V>(values, (positions, columns), (rows, weights), outputs);
        }
        let layout = &self.decoded_layout();
        for panel in panels(&positions) {
            self.kernels.run(DecodeValues::<V> {
                layout: self.layout,
                values: self.values(panel).bytes,
                columns: columns.clone(),
                decoded,
                element: PhantomData,
            });
            let values = Stream {
                layout,
                bytes: bytes_of(decoded),
                ahead: false,
            };
            let of_panel = panel * PANEL_POSITIONS..(panel + 1) * PANEL_POSITIONS;
            let outputs = outputs.chunks_mut(MAX_TILE_ROWS);
            let tiles = rows.chunks(MAX_TILE_ROWS).zip(weights.chunks(MAX_TILE_ROWS));
            for (tile, outputs) in tiles.zip(outputs) {
                self.weigh_tile::<F32>(values, (of_panel.clone(), columns.clone()), tile, outputs);
            }
        }
    }

    /// Adds weight · value to the outputs of the rows of one tile, over those of some positions that each sees. The stream begins with the
    /// panel of the first of the positions.
    fn weigh_tile<E: Element>(
        &self,
        values: Stream<'_>,
        (positions, columns): (Range<usize>, Range<usize>),
        (rows, weights): (&[TileRow<'_>], &[PerPosition]),
        outputs: &mut [[f32; BLOCK_COLUMNS]],
    ) {
        let of_row = |row: &TileRow| row.start.max(positions.start)..row.end.min(positions.end);
        // Positions that all rows see go through V together, the others row by row: a hidden value must not be touched.
        let start = rows.iter().map(|row| of_row(row).start).max().unwrap_or(0);
        let end = rows.iter().map(|row| of_row(row).end).min().unwrap_or(0);
        let shared = if start < end {
            start..end
        } else {
            positions.end..positions.end
        };
        for (r, row) in rows.iter().enumerate() {
            let before = of_row(row).start..of_row(row).end.min(shared.start);
            self.weigh_row::<E>(
                values.from(&before, &positions),
                (before, &columns),
                &weights[r],
                &mut outputs[r],
            );
        }
        if !shared.is_empty() {
            let mut outputs = outputs.iter_mut();
            match_rows!(rows.len(); R => self.kernels.run(WeighValues::<E, R> {
                layout: values.layout,
                values: values.from(&shared, &positions).bytes,
                positions: shared.clone(),
                weights: std::array::from_fn(|r| &weights[r]),
                columns: columns.clone(),
                output: std::array::from_fn(|_| outputs.next().expect("an output of every row")),
                ahead: values.ahead,
                element: PhantomData,
            }));
        }
        for (r, row) in rows.iter().enumerate() {
            let after = of_row(row).start.max(shared.end)..of_row(row).end;
            self.weigh_row::<E>(
                values.from(&after, &positions),
                (after, &columns),
                &weights[r],
                &mut outputs[r],
            );
        }
    }

    /// The same for one row; the stream begins with the panel of the first of its positions, of which there may be none.
    fn weigh_row<E: Element>(
        &self,
        values: Stream<'_>,
        (positions, columns): (Range<usize>, &Range<usize>),
        weights: &PerPosition,
        output: &mut [f32; BLOCK_COLUMNS],
    ) {
        if positions.is_empty() {
            return;
        }
        self.kernels.run(WeighValues::<E, 1> {
            layout: values.layout,
            values: values.bytes,
            positions,
            weights: [weights],
            columns: columns.clone(),
            output: [output],
            ahead: false,
            element: PhantomData,
        });
    }
}

/// The slots from the first to the last that any of the rows sees.
fn span(rows: &[TileRow<'_>]) -> Range<usize> {
    let start = rows.iter().map(|row| row.start).min().unwrap_or(0);
    let end = rows.iter().map(|row| row.end).max().unwrap_or(0);
    start..end
}

/// The panels of some slots.
fn panels(slots: &Range<usize>) -> Range<usize> {
    slots.start / PANEL_POSITIONS..slots.end.div_ceil(PANEL_POSITIONS)
}
