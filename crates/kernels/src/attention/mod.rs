//! Softmax attention over KV pages, segment by segment.
//!
//! The positions of a sequence are cut into segments of 256, counted from its start; a segment is one [`kv`] page. For one query row
//! and the keys `k` of a segment that it sees:
//!
//! ```text
//! s[k]  = q · key[k]          one fma chain from +0 over the dimensions in order
//! s[k]  = s[k] · scale,       then fma(slope, f32(k − position), s[k]) where the head has a slope (ALiBi),
//!                             then cap · tanh(s[k] / cap) where the layer has a cap
//! m     = max s[k]
//! p[k]  = exp(s[k] − m)
//! l     = Σ p[k]              chain k % 16, then the 16 chains by halves (8, 4, 2, 1)
//! o[d]  = Σ p[k]·value[k][d]  one fma chain from +0 over the keys in order
//! ```
//!
//! A partial result is (m, l, o). Segments are merged in rising order; one without visible keys is skipped, and the first is taken as
//! it is. Merging (m₂, l₂, o₂) into (m, l, o):
//!
//! ```text
//! M = max(m, m₂),  a = exp(m − M),  b = exp(m₂ − M)
//! l = fma(l, a, l₂·b),  o[d] = fma(o[d], a, o₂[d]·b),  m = M
//! ```
//!
//! A sink is merged last, as (logit, 1, 0). The output is o[d] / l, and 0 for a row that sees no key at all.
//!
//! So a row's bits depend on nothing but its own query and keys: not on the rows computed beside it, nor on which thread computes
//! which segment. Keys that a row does not see take no part: their scores are dropped and their values never multiplied, so unused
//! slots of a page may hold anything. Where keys are chosen for a row ([`index`]), those between that were not weigh exactly 0.

mod block;
mod index;
mod kv;
mod page;
mod segment;
mod slots;
mod state;
mod stored;

use std::ops::Range;

pub use index::{IndexQuery, choose_largest};
pub use kv::{KvElement, KvLayout, SEGMENT_POSITIONS};

pub use slots::{SeenSlots, SlotSet};

use crate::Kernels;
use crate::vector::Stretch;
use segment::Page;
use state::{FinishRow, MergeRows};

/// How a dot product becomes a score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRule {
    /// Factor of every dot product, usually 1/√k_dim.
    pub scale: f32,
    /// Scores become cap·tanh(score/cap).
    pub softcap: Option<f32>,
}

/// A query row as one segment sees it.
#[derive(Clone, Debug)]
pub struct QueryRow<'a> {
    /// The query of one head, of `k_dim` numbers.
    pub q: &'a [f32],
    /// The slots of the page that the row sees; see [`visible_slots`].
    pub seen: SeenSlots<'a>,
    /// Bias of the head by distance.
    pub alibi: Option<Alibi>,
}

/// A bias that falls with the distance of a key (ALiBi): the slope times the key's position minus the query's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alibi {
    /// Of the head; positive.
    pub slope: f32,
    /// Position of the query, counted from the first slot of the page.
    pub query_slot: usize,
}

impl Alibi {
    /// The bias of a row at `position` for the keys of `segment`, none of which comes after it.
    pub const fn new(slope: f32, position: usize, segment: usize) -> Alibi {
        Alibi {
            slope,
            query_slot: position.saturating_sub(segment * SEGMENT_POSITIONS),
        }
    }
}

/// Which keys a row sees, among those up to its own position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Visible {
    /// All of them.
    All,
    /// The last so many, its own included (sliding window).
    Window(usize),
    /// Those of its chunk, where the sequence is cut into chunks of so many positions from its start.
    Chunk(usize),
}

impl Visible {
    /// The positions that a row at `position` sees.
    pub fn positions(self, position: usize) -> Range<usize> {
        let end = position + 1;
        let start = match self {
            Visible::All => 0,
            Visible::Window(window) => end.saturating_sub(window),
            Visible::Chunk(chunk) => position - position % chunk.max(1),
        };
        start..end
    }
}

