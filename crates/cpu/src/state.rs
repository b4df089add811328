//! The keys and values of one sequence: pages of 256 positions for each layer, shared by its heads.

use goldcrest_kernels::{KvElement, KvLayout, SEGMENT_POSITIONS};
use goldcrest_model::plan::{Kv, Plan};

use crate::buffer::{AlignedVec, AllocError};

/// Everything that a sequence has left behind in the layers.
pub struct State {
    layers: Vec<LayerState>,
    /// Committed positions. What lies beyond is invisible.
    length: usize,
    /// Committed numbers that were stored as the largest of the element type.
    saturated: u64,
    /// The same of the call in progress.
    saturated_now: u64,
}

/// Keys and values of one layer.
pub struct LayerState {
    layout: KvLayout,
    heads: usize,
    window: Option<usize>,
    /// Page of each segment so far: `[heads][layout.page_bytes()]`. Absent behind the window. Grows with the sequence, so that a large
    /// capacity costs nothing.
    pages: Vec<Option<AlignedVec<u8>>>,
}

impl State {
    pub fn new(plan: &Plan, element: KvElement) -> State {
        let layer = |kv: &Kv| LayerState {
            layout: KvLayout {
                k_dim: kv.key_dim,
                v_dim: kv.value_dim,
                element,
            },
            heads: kv.heads,
            window: kv.window,
            pages: Vec::new(),
        };
        State {
            layers: plan.kvs.iter().map(layer).collect(),
            length: 0,
            saturated: 0,
            saturated_now: 0,
        }
    }

    pub fn length(&self) -> usize {
        self.length
    }

    pub fn layer(&self, index: usize) -> &LayerState {
        &self.layers[index]
    }

    /// Stores the keys and values of all heads of a layer at one position, whose page [`State::reserve`] has made.
    pub fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        self.saturated_now += self.layers[layer].write(position, keys, values) as u64;
    }

    pub fn saturated(&self) -> u64 {
        self.saturated
    }

    /// Makes the pages for `rows` more positions. On an error the state is as before.
    pub fn reserve(&mut self, rows: usize) -> Result<(), AllocError> {
        let (length, end) = (self.length, self.length + rows);
        let reserved = self.layers.iter_mut().try_for_each(|layer| layer.reserve(length, end));
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
            let first_page = layer.oldest_needed(self.length) / SEGMENT_POSITIONS;
            // Earlier commits have freed everything before: pages become free at the front, one after the other.
            for page in layer.pages[..first_page].iter_mut().rev() {
                if page.take().is_none() {
                    break;
                }
            }
        }
    }

    /// Forgets pages that hold nothing committed, as after a failed call.
    pub fn drop_uncommitted(&mut self) {
        self.saturated_now = 0;
        let pages = self.length.div_ceil(SEGMENT_POSITIONS);
        for layer in &mut self.layers {
            layer.pages.truncate(pages);
        }
    }

    /// Goes back to `length` positions, or says which length is the shortest it can go back to.
    pub fn rewind(&mut self, length: usize) -> Result<(), usize> {
        let shortest = self.layers.iter().map(LayerState::shortest_rewind).max().unwrap_or(0);
        let shortest = shortest.min(self.length);
        if length < shortest || length > self.length {
            return Err(shortest);
        }
        self.length = length;
        self.drop_uncommitted();
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        let layer_bytes = |layer: &LayerState| layer.pages.iter().flatten().map(|page| page.len()).sum::<usize>();
        self.layers.iter().map(layer_bytes).sum()
    }

    /// Appends the keys and values that future tokens can see, layer by layer, position by position, as little-endian f32.
    pub fn visible(&self, out: &mut Vec<u8>) {
        for layer in &self.layers {
            let mut key = vec![0.0; layer.layout.k_dim];
            let mut value = vec![0.0; layer.layout.v_dim];
            for position in layer.oldest_needed(self.length)..self.length {
                let slot = position % SEGMENT_POSITIONS;
                for head in 0..layer.heads {
                    let Some(page) = layer.page(position / SEGMENT_POSITIONS, head) else {
                        continue;
                    };
                    layer.layout.read_k(page, slot, &mut key);
                    layer.layout.read_v(page, slot, &mut value);
                    out.extend(key.iter().chain(&value).flat_map(|x| x.to_le_bytes()));
                }
            }
        }
    }
}

impl LayerState {
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The page of one head, if the segment is held.
    pub fn page(&self, segment: usize, head: usize) -> Option<&[u8]> {
        let page = self.pages.get(segment)?.as_ref()?;
        page.chunks_exact(self.layout.page_bytes()).nth(head)
    }

    /// Returns how many numbers saturated.
    fn write(&mut self, position: usize, keys: &[f32], values: &[f32]) -> usize {
        let page = self.pages[position / SEGMENT_POSITIONS]
            .as_mut()
            .expect("reserved before the call");
        let layout = self.layout;
        let heads = page.chunks_exact_mut(layout.page_bytes());
        let keys = keys.chunks_exact(layout.k_dim);
        let values = values.chunks_exact(layout.v_dim);
        let slot = position % SEGMENT_POSITIONS;
        heads
            .zip(keys.zip(values))
            .map(|(page, (key, value))| layout.write(page, slot, key, value))
            .sum()
    }

    /// First position that a token fed at `length` can see.
    fn oldest_needed(&self, length: usize) -> usize {
        self.window.map_or(0, |window| (length + 1).saturating_sub(window))
    }

    fn shortest_rewind(&self) -> usize {
        let Some(window) = self.window else { return 0 };
        match self.pages.iter().position(Option::is_some) {
            None | Some(0) => 0,
            Some(first_page) => first_page * SEGMENT_POSITIONS + window - 1,
        }
    }

    fn reserve(&mut self, length: usize, end: usize) -> Result<(), AllocError> {
        let bytes = self.heads * self.layout.page_bytes();
        let segments = end.div_ceil(SEGMENT_POSITIONS);
        self.pages.resize_with(self.pages.len().max(segments), || None);
        for page in &mut self.pages[length / SEGMENT_POSITIONS..segments] {
            if page.is_none() {
                *page = Some(AlignedVec::zeroed(bytes)?);
            }
        }
        Ok(())
    }
}
