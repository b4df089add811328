//! Keys and values of one layer of a sequence, in pages of 256 positions that sequences with a common past share.

use std::sync::Arc;

use goldcrest_kernels::{KvElement, KvLayout, SEGMENT_POSITIONS};
use goldcrest_model::plan::Kv;

use crate::CpuError;
use crate::buffer::{AllocError, Piece, SlabPool};

/// `[heads][layout.page_bytes()]`. What a page shared by several states holds never changes.
type Page = Arc<Piece>;

/// Keys and values of one layer.
#[derive(Clone)]
pub struct KvPages {
    layout: KvLayout,
    heads: usize,
    window: Option<usize>,
    /// Where pages come from.
    memory: Arc<SlabPool>,
    /// Page of each segment so far, absent behind the window. Grows with the sequence, so that a large capacity costs nothing.
    pages: Vec<Option<Page>>,
}

impl KvPages {
    pub fn new(kv: &Kv, element: KvElement, memory: &Arc<SlabPool>) -> KvPages {
        KvPages {
            memory: Arc::clone(memory),
            layout: layout(kv, element),
            heads: kv.heads,
            window: kv.window,
            pages: Vec::new(),
        }
    }

    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The page of one head, if the segment is held.
    pub fn page(&self, segment: usize, head: usize) -> Option<&[u8]> {
        let page = self.pages.get(segment)?.as_ref()?;
        page.chunks_exact(self.layout.page_bytes()).nth(head)
    }

    /// The page of a segment, `[heads][layout.page_bytes()]`, to be written.
    ///
    /// # Panics
    /// If [`KvPages::reserve`] has not made it.
    pub fn page_mut(&mut self, segment: usize) -> &mut [u8] {
        let page = self.pages[segment].as_mut().and_then(Arc::get_mut);
        page.expect("reserved before the call")
    }

    /// Makes the pages of the positions `length..end`, and copies of those of them that are shared.
    pub fn reserve(&mut self, length: usize, end: usize) -> Result<(), AllocError> {
        let bytes = self.bytes_per_segment();
        let segments = end.div_ceil(SEGMENT_POSITIONS);
        self.pages.resize_with(self.pages.len().max(segments), || None);
        for page in &mut self.pages[length / SEGMENT_POSITIONS..segments] {
            match page {
                None => *page = Some(Arc::new(self.memory.zeroed(bytes)?)),
                Some(page) => own(page, &self.memory)?,
            }
        }
        Ok(())
    }

    /// Lets go of the pages that no token fed at `length` or later sees.
    pub fn free_behind_window(&mut self, length: usize) {
        let first_segment = self.first_segment(length);
        // Earlier calls have freed everything before: pages become free at the front, one after the other.
        for page in self.pages[..first_segment].iter_mut().rev() {
            if page.take().is_none() {
                break;
            }
        }
    }

    /// Forgets the pages that hold nothing of the first `length` positions.
    pub fn truncate(&mut self, length: usize) {
        self.pages.truncate(length.div_ceil(SEGMENT_POSITIONS));
    }

    /// The shortest length but 0 that the pages still held allow to go back to.
    pub fn shortest_rewind(&self) -> usize {
        let Some(window) = self.window else { return 0 };
        match self.pages.iter().position(Option::is_some) {
            None | Some(0) => 0,
            Some(first_page) => first_page * SEGMENT_POSITIONS + window - 1,
        }
    }

    /// Hands over the pages held, from the oldest on.
    pub fn save<E>(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.pages.iter().flatten().try_for_each(|page| write(page))
    }

    /// Takes the pages that a layer at `length` positions holds, in the order of [`KvPages::save`].
    pub fn load<E: From<CpuError>>(
        &mut self,
        length: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.pages.clear();
        self.pages.resize(self.first_segment(length), None);
        let (pages, bytes) = self.saved_pages(length);
        for _ in 0..pages {
            let mut page = self.memory.zeroed(bytes).map_err(CpuError::from)?;
            read(&mut page)?;
            self.pages.push(Some(Arc::new(page)));
        }
        Ok(())
    }

    /// How many pages a layer at `length` positions holds, and the bytes of each.
    pub fn saved_pages(&self, length: usize) -> (usize, usize) {
        let segments = length.div_ceil(SEGMENT_POSITIONS);
        // With a window of one, nothing of a full page stays needed.
        let pages = segments.saturating_sub(self.first_segment(length));
        (pages, self.bytes_per_segment())
    }

    /// Most pages that a sequence of `capacity` positions holds in calls of at most `max_rows` rows, and the bytes of each.
    pub fn most_pages(&self, capacity: usize, max_rows: usize) -> (usize, usize) {
        // While a call goes on, what its first row sees and what its last one writes.
        let held = self.window.map_or(capacity, |window| window.saturating_add(max_rows));
        let segments = held.div_ceil(SEGMENT_POSITIONS).saturating_add(1);
        (
            segments.min(capacity.div_ceil(SEGMENT_POSITIONS)),
            self.bytes_per_segment(),
        )
    }

    pub fn bytes(&self) -> usize {
        self.pages.iter().flatten().map(|page| page.len()).sum()
    }

    /// Appends what a token fed at `length` or later can see, as little-endian f32.
    pub fn visible(&self, length: usize, out: &mut Vec<u8>) {
        let mut key = vec![0.0; self.layout.k_dim];
        let mut value = vec![0.0; self.layout.v_dim];
        for position in self.oldest_needed(length)..length {
            let slot = position % SEGMENT_POSITIONS;
            for head in 0..self.heads {
                let Some(page) = self.page(position / SEGMENT_POSITIONS, head) else {
                    continue;
                };
                self.layout.read_k(page, slot, &mut key);
                self.layout.read_v(page, slot, &mut value);
                out.extend(key.iter().chain(&value).flat_map(|x| x.to_le_bytes()));
            }
        }
    }

    /// First position that a token fed at `length` can see.
    fn oldest_needed(&self, length: usize) -> usize {
        let next = length.saturating_add(1);
        self.window.map_or(0, |window| next.saturating_sub(window))
    }

    /// First segment held at `length` positions, whatever came before: a rewind reaches no length that needs an earlier one.
    fn first_segment(&self, length: usize) -> usize {
        self.oldest_needed(length) / SEGMENT_POSITIONS
    }

    /// All heads of a segment.
    fn bytes_per_segment(&self) -> usize {
        self.heads * self.layout.page_bytes()
    }
}

fn layout(kv: &Kv, element: KvElement) -> KvLayout {
    KvLayout {
        k_dim: kv.key_dim,
        plain_k_dims: kv.plain_key_dims,
        v_dim: kv.value_dim,
        element,
    }
}

/// Size in bytes of the keys and values of one position in one layer, without the padding of pages.
pub fn kv_bytes_per_token(kv: &Kv, element: KvElement) -> usize {
    kv.heads * layout(kv, element).token_bytes()
}

/// Makes a page this state's alone, as it has to be before it is written to.
fn own(page: &mut Page, memory: &SlabPool) -> Result<(), AllocError> {
    if Arc::get_mut(page).is_none() {
        let mut copy = memory.zeroed(page.len())?;
        copy.copy_from_slice(page);
        *page = Arc::new(copy);
    }
    Ok(())
}
