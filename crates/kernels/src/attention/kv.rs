//! The layout of a KV page: the keys and values of one segment of positions, for one KV head of one layer of one sequence.
//!
//! ```text
//! K part: 8 panels of 32 positions, each  scales [k blocks][32] f16,  codes [k_dim][32],  plain numbers [plain_k_dims][32] f16
//!                                                        (position is the fast index: a vector of scores needs no shuffle)
//! V part: 8 panels of 32 positions, each  scales [32][v blocks] f16,  codes [32][v_dim rounded up to 16]            (rows as they are)
//! ```
//!
//! Keys and values are stored each in their own way ([`KvElement`]). Scales exist for quantised ones only, one for each block of 32
//! numbers of a position. A Q4 byte holds numbers `i` (low half) and `i + 16` of a block; a last block of at most 16 numbers has no high
//! halves. Plain numbers are apart from the others in quantised keys only.
//!
//! Both parts are adjacent, so that attention of one token reads a page as a single sequential stream. Slot `i` of a page holds the
//! position `256·page + i`. Slots that were never written, and the padding of V rows, may hold any bytes: no result depends on them.

use std::fmt;

use super::block::BLOCK;
use super::stored::{Place, Stored};

/// Positions in a page. Segments of attention are the same 256 positions, counted from the start of the sequence.
pub const SEGMENT_POSITIONS: usize = 256;
/// Positions in one panel of transposed keys.
pub(crate) const PANEL_POSITIONS: usize = 32;
const PANELS: usize = SEGMENT_POSITIONS / PANEL_POSITIONS;
/// V rows are padded to whole vectors of the widest instruction set, in elements.
const V_ALIGNMENT: usize = 16;

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvElement {
    /// IEEE half precision; larger magnitudes saturate at ±65504.
    F16,
    /// Single precision, exact.
    F32,
    /// Eight bits and an f16 scale for each 32 numbers: 8.5 bits a number.
    Q8_0,
    /// Keys as Q8_0, values in four bits and an f16 scale for each 32 numbers: 6.5 bits a number where keys and values are equally
    /// long.
    ///
    /// Keys need more bits because the softmax turns their errors into factors, where those of values average out. With both in four
    /// bits, the perplexity of two small models is 1.04 to 1.15 times that of f32; with values alone, 1.013 and 1.015 times.
    Q4,
}

impl KvElement {
    /// All, from the most exact to the smallest.
    pub const ALL: [KvElement; 4] = [KvElement::F32, KvElement::F16, KvElement::Q8_0, KvElement::Q4];

    /// As options and reports spell it.
    pub const fn name(self) -> &'static str {
        match self {
            KvElement::F16 => "f16",
            KvElement::F32 => "f32",
            KvElement::Q8_0 => "q8_0",
            KvElement::Q4 => "q4",
        }
    }

    /// Whether numbers share scales. Queries, keys and values are then rotated before ([`crate::Kernels::rotate_signed`]), and outputs
    /// back, so that no large number takes the precision of its neighbours.
    pub const fn is_quantized(self) -> bool {
        matches!(self, KvElement::Q8_0 | KvElement::Q4)
    }

    pub(super) const fn keys(self) -> Stored {
        match self {
            KvElement::F16 => Stored::F16,
            KvElement::F32 => Stored::F32,
            KvElement::Q8_0 | KvElement::Q4 => Stored::Q8_0,
        }
    }

    pub(super) const fn values(self) -> Stored {
        match self {
            KvElement::Q4 => Stored::Q4,
            _ => self.keys(),
        }
    }
}

impl fmt::Display for KvElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Shape of the pages of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Numbers in a key of one head.
    pub k_dim: usize,
    /// Trailing ones of them that are f16 where the others are quantised: the part of a latent key that is rotated by position.
    pub plain_k_dims: usize,
    /// Numbers in a value of one head.
    pub v_dim: usize,
    /// How they are stored.
    pub element: KvElement,
}

impl KvLayout {
    /// Size of one page in bytes.
    pub const fn page_bytes(&self) -> usize {
        PANELS * (self.k_panel_bytes() + self.v_panel_bytes())
    }

    /// Size in bytes of one key and value, without padding.
    pub const fn token_bytes(&self) -> usize {
        let values = self.values();
        self.k_row_bytes() + values.scale_bytes(self.v_dim) + values.code_bytes(self.v_dim)
    }

    /// Numbers of a key that are stored as the element type says, and rotated if it is quantised; the others follow as f16.
    pub const fn leading_k_dims(&self) -> usize {
        if self.element.is_quantized() {
            self.k_dim - self.plain_k_dims
        } else {
            self.k_dim
        }
    }

    const fn keys(&self) -> Stored {
        self.element.keys()
    }

    const fn values(&self) -> Stored {
        self.element.values()
    }

    /// Offset of the V part in bytes.
    pub(crate) const fn v_offset_bytes(&self) -> usize {
        PANELS * self.k_panel_bytes()
    }

    /// Bytes of scales at the start of a panel of keys.
    pub(crate) const fn k_scale_bytes(&self) -> usize {
        PANEL_POSITIONS * self.keys().scale_bytes(self.leading_k_dims())
    }

