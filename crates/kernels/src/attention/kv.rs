//! The layout of a KV page: the keys and values of one segment of positions, for one KV head of one layer of one sequence.
//!
//! ```text
//! K part: 8 panels of 32 positions, each  scales [k blocks][32] f16,  codes [k_dim][32]     (position is the fast index: a vector of
//!                                                                                           scores needs no shuffle)
//! V part: 8 panels of 32 positions, each  scales [32][v blocks] f16,  codes [32][v_dim rounded up to 16]            (rows as they are)
//! ```
//!
//! Scales exist for quantised elements only, one for each block of 32 numbers of a position. A Q4 byte holds numbers `i` (low half) and
//! `i + 16` of a block, so that its keys take 16 lines of 32 positions and its values 16 bytes; a last block of at most 16 numbers
//! has no high halves.
//!
//! Both parts are adjacent, so that attention of one token reads a page as a single sequential stream. Slot `i` of a page holds the
//! position `256·page + i`. Slots that were never written, and the padding of V rows, may hold any bytes: no result depends on them.

use std::fmt;

use super::block::{BLOCK, Block, HALF_BLOCK};
use crate::float16::{f16_to_f32, f32_slice_to_f16};

/// Positions in a page. Segments of attention are the same 256 positions, counted from the start of the sequence.
pub const SEGMENT_POSITIONS: usize = 256;
/// Positions in one panel of transposed keys.
pub(crate) const PANEL_POSITIONS: usize = 32;
const PANELS: usize = SEGMENT_POSITIONS / PANEL_POSITIONS;
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
    /// Eight bits and an f16 scale for each 32 numbers: 8.5 bits a number.
    Q8_0,
    /// Four bits and an f16 scale for each 32 numbers: 4.5 bits a number.
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

    /// Size in bytes of a key or value of `len` numbers, without padding.
    pub const fn row_bytes(self, len: usize) -> usize {
        self.scale_bytes(len) + self.code_bytes(len)
    }

    const fn scale_bytes(self, len: usize) -> usize {
        if self.is_quantized() {
            len.div_ceil(BLOCK) * size_of::<u16>()
        } else {
            0
        }
    }

    const fn code_bytes(self, len: usize) -> usize {
        match self {
            KvElement::F16 => len * 2,
            KvElement::F32 => len * 4,
            KvElement::Q8_0 => len,
            KvElement::Q4 => {
                let rest = len % BLOCK;
                let half = if rest < HALF_BLOCK { rest } else { HALF_BLOCK };
                len / BLOCK * HALF_BLOCK + half
            }
        }
    }

    /// Bytes before the code of number `index` of a row, which lie side by side.
    pub(crate) const fn code_offset(self, index: usize) -> usize {
        match self {
            KvElement::Q4 => index / BLOCK * HALF_BLOCK + index % HALF_BLOCK,
            _ => index * self.code_stride(),
        }
    }

    /// Bytes from one code to the next where they lie side by side.
    pub(crate) const fn code_stride(self) -> usize {
        match self {
            KvElement::F16 => 2,
            KvElement::F32 => 4,
            KvElement::Q8_0 | KvElement::Q4 => 1,
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
    /// Numbers in a value of one head.
    pub v_dim: usize,
    /// How they are stored.
    pub element: KvElement,
}

/// Where the numbers of one key or value lie in a page, in bytes.
struct Place {
    scale: usize,
    /// From the scale of one block to the next.
    scale_stride: usize,
    code: usize,
    /// From one code to the next, as a multiple of its size.
    code_stride: usize,
}

impl KvLayout {
    /// Size of one page in bytes.
    pub const fn page_bytes(&self) -> usize {
        PANELS * (self.k_panel_bytes() + self.v_panel_bytes())
    }

    /// Offset of the V part in bytes.
    pub(crate) const fn v_offset_bytes(&self) -> usize {
        PANELS * self.k_panel_bytes()
    }

    /// Bytes of scales at the start of a panel of keys.
    pub(crate) const fn k_scale_bytes(&self) -> usize {
        PANEL_POSITIONS * self.element.scale_bytes(self.k_dim)
    }

    pub(crate) const fn k_panel_bytes(&self) -> usize {
        PANEL_POSITIONS * self.element.row_bytes(self.k_dim)
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
        self.element.code_bytes(self.v_stride())
    }

    /// Bytes of scales at the start of a panel of values.
    pub(crate) const fn v_scale_bytes(&self) -> usize {
        PANEL_POSITIONS * self.element.scale_bytes(self.v_dim)
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
        self.store(k, page, &self.key_place(slot)) + self.store(v, page, &self.value_place(slot))
    }

    /// Reads the key in `slot` of `page` back.
    ///
    /// # Panics
    /// As [`KvLayout::write`].
    pub fn read_k(&self, page: &[u8], slot: usize, out: &mut [f32]) {
        self.check(page.len(), slot);
        assert_eq!(out.len(), self.k_dim, "key length");
        self.load(page, &self.key_place(slot), out);
    }

    /// Reads the value in `slot` of `page` back.
    ///
    /// # Panics
    /// As [`KvLayout::write`].
    pub fn read_v(&self, page: &[u8], slot: usize, out: &mut [f32]) {
        self.check(page.len(), slot);
        assert_eq!(out.len(), self.v_dim, "value length");
        self.load(page, &self.value_place(slot), out);
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
            code: start + self.k_scale_bytes() + lane * self.element.code_stride(),
            code_stride: PANEL_POSITIONS,
        }
    }

    fn value_place(&self, slot: usize) -> Place {
        let (panel, lane) = (slot / PANEL_POSITIONS, slot % PANEL_POSITIONS);
        let start = self.v_offset_bytes() + panel * self.v_panel_bytes();
        Place {
            scale: start + lane * self.element.scale_bytes(self.v_dim),
            scale_stride: size_of::<u16>(),
            code: start + self.v_scale_bytes() + lane * self.v_row_bytes(),
            code_stride: 1,
        }
    }

    fn store(&self, values: &[f32], page: &mut [u8], place: &Place) -> usize {
        match self.element {
            KvElement::F32 => {
                store_strided(values, &mut page[place.code..], place.code_stride);
                0
            }
            KvElement::F16 => store_strided_f16(values, &mut page[place.code..], place.code_stride),
            KvElement::Q8_0 => self.store_blocks(values, page, place, Block::eight_bits),
            KvElement::Q4 => self.store_blocks(values, page, place, Block::four_bits),
        }
    }

    fn load(&self, page: &[u8], place: &Place, out: &mut [f32]) {
        match self.element {
            KvElement::F32 => {
                let (elements, _) = page[place.code..].as_chunks::<4>();
                let from = elements.iter().step_by(place.code_stride);
                out.iter_mut()
                    .zip(from)
                    .for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes));
            }
            KvElement::F16 => {
                let (elements, _) = page[place.code..].as_chunks::<2>();
                let from = elements.iter().step_by(place.code_stride);
                out.iter_mut()
                    .zip(from)
                    .for_each(|(x, bytes)| *x = f16_to_f32(u16::from_le_bytes(*bytes)));
            }
            KvElement::Q8_0 => self.load_blocks(page, place, out, Block::decode_eight_bits),
            KvElement::Q4 => self.load_blocks(page, place, out, Block::decode_four_bits),
        }
    }

    fn store_blocks(&self, values: &[f32], page: &mut [u8], place: &Place, encode: Encode) -> usize {
        let mut all_saturated = 0;
        for (i, x) in values.chunks(BLOCK).enumerate() {
            let (block, saturated) = encode(x);
            all_saturated += saturated;
            page[place.scale + i * place.scale_stride..][..2].copy_from_slice(&block.scale.to_le_bytes());
            let codes = page[place.code + self.element.code_offset(i * BLOCK) * place.code_stride..].iter_mut();
            let bytes = &block.bytes[..self.element.code_bytes(x.len())];
            for (code, byte) in codes.step_by(place.code_stride).zip(bytes) {
                *code = *byte;
            }
        }
        all_saturated
    }

    fn load_blocks(&self, page: &[u8], place: &Place, out: &mut [f32], decode: Decode) {
        for (i, x) in out.chunks_mut(BLOCK).enumerate() {
            let scale = &page[place.scale + i * place.scale_stride..];
            let codes = page[place.code + self.element.code_offset(i * BLOCK) * place.code_stride..].iter();
            let mut block = Block {
                scale: u16::from_le_bytes([scale[0], scale[1]]),
                bytes: [0; BLOCK],
            };
            let bytes = &mut block.bytes[..self.element.code_bytes(x.len())];
            for (byte, code) in bytes.iter_mut().zip(codes.step_by(place.code_stride)) {
                *byte = *code;
            }
            decode(&block, x);
        }
    }
}

type Encode = fn(&[f32]) -> (Block, usize);
type Decode = fn(&Block, &mut [f32]);

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
