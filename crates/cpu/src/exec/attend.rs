//! Attention: the threads share tiles of a few tokens and one KV head; where there are few of them, as in decoding, their segments.

use std::ops::Range;

use goldcrest_kernels::{
    Alibi, Kernels, KvLayout, QueryRow, SEGMENT_POSITIONS, ScoreRule, SeenSlots, SlotSet, Visible, attention_state_len,
    clear_attention_states, visible_segments, visible_slots,
};
use goldcrest_model::plan::{Kv, Op, Plan};
use goldcrest_model::spec;

use super::choose::chosen_slots;
use super::rows::over_rows;
use super::size::{Calls, resize_exact};
use super::{Call, Row, split_buffers};
use crate::pool::{Part, Parts, Tiles};
use crate::{Cpu, CpuError, State};

/// Most query rows that read a page side by side: whole tiles of the kernel, which has 6 rows or 12.
const TILE_ROWS: usize = 48;

/// Pairs of a token and a KV head, for each thread, below which the threads share segments instead.
const FEW_TILES: usize = 4;

/// What the tiles of one attention op share.
struct Attention<'a> {
    cpu: &'a Cpu,
    states: &'a [&'a mut State],
    rows: &'a [Row],
    kv: usize,
    layout: KvLayout,
    visible: Visible,
    rule: ScoreRule,
    /// One a query head.
    sinks: Option<&'a [f32]>,
    alibi: bool,
    heads: usize,
    /// `[rows, heads · k_dim]`, rotated if the keys are.
    query: &'a [f32],
    query_width: usize,
    /// `[rows, keep]`, and keep: the positions that count.
    chosen: Option<(&'a [f32], usize)>,
    /// Query heads that share a KV head.
    group: usize,
}

impl Call<'_, '_> {
    pub fn attend(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::Attend {
            kv,
            heads,
            visible,
            scale,
            softcap,
            sinks,
            alibi,
            chosen,
            query,
            out,
        } = *op
        else {
            return Ok(());
        };
        let cpu = self.cpu;
        let Some(first) = self.states.first() else {
            return Ok(());
        };
        let layout = *first.layer(kv.0).layout();
        let cache = self.program.plan.kvs[kv.0];
        let group = heads / cache.heads;
        let (query_width, out_width) = (self.width(query), self.width(out));
        let rows = self.scratch.rows.len();
        self.scratch.forget_packed(out);
        let super::Scratch {
            buffers,
            rows: row_places,
            attention: attention_states,
            rotated,
            ..
        } = &mut *self.scratch;
        let (reads, outputs) = split_buffers(buffers, out);
        let queries = reads.get(query, rows * query_width);
        let query = rotated_as_keys(cpu, &layout, queries, query_width, rotated)?;
        let chosen = chosen.map(|id| {
            let keep = self.program.plan.buffer(id).width;
            (reads.get(id, rows * keep), keep)
        });
        let attention = Attention {
            cpu,
            states: &*self.states,
            rows: row_places,
            kv: kv.0,
            layout,
            visible: kernel_visible(visible),
            rule: ScoreRule { scale, softcap },
            sinks: sinks.map(|id| self.program.weights.vector(id)),
            alibi,
            heads,
            query,
            query_width,
            chosen,
            group,
        };
        attention.run(&mut outputs[..rows * out_width], attention_states)
    }
}

/// The heads of `query`, rotated in the memory of `rotated` if their keys have been.
fn rotated_as_keys<'a>(
    cpu: &Cpu,
    layout: &KvLayout,
    query: &'a [f32],
    query_width: usize,
    rotated: &'a mut Vec<f32>,
) -> Result<&'a [f32], CpuError> {
    if !layout.element.is_quantized() {
        return Ok(query);
    }
    rotated.clear();
    rotated.reserve_exact(query.len());
    rotated.extend_from_slice(query);
    over_rows(&cpu.pool, rotated, query_width, &|_, rows| {
        rotate_keys(cpu.kernels, layout, rows);
    })?;
    Ok(rotated)
}

/// Rotates the quantised part of keys, or of the queries for them.
pub fn rotate_keys(kernels: Kernels, layout: &KvLayout, keys: &mut [f32]) {
    let leading = layout.leading_k_dims();
    if leading == 0 {
        return;
    }
    if leading == layout.k_dim {
        kernels.rotate_signed(keys, leading);
        return;
    }
    for key in keys.chunks_exact_mut(layout.k_dim) {
        kernels.rotate_signed(&mut key[..leading], leading);
    }
}

