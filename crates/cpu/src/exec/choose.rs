//! The choice of keys by index scores: the threads share the rows.

use goldcrest_kernels::{IndexQuery, KvLayout, SEGMENT_POSITIONS, Visible, choose_largest, visible_slots};
use goldcrest_model::plan::Op;

use super::attend::kernel_visible;
use super::{Call, Row};
use crate::pool::{Parts, Tiles};
use crate::{Cpu, CpuError, State};

/// One thread's work on a row.
#[derive(Default)]
pub struct ChoiceScratch {
    /// Of the visible positions.
    scores: Vec<f32>,
    /// The places of the largest of them.
    places: Vec<u32>,
}

impl ChoiceScratch {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        (self.scores.capacity() + self.places.capacity()) * size_of::<f32>()
    }
}

/// Stands in place of a position after the last chosen one.
const NO_POSITION: f32 = -1.0;

/// An index as one op sees it.
struct Index<'a> {
    cpu: &'a Cpu,
    states: &'a [&'a mut State],
    kv: usize,
    layout: KvLayout,
    visible: Visible,
}

impl Call<'_, '_> {
    /// Writes the positions that each row chooses.
    pub fn choose_keys(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::ChooseKeys {
            kv,
            visible,
            query,
            weights,
            chosen,
        } = *op
        else {
            return Ok(());
        };
        let cpu = self.cpu;
        let Some(first) = self.states.first() else {
            return Ok(());
        };
        let index = Index {
            cpu,
            states: &*self.states,
            kv: kv.0,
            layout: *first.layer(kv.0).layout(),
            visible: kernel_visible(visible),
        };
        let [heads, queries, keep] = [weights, query, chosen].map(|id| self.program.plan.buffer(id).width);
        self.scratch.forget_packed(chosen);
        let super::Scratch {
            buffers, rows, choices, ..
        } = &mut *self.scratch;
        let [query, weights, chosen] = buffers
            .get_disjoint_mut([query.0, weights.0, chosen.0])
            .expect("an op's buffers differ");
        let tiles = Tiles::new(&mut chosen[..rows.len() * keep], keep, (1, keep));
        let own = Parts::of_slice(choices, 1, cpu.pool.threads());
        cpu.pool.run(&|thread| {
            let Some(scratch) = own.take_slice(thread).first_mut() else {
                return;
            };
            while let Some(mut tile) = tiles.next() {
                let row = tile.rows().start;
                let query = IndexQuery {
                    q: &query[row * queries..][..queries],
                    weights: &weights[row * heads..][..heads],
                };
                index.choose(rows[row], query, scratch, tile.row_mut(row));
            }
        })?;
        Ok(())
    }
}

impl Index<'_> {
    fn choose(&self, row: Row, query: IndexQuery, scratch: &mut ChoiceScratch, chosen: &mut [f32]) {
        let positions = self.visible.positions(row.position);
        let ChoiceScratch { scores, places } = scratch;
        scores.clear();
        scores.reserve_exact(positions.len());
        scores.resize(positions.len(), f32::NEG_INFINITY);
        let layer = self.states[row.part].layer(self.kv);
        let mut rest = &mut scores[..];
        for segment in positions.start / SEGMENT_POSITIONS..positions.end.div_ceil(SEGMENT_POSITIONS) {
            let slots = visible_slots(row.position, self.visible, segment);
            let (here, later) = rest.split_at_mut(slots.len());
            rest = later;
            if let Some(page) = layer.page(segment, 0) {
                self.cpu.kernels.index_scores(&self.layout, page, query, slots, here);
            }
        }
        choose_largest(scores, chosen.len(), places);
        let (taken, none) = chosen.split_at_mut(places.len());
        for (position, place) in taken.iter_mut().zip(places) {
            *position = (positions.start + *place as usize) as f32;
        }
        none.fill(NO_POSITION);
    }
}

/// Of the positions chosen for a row those in `segment`, as slots of its page.
pub fn chosen_slots(chosen: &[f32], segment: usize) -> impl Iterator<Item = usize> {
    let first = segment * SEGMENT_POSITIONS;
    let is_before = |end: usize| move |position: &f32| *position != NO_POSITION && (*position as usize) < end;
    let start = chosen.partition_point(is_before(first));
    let end = chosen.partition_point(is_before(first + SEGMENT_POSITIONS));
    chosen[start..end]
        .iter()
        .map(move |position| *position as usize - first)
}
