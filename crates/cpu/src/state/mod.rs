//! What one sequence has left behind in the layers: keys and values ([`kv`]) and recurrent memories ([`recurrent`]).
//!
//! A forward call writes beyond the committed length and into copies of the memories; [`State::commit`] makes both part of the
//! sequence, [`State::drop_uncommitted`] forgets them. States with a common past share it ([`State::fork`]): pages are copied when one of
//! them writes, which is at most the partly filled last page of each layer.

mod kv;
mod recurrent;
mod save;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use goldcrest_kernels::KvElement;
use goldcrest_model::plan::{Plan, RecurrentId};

use crate::buffer::{AllocError, SlabPool};
use kv::KvPages;
pub use kv::kv_bytes_per_token;
use recurrent::Memory;

/// Everything that a sequence has left behind in the layers.
pub struct State {
    /// In the order of [`Plan::kvs`].
    layers: Vec<KvPages>,
    /// In the order of [`Plan::recurrents`].
    memories: Vec<Memory>,
    /// Most positions that the sequence was declared to have: rotations that depend on the length go by it.
    capacity: usize,
    /// Committed positions. What lies beyond is invisible.
    length: usize,
    /// Committed numbers that were stored as the largest of the element type.
    saturated: u64,
    /// The same of the call in progress.
    saturated_now: u64,
}

impl State {
    /// That of an empty sequence; its pages come from `memory`.
    pub fn new(plan: &Plan, element: KvElement, capacity: usize, memory: &Arc<SlabPool>) -> State {
        let layers = plan.kvs.iter().map(|kv| KvPages::new(kv, element, memory));
        State {
            layers: layers.collect(),
            memories: plan.recurrents.iter().map(Memory::new).collect(),
            capacity,
            length: 0,
            saturated: 0,
            saturated_now: 0,
        }
    }

    /// Memory that a state of `capacity` positions takes at most, in calls of at most `max_rows` rows; shared with no other.
    pub fn most_bytes(plan: &Plan, element: KvElement, capacity: usize, max_rows: usize) -> usize {
        let state = State::new(plan, element, capacity, &Arc::default());
        let mut pages: BTreeMap<usize, usize> = BTreeMap::new();
        for layer in &state.layers {
            let (count, bytes) = layer.most_pages(capacity, max_rows);
            let all = pages.entry(bytes).or_default();
            *all = all.saturating_add(count);
        }
        let of_pages = pages
            .into_iter()
            .map(|(bytes, count)| SlabPool::most_bytes(bytes, count));
        // The committed one, and that of the call.
        let memories = plan
            .recurrents
            .iter()
            .map(|memory| memory.len.saturating_mul(2 * size_of::<f32>()));
        of_pages.chain(memories).fold(0, usize::saturating_add)
    }

    /// A second state at the same length, which goes its own way. Costs references, not copies.
    pub fn fork(&self, capacity: usize) -> State {
        State {
            capacity,
            layers: self.layers.clone(),
            memories: self.memories.iter().map(Memory::fork).collect(),
            saturated_now: 0,
            ..*self
        }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn length(&self) -> usize {
        self.length
    }

    pub fn layer(&self, index: usize) -> &KvPages {
        &self.layers[index]
    }

    /// The page of a segment of a layer, `[heads][page_bytes]`, to be written at positions for which [`State::reserve`] has made room.
    pub fn page_mut(&mut self, layer: usize, segment: usize) -> &mut [u8] {
        self.layers[layer].page_mut(segment)
    }

    /// Counts numbers that the call in progress stored as the largest of the element type.
    pub fn add_saturated(&mut self, numbers: usize) {
        self.saturated_now += numbers as u64;
    }

    /// A recurrent memory as the call in progress has it so far: at its first use in a call as the last committed one left it, zeros
    /// before the first row. [`State::reserve`] has made room for it.
    pub fn recurrent_mut(&mut self, id: RecurrentId) -> &mut [f32] {
        self.memories[id.0].pending_mut()
    }

    pub fn saturated(&self) -> u64 {
        self.saturated
    }

    /// Makes room for a call of `rows` more positions. On an error the state holds what it held before.
    pub fn reserve(&mut self, rows: usize) -> Result<(), AllocError> {
        let (length, end) = (self.length, self.length + rows);
        let mut reserved = self.layers.iter_mut().try_for_each(|layer| layer.reserve(length, end));
        if reserved.is_ok() {
            reserved = self.memories.iter_mut().try_for_each(Memory::reserve);
        }
        if reserved.is_err() {
            self.drop_uncommitted();
        }
        reserved
    }

    /// The rows of a finished call become part of the sequence, and windows move on.
    pub fn commit(&mut self, rows: usize) {
        self.length += rows;
        self.saturated += std::mem::take(&mut self.saturated_now);
        for layer in &mut self.layers {
            layer.free_behind_window(self.length);
        }
        self.memories.iter_mut().for_each(Memory::commit);
    }

    /// Forgets what is not committed, as after a failed call.
    pub fn drop_uncommitted(&mut self) {
        self.saturated_now = 0;
        for layer in &mut self.layers {
            layer.truncate(self.length);
        }
        self.memories.iter_mut().for_each(Memory::drop_uncommitted);
    }

    /// Goes back to `length` positions, or says which length is the shortest but 0 that it can go back to. Recurrent memories know no
    /// way back, but every state can become empty.
    pub fn rewind(&mut self, length: usize) -> Result<(), usize> {
        let shortest = if self.memories.is_empty() {
            let shortest = self.layers.iter().map(KvPages::shortest_rewind).max();
            shortest.unwrap_or(0).min(self.length)
        } else {
            self.length
        };
        if length != 0 && !(shortest..=self.length).contains(&length) {
            return Err(shortest);
        }
        if length == 0 {
            self.memories.iter_mut().for_each(Memory::clear);
        }
        self.length = length;
        self.drop_uncommitted();
        Ok(())
    }

    /// Bytes held, those shared with other states included.
    pub fn bytes(&self) -> usize {
        let pages: usize = self.layers.iter().map(KvPages::bytes).sum();
        pages + self.memories.iter().map(Memory::bytes).sum::<usize>()
    }

    /// Appends what future tokens can see, layer by layer, position by position, as little-endian f32; then the recurrent memories.
    pub fn visible(&self, out: &mut Vec<u8>) {
        for layer in &self.layers {
            layer.visible(self.length, out);
        }
        let numbers = self.memories.iter().filter_map(Memory::committed).flatten();
        out.extend(numbers.flat_map(|x| x.to_le_bytes()));
    }
}