impl Attention<'_> {
    /// Writes the `[rows, heads · v_dim]` outputs.
    fn run(&self, outputs: &mut [f32], states: &mut Vec<f32>) -> Result<(), CpuError> {
        let pairs = self.rows.len() * self.heads / self.group;
        let segments = self.rows.iter().map(|row| self.segments(row).len()).max();
        match segments {
            Some(segments) if segments > 1 && pairs < FEW_TILES * self.cpu.threads() => {
                self.run_by_segment(outputs, states, segments)
            }
            _ => self.run_by_tokens(outputs, states),
        }
    }

    /// The threads share the segments of every row and KV head. `most` is the largest number of segments that a row sees.
    fn run_by_segment(&self, outputs: &mut [f32], states: &mut Vec<f32>, most: usize) -> Result<(), CpuError> {
        let KvLayout { v_dim, .. } = self.layout;
        let pool = &self.cpu.pool;
        let kv_heads = self.heads / self.group;
        let len = self.group * attention_state_len(v_dim);
        let own_len = pool.threads() * len;
        resize_exact(states, own_len + self.rows.len() * kv_heads * most * len);
        let (own, of_segments) = states.split_at_mut(own_len);
        let items = Tiles::new(of_segments, len, (1, len));
        pool.run(&|_| {
            while let Some(mut item) = items.next() {
                let index = item.rows().start;
                let (pair, nth) = (index / most, index % most);
                let (token, kv_head) = (pair / kv_heads, pair % kv_heads);
                let segments = self.segments(&self.rows[token]);
                let state = item.row_mut(index);
                clear_attention_states(state, v_dim);
                if nth < segments.len() {
                    // The thread's own next item, if the others go as fast.
                    let next = nth + pool.threads();
                    let next = (next < segments.len()).then_some(segments.start + next);
                    self.attend_segment(&(token..token + 1), kv_head, (segments.start + nth, next), state);
                }
            }
        })?;
        let of_pairs = &*of_segments;
        let own = Parts::of_slice(own, len, pool.threads());
        let tiles = Tiles::new(outputs, self.heads * v_dim, (1, self.group * v_dim));
        pool.run(&|thread| {
            let states = own.take_slice(thread);
            while let Some(mut tile) = tiles.next() {
                let token = tile.rows().start;
                let kv_head = tile.columns().start / (self.group * v_dim);
                clear_attention_states(states, v_dim);
                let of_pair = &of_pairs[(token * kv_heads + kv_head) * most * len..][..most * len];
                for next in of_pair.chunks_exact(len) {
                    self.cpu.kernels.merge_attention(states, next, v_dim);
                }
                self.finish(kv_head, states, tile.row_mut(token));
            }
        })?;
        Ok(())
    }

    /// The threads share tiles of a few tokens and a KV head, which see a page side by side.
    fn run_by_tokens(&self, outputs: &mut [f32], states: &mut Vec<f32>) -> Result<(), CpuError> {
        let KvLayout { v_dim, .. } = self.layout;
        let pool = &self.cpu.pool;
        let tile_tokens = (TILE_ROWS / self.group).max(1);
        let state_len = tile_tokens * self.group * attention_state_len(v_dim);
        resize_exact(states, state_len * pool.threads());
        let states = Parts::of_slice(states, state_len, pool.threads());
        let tiles = Tiles::new(outputs, self.heads * v_dim, (tile_tokens, self.group * v_dim));
        pool.run(&|thread| {
            let states = states.take_slice(thread);
            while let Some(tile) = tiles.next() {
                self.tile(tile, states);
            }
        })?;
        Ok(())
    }

    /// A tile of tokens and the query heads of one KV head. Tokens of one sequence follow each other; each such run goes by itself.
    fn tile(&self, mut out: Part<f32>, states: &mut [f32]) {
        let mut first = out.rows().start;
        while first < out.rows().end {
            let part = self.rows[first].part;
            let run = self.rows[first..out.rows().end]
                .iter()
                .take_while(|row| row.part == part)
                .count();
            self.run_of_tokens(first..first + run, &mut out, states);
            first += run;
        }
    }

    fn run_of_tokens(&self, tokens: Range<usize>, out: &mut Part<f32>, states: &mut [f32]) {
        let v_dim = self.layout.v_dim;
        let kv_head = out.columns().start / (self.group * v_dim);
        let state_len = attention_state_len(v_dim);
        let states = &mut states[..tokens.len() * self.group * state_len];
        clear_attention_states(states, v_dim);
        // Positions rise, so the first token looks back furthest and the last one reaches furthest.
        let oldest = self.segments(&self.rows[tokens.start]).start;
        let newest = self.segments(&self.rows[tokens.end - 1]).end;
        for segment in oldest..newest {
            let next = (segment + 1 < newest).then_some(segment + 1);
            self.attend_segment(&tokens, kv_head, (segment, next), states);
        }
        for (token, states) in tokens.zip(states.chunks_exact(self.group * state_len)) {
            self.finish(kv_head, states, out.row_mut(token));
        }
    }

    fn segments(&self, row: &Row) -> Range<usize> {
        visible_segments(row.position, self.visible)
    }

    /// Attends from the heads of some tokens of one sequence to a page, if it is held, and merges the result into their states. `next` is
    /// the segment that the thread reads next.
    fn attend_segment(
        &self,
        tokens: &Range<usize>,
        kv_head: usize,
        (segment, next): (usize, Option<usize>),
        states: &mut [f32],
    ) {
        let pages = self.states[self.rows[tokens.start].part].layer(self.kv);
        let Some(page) = pages.page(segment, kv_head) else {
            return;
        };
        let next = next.and_then(|next| pages.page(next, kv_head));
        let state_len = attention_state_len(self.layout.v_dim);
        let sets = self.chosen_slots(tokens, segment);
        for chunk in (0..tokens.len() * self.group).step_by(TILE_ROWS) {
            let count = TILE_ROWS.min(tokens.len() * self.group - chunk);
            let rows: [QueryRow; TILE_ROWS] = std::array::from_fn(|i| {
                let index = chunk + i.min(count - 1);
                let (token, of_group) = (index / self.group, index % self.group);
                let set = sets.as_ref().map(|sets| &sets[token]);
                self.query_row(tokens.start + token, (kv_head, of_group), segment, set)
            });
            let states = &mut states[chunk * state_len..][..count * state_len];
            self.cpu
                .kernels
                .attend_segment(&self.layout, (page, next), &self.rule, &rows[..count], states);
        }
    }

    /// The outputs of one token's heads, from their states after all segments.
    fn finish(&self, kv_head: usize, states: &[f32], out: &mut [f32]) {
        let v_dim = self.layout.v_dim;
        let states = states.chunks_exact(attention_state_len(v_dim));
        for (j, (state, head)) in states.zip(out.chunks_exact_mut(v_dim)).enumerate() {
            let sink = self.sinks.map(|sinks| sinks[kv_head * self.group + j]);
            self.cpu.kernels.finish_attention(state, sink, head);
            if self.layout.element.is_quantized() {
                self.cpu.kernels.unrotate_signed(head, v_dim);
            }
        }
    }

    /// The slots of a page that count for each token of a tile, where they are chosen.
    fn chosen_slots(&self, tokens: &Range<usize>, segment: usize) -> Option<[SlotSet; TILE_ROWS]> {
        let (chosen, keep) = self.chosen?;
        let mut sets = [SlotSet::default(); TILE_ROWS];
        for (set, token) in sets.iter_mut().zip(tokens.clone()) {
            *set = chosen_slots(&chosen[token * keep..][..keep], segment).collect();
        }
        Some(sets)
    }

    /// What one of the query heads of a KV head sees of a page; of chosen slots only `set`.
    fn query_row<'s>(
        &'s self,
        token: usize,
        (kv_head, of_group): (usize, usize),
        segment: usize,
        set: Option<&'s SlotSet>,
    ) -> QueryRow<'s> {
        let head = kv_head * self.group + of_group;
        let position = self.rows[token].position;
        let q = &self.query[token * self.query_width + head * self.layout.k_dim..][..self.layout.k_dim];
        QueryRow {
            q,
            alibi: self
                .alibi
                .then(|| Alibi::new(alibi_slope(head, self.heads), position, segment)),
            seen: match set {
                Some(set) => SeenSlots::Chosen(set),
                None => SeenSlots::Range(visible_slots(position, self.visible, segment)),
            },
        }
    }
}

