//! How the numbers of a key or value are stored, one by one or in blocks.

use super::block::{BLOCK, Block, HALF_BLOCK};
use crate::float16::{f16_to_f32, f32_slice_to_f16};

/// The largest finite f16.
const F16_MAX: f32 = 65504.0;

/// How the numbers of keys, or those of values, are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    F32,
    F16,
    /// See [`super::block`].
    Q8_0,
    /// See [`super::block`].
    Q4,
}

/// Where the numbers of one key or value lie in a page, in bytes.
pub(super) struct Place {
    pub scale: usize,
    /// From the scale of one block to the next.
    pub scale_stride: usize,
    pub code: usize,
    /// From one code to the next, as a multiple of its size.
    pub code_stride: usize,
}

impl Stored {
    /// Whether numbers share scales.
    pub const fn is_quantized(self) -> bool {
        matches!(self, Stored::Q8_0 | Stored::Q4)
    }

    /// Size in bytes of the scales of `len` numbers.
    pub const fn scale_bytes(self, len: usize) -> usize {
        if self.is_quantized() {
            len.div_ceil(BLOCK) * size_of::<u16>()
        } else {
            0
        }
    }

    /// Size in bytes of the codes of `len` numbers.
    pub const fn code_bytes(self, len: usize) -> usize {
        match self {
            Stored::Q4 => {
                let rest = len % BLOCK;
                let half = if rest < HALF_BLOCK { rest } else { HALF_BLOCK };
                len / BLOCK * HALF_BLOCK + half
            }
            _ => len * self.code_stride(),
        }
    }

    /// Bytes before the code of number `index` of a row, which lie side by side.
    pub const fn code_offset(self, index: usize) -> usize {
        match self {
            Stored::Q4 => index / BLOCK * HALF_BLOCK + index % HALF_BLOCK,
            _ => index * self.code_stride(),
        }
    }

    /// Bytes from one code to the next where they lie side by side.
    pub const fn code_stride(self) -> usize {
        match self {
            Stored::F16 => 2,
            Stored::F32 => 4,
            Stored::Q8_0 | Stored::Q4 => 1,
        }
    }

    /// Stores `values` at a place of a page and returns how many saturated.
    pub fn store(self, values: &[f32], page: &mut [u8], place: &Place) -> usize {
        if values.is_empty() {
            return 0;
        }
        match self {
            Stored::F32 => {
                store_strided(values, &mut page[place.code..], place.code_stride);
                0
            }
            Stored::F16 => store_strided_f16(values, &mut page[place.code..], place.code_stride),
            Stored::Q8_0 => self.store_blocks(values, page, place, Block::eight_bits),
            Stored::Q4 => self.store_blocks(values, page, place, Block::four_bits),
        }
    }

    /// Reads numbers back.
    pub fn load(self, page: &[u8], place: &Place, out: &mut [f32]) {
        if out.is_empty() {
            return;
        }
        match self {
            Stored::F32 => {
                let (elements, _) = page[place.code..].as_chunks::<4>();
                let from = elements.iter().step_by(place.code_stride);
                out.iter_mut()
                    .zip(from)
                    .for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes));
            }
            Stored::F16 => {
                let (elements, _) = page[place.code..].as_chunks::<2>();
                let from = elements.iter().step_by(place.code_stride);
                out.iter_mut()
                    .zip(from)
                    .for_each(|(x, bytes)| *x = f16_to_f32(u16::from_le_bytes(*bytes)));
            }
            Stored::Q8_0 => self.load_blocks(page, place, out, Block::decode_eight_bits),
            Stored::Q4 => self.load_blocks(page, place, out, Block::decode_four_bits),
        }
    }

    fn store_blocks(self, values: &[f32], page: &mut [u8], place: &Place, encode: Encode) -> usize {
        let mut all_saturated = 0;
        for (i, x) in values.chunks(BLOCK).enumerate() {
            let (block, saturated) = encode(x);
            all_saturated += saturated;
            page[place.scale + i * place.scale_stride..][..2].copy_from_slice(&block.scale.to_le_bytes());
            let codes = page[place.code + self.code_offset(i * BLOCK) * place.code_stride..].iter_mut();
            let bytes = &block.bytes[..self.code_bytes(x.len())];
            for (code, byte) in codes.step_by(place.code_stride).zip(bytes) {
                *code = *byte;
            }
        }
        all_saturated
    }

    fn load_blocks(self, page: &[u8], place: &Place, out: &mut [f32], decode: Decode) {
        for (i, x) in out.chunks_mut(BLOCK).enumerate() {
            let scale = &page[place.scale + i * place.scale_stride..];
            let codes = page[place.code + self.code_offset(i * BLOCK) * place.code_stride..].iter();
            let mut block = Block {
                scale: u16::from_le_bytes([scale[0], scale[1]]),
                bytes: [0; BLOCK],
            };
            let bytes = &mut block.bytes[..self.code_bytes(x.len())];
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