/// The segments with keys that a row at `position` sees.
pub fn visible_segments(position: usize, visible: Visible) -> Range<usize> {
    let positions = visible.positions(position);
    positions.start / SEGMENT_POSITIONS..positions.end.div_ceil(SEGMENT_POSITIONS)
}

/// The slots of the page of `segment` that a row at `position` sees; empty if none.
pub fn visible_slots(position: usize, visible: Visible, segment: usize) -> Range<usize> {
    let positions = visible.positions(position);
    let first = segment * SEGMENT_POSITIONS;
    let slot = |position: usize| position.saturating_sub(first).min(SEGMENT_POSITIONS);
    slot(positions.start)..slot(positions.end)
}

/// Length in f32 of the state of one row, which is `[m, l, o[0], …, o[v_dim − 1]]`.
pub const fn attention_state_len(v_dim: usize) -> usize {
    2 + v_dim
}

/// Makes every state in `states` that of a row which has seen no key.
///
/// # Panics
/// If `states` is not a whole number of states: a caller's bug.
pub fn clear_attention_states(states: &mut [f32], v_dim: usize) {
    check_states(states, v_dim);
    states.fill(0.0);
    states
        .chunks_exact_mut(attention_state_len(v_dim))
        .for_each(|state| state[0] = f32::NEG_INFINITY);
}

fn check_states(states: &[f32], v_dim: usize) {
    let len = attention_state_len(v_dim);
    assert!(
        states.len().is_multiple_of(len),
        "{} numbers as attention states of {len}",
        states.len()
    );
}

impl Kernels {
    /// Attends from `rows`, which share one KV head, to one segment and merges the result into their states.
    ///
    /// `states` holds one state per row, in the order of `rows` ([`attention_state_len`], [`clear_attention_states`]). Call it for the
    /// segments of a row in rising order; or, to share the segments of a row among threads, let each segment have its own cleared state
    /// and merge those in rising order by [`Kernels::merge_attention`]: both give the same bits. Rows that see nothing here keep their
    /// state. Rows are fastest side by side if they see the same slots, as the query heads of one token do. `next` is the page that is
    /// read next, if that is known; no bit depends on it.
    ///
    /// # Panics
    /// If the page, a query or `states` has another length than `layout` says, or a range exceeds the page: a caller's bug.
    pub fn attend_segment(
        self,
        layout: &KvLayout,
        (page, next): (&[u8], Option<&[u8]>),
        rule: &ScoreRule,
        rows: &[QueryRow<'_>],
        states: &mut [f32],
    ) {
        assert_eq!(page.len(), layout.page_bytes(), "page size of {layout:?}");
        assert_eq!(
            states.len(),
            rows.len() * attention_state_len(layout.v_dim),
            "states of {} rows",
            rows.len()
        );
        for row in rows {
            assert_eq!(row.q.len(), layout.k_dim, "query length");
            assert!(row.seen.span().end <= SEGMENT_POSITIONS, "visible slots {:?}", row.seen);
        }
        let page = Page {
            kernels: self,
            layout,
            bytes: page,
            rule,
            ahead: Some(Stretch::new(page, next)),
        };
        page.attend(rows, states);
    }

    /// Merges the states `next` of later segments into `states`, row by row.
    ///
    /// # Panics
    /// If the two differ in length or are not whole states: a caller's bug.
    pub fn merge_attention(self, states: &mut [f32], next: &[f32], v_dim: usize) {
        check_states(states, v_dim);
        assert_eq!(states.len(), next.len(), "states to merge");
        self.run(MergeRows { states, next, v_dim });
    }

    /// The attention output of a row, from its `state` after all segments: `out` holds `v_dim` numbers. The `sink` is a logit that joins
    /// the softmax without a value.
    ///
    /// # Panics
    /// If `state` does not belong to an output of this length: a caller's bug.
    pub fn finish_attention(self, state: &[f32], sink: Option<f32>, out: &mut [f32]) {
        assert_eq!(
            state.len(),
            attention_state_len(out.len()),
            "state of an output of {}",
            out.len()
        );
        self.run(FinishRow { state, sink, out });
    }
}