    pub(crate) const fn k_panel_bytes(&self) -> usize {
        PANEL_POSITIONS * self.k_row_bytes()
    }

    const fn k_row_bytes(&self) -> usize {
        let leading = self.leading_k_dims();
        let plain_bytes = Stored::F16.code_bytes(self.k_dim - leading);
        self.keys().scale_bytes(leading) + self.keys().code_bytes(leading) + plain_bytes
    }

    /// Offset of the plain numbers in a panel of keys in bytes.
    pub(crate) const fn k_plain_offset_bytes(&self) -> usize {
        self.k_scale_bytes() + PANEL_POSITIONS * self.keys().code_bytes(self.leading_k_dims())
    }

    /// Numbers in a V row with its padding.
    pub(crate) const fn v_stride(&self) -> usize {
        self.v_dim.next_multiple_of(V_ALIGNMENT)
    }

    /// Blocks of a V row.
    pub(crate) const fn v_blocks(&self) -> usize {
        self.v_dim.div_ceil(BLOCK)
    }

    /// Bytes from the codes of one V row to those of the next.
    pub(crate) const fn v_row_bytes(&self) -> usize {
        self.values().code_bytes(self.v_stride())
    }

    /// Bytes of scales at the start of a panel of values.
    pub(crate) const fn v_scale_bytes(&self) -> usize {
        PANEL_POSITIONS * self.values().scale_bytes(self.v_dim)
    }

    pub(crate) const fn v_panel_bytes(&self) -> usize {
        self.v_scale_bytes() + PANEL_POSITIONS * self.v_row_bytes()
    }

    /// Stores key `k` and value `v` in `slot` of `page` and returns how many numbers were too large for the element type and
    /// saturated (infinities count). NaN stays NaN, in a quantised block with all its numbers.
    ///
    /// # Panics
    /// If `page`, `k` or `v` has another length than the layout says, or `slot` is not below [`SEGMENT_POSITIONS`]: a caller's bug.
    pub fn write(&self, page: &mut [u8], slot: usize, k: &[f32], v: &[f32]) -> usize {
        self.check(page.len(), slot);
        assert_eq!((k.len(), v.len()), (self.k_dim, self.v_dim), "key and value lengths");
        let (leading, plain) = k.split_at(self.leading_k_dims());
        self.keys().store(leading, page, &self.key_place(slot))
            + Stored::F16.store(plain, page, &self.plain_key_place(slot))
            + self.values().store(v, page, &self.value_place(slot))
    }

    /// Reads the key in `slot` of `page` back.
    ///
    /// # Panics
    /// As [`KvLayout::write`].
    pub fn read_k(&self, page: &[u8], slot: usize, out: &mut [f32]) {
        self.check(page.len(), slot);
        assert_eq!(out.len(), self.k_dim, "key length");
        let (leading, plain) = out.split_at_mut(self.leading_k_dims());
        self.keys().load(page, &self.key_place(slot), leading);
        Stored::F16.load(page, &self.plain_key_place(slot), plain);
    }

    /// Reads the value in `slot` of `page` back.
    ///
    /// # Panics
    /// As [`KvLayout::write`].
    pub fn read_v(&self, page: &[u8], slot: usize, out: &mut [f32]) {
        self.check(page.len(), slot);
        assert_eq!(out.len(), self.v_dim, "value length");
        self.values().load(page, &self.value_place(slot), out);
    }

    fn check(&self, page_bytes: usize, slot: usize) {
        assert_eq!(page_bytes, self.page_bytes(), "page size of {self:?}");
        assert!(slot < SEGMENT_POSITIONS, "slot {slot} of a page");
    }

    fn key_place(&self, slot: usize) -> Place {
        let (panel, lane) = (slot / PANEL_POSITIONS, slot % PANEL_POSITIONS);
        let start = panel * self.k_panel_bytes();
        Place {
            scale: start + lane * size_of::<u16>(),
            scale_stride: PANEL_POSITIONS * size_of::<u16>(),
            code: start + self.k_scale_bytes() + lane * self.keys().code_stride(),
            code_stride: PANEL_POSITIONS,
        }
    }

    fn plain_key_place(&self, slot: usize) -> Place {
        let start = slot / PANEL_POSITIONS * self.k_panel_bytes() + self.k_plain_offset_bytes();
        Place {
            scale: start,
            scale_stride: 0,
            code: start + slot % PANEL_POSITIONS * Stored::F16.code_stride(),
            code_stride: PANEL_POSITIONS,
        }
    }

    fn value_place(&self, slot: usize) -> Place {
        let (panel, lane) = (slot / PANEL_POSITIONS, slot % PANEL_POSITIONS);
        let start = self.v_offset_bytes() + panel * self.v_panel_bytes();
        Place {
            scale: start + lane * self.values().scale_bytes(self.v_dim),
            scale_stride: size_of::<u16>(),
            code: start + self.v_scale_bytes() + lane * self.v_row_bytes(),
            code_stride: 1,
        }
    }
}