/// Most bytes of attention states of an op; see [`Attention::run`].
pub fn most_state_bytes(plan: &Plan, op: &Op, calls: Calls) -> usize {
    let Op::Attend { kv, heads, visible, .. } = *op else {
        return 0;
    };
    let Kv {
        heads: kv_heads,
        value_dim,
        ..
    } = plan.kvs[kv.0];
    let group = heads / kv_heads;
    let pair = group * attention_state_len(value_dim);
    let seen = match visible {
        spec::Visible::All => calls.capacity,
        spec::Visible::Window(positions) | spec::Visible::Chunk(positions) => calls.capacity.min(positions),
    };
    // A window begins and ends in the middle of a segment.
    let segments = seen.div_ceil(SEGMENT_POSITIONS) + 1;
    let items = segments.saturating_mul(FEW_TILES * calls.threads);
    let by_segment = items.saturating_add(calls.threads).saturating_mul(pair);
    let by_tokens = calls.threads * (TILE_ROWS / group).max(1) * pair;
    by_segment.max(by_tokens).saturating_mul(size_of::<f32>())
}

pub fn kernel_visible(visible: spec::Visible) -> Visible {
    match visible {
        spec::Visible::All => Visible::All,
        spec::Visible::Window(positions) => Visible::Window(positions),
        spec::Visible::Chunk(positions) => Visible::Chunk(positions),
    }
}

/// The slope of a head (Press et al. 2021): a geometric row down to 2⁻⁸ for a power of two heads; between two powers, the steps between.
fn alibi_slope(head: usize, heads: usize) -> f32 {
    let whole = 1 << heads.ilog2();
    let (step, index) = if head < whole {
        (8.0 / whole as f64, head + 1)
    } else {
        (4.0 / whole as f64, 2 * (head - whole) + 1)
    };
    libm::exp2(-step * index as f64) as f32
}
