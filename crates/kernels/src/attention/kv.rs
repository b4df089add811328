//! The layout of a KV page: the keys and values of one segment of positions, for one KV head of one layer of one sequence.
//!
//! ```text
//! K part: 8 panels of 32 positions, each [k_dim][32]      (position is the fast index: a vector of scores needs no shuffle)
//! V part: [256 positions][v_dim rounded up to 16]         (rows as they are)
//! ```
//!
//! Both parts are adjacent, so that attention of one token reads a page as a single sequential stream. Slot `i` of a page holds the
//! position `256·page + i`. Slots that were never written, and the padding of V rows, may hold any bytes: no result depends on them.

use crate::float16::{f16_to_f32, f32_slice_to_f16};

/// Positions in a page. Segments of attention are the same 256 positions, counted from the start of the sequence.
pub const SEGMENT_POSITIONS: usize = 256;
/// Positions in one panel of transposed keys.
pub(crate) const PANEL_POSITIONS: usize = 32;
/// V rows are padded to whole vectors of the widest instruction set, in elements.
const V_ALIGNMENT: usize = 16;
/// The largest finite f16.
const F16_MAX: f32 = 65504.0;

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// IEEE half precision; larger magnitudes saturate at ±65504.
    F16,
    /// Single precision, exact.
    F32,
}

impl KvElement {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            KvElement::F16 => 2,
            KvElement::F32 => 4,
        }
    }
}

/// Shape of the pages of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Numbers in a key of one head.
    pub k_dim: usize,
    /// Numbers in a value of one head.
    pub v_dim: usize,
    /// How they are stored.
    pub element: KvElement,
}

impl KvLayout {
    /// Size of one page in bytes.
    pub const fn page_bytes(&self) -> usize {
        SEGMENT_POSITIONS * (self.k_dim + self.v_stride()) * self.element.bytes()
    }

    /// Elements from one V row to the next.
    pub(crate) const fn v_stride(&self) -> usize {
        self.v_dim.next_multiple_of(V_ALIGNMENT)
    }

    /// Offset of the V part in bytes.
    pub(crate) const fn v_offset_bytes(&self) -> usize {
        SEGMENT_POSITIONS * self.k_dim * self.element.bytes()
    }

    /// Stores key `k` and value `v` in `slot` of `page` and returns how many numbers were too large for the element type and
    /// saturated (infinities count, NaN stays NaN).
    ///
    /// # Panics
    /// If `page`, `k` or `v` has another length than the layout says, or `slot` is not below [`SEGMENT_POSITIONS`]: a caller's bug.
    pub fn write(&self, page: &mut [u8], slot: usize, k: &[f32], v: &[f32]) -> usize {
        self.check(page.len(), slot);
        assert_eq!((k.len(), v.len()), (self.k_dim, self.v_dim), "key and value lengths");
        let (k_part, v_part) = page.split_at_mut(self.v_offset_bytes());
        let key = &mut k_part[self.key_start(slot)..];
        let value = &mut v_part[self.value_start(slot)..];
        match self.element {
            KvElement::F32 => {
                store_strided(k, key, PANEL_POSITIONS);
                store_strided(v, value, 1);
                0
            }
            KvElement::F16 => store_strided_f16(k, key, PANEL_POSITIONS) + store_strided_f16(v, value, 1),
        }
    }

    /// Reads the key in `slot` of `page` back.
    ///
    /// # Panics
    /// As [`KvLayout::write`].
    pub fn read_k(&self, page: &[u8], slot: usize, out: &mut [f32]) {
        self.check(page.len(), slot);
        assert_eq!(out.len(), self.k_dim, "key length");
        self.load_strided(&page[self.key_start(slot)..], PANEL_POSITIONS, out);
    }

    /// Reads the value in `slot` of `page` back.
    ///
    /// # Panics
    /// As [`KvLayout::write`].
    pub fn read_v(&self, page: &[u8], slot: usize, out: &mut [f32]) {
        self.check(page.len(), slot);
        assert_eq!(out.len(), self.v_dim, "value length");
        self.load_strided(&page[self.v_offset_bytes() + self.value_start(slot)..], 1, out);
    }

    fn check(&self, page_bytes: usize, slot: usize) {
        assert_eq!(page_bytes, self.page_bytes(), "page size of {self:?}");
        assert!(slot < SEGMENT_POSITIONS, "slot {slot} of a page");
    }

    /// Offset in bytes of the first element of a key within the K part.
    fn key_start(&self, slot: usize) -> usize {
        let (panel, lane) = (slot / PANEL_POSITIONS, slot % PANEL_POSITIONS);
        (panel * PANEL_POSITIONS * self.k_dim + lane) * self.element.bytes()
    }

    /// Offset in bytes of a value within the V part.
    fn value_start(&self, slot: usize) -> usize {
        slot * self.v_stride() * self.element.bytes()
    }

    fn load_strided(&self, bytes: &[u8], stride: usize, out: &mut [f32]) {
        match self.element {
            KvElement::F32 => {
                let (elements, _) = bytes.as_chunks::<4>();
                let from = elements.iter().step_by(stride);
                out.iter_mut()
                    .zip(from)
                    .for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes));
            }
            KvElement::F16 => {
                let (elements, _) = bytes.as_chunks::<2>();
                let from = elements.iter().step_by(stride);
                out.iter_mut()
                    .zip(from)
                    .for_each(|(x, bytes)| *x = f16_to_f32(u16::from_le_bytes(*bytes)));
            }
        }
    }
}

/// Writes `values` to every `stride`-th element of `bytes`.
fn store_strided(values: &[f32], bytes: &mut [u8], stride: usize) {
    let (elements, _) = bytes.as_chunks_mut();
    for (element, x) in elements.iter_mut().step_by(stride).zip(values) {
        *element = x.to_le_bytes();
    }
}

/// The same as f16; returns how many saturated.
fn store_strided_f16(values: &[f32], bytes: &mut [u8], stride: usize) -> usize {
    /// Numbers converted at a time, in vectors.
    const CHUNK: usize = 64;
    let (elements, _) = bytes.as_chunks_mut();
    let mut elements = elements.iter_mut().step_by(stride);
    let mut saturated = 0;
    for chunk in values.chunks(CHUNK) {
        let (mut bounded, mut halves) = ([0.0; CHUNK], [0; CHUNK]);
        for (bounded, x) in bounded.iter_mut().zip(chunk) {
            *bounded = x.clamp(-F16_MAX, F16_MAX);
            saturated += usize::from(x.abs() > F16_MAX);
        }
        f32_slice_to_f16(&bounded, &mut halves);
        // The chunk is asked first: when it ends, it must not take an element.
        for (half, element) in halves[..chunk.len()].iter().zip(elements.by_ref()) {
            *element = half.to_le_bytes();
        }
    }
    saturated
}
