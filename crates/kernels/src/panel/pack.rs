//! Published blocks to panels. The layouts of the blocks are those of ggml's file format.

use super::layout::{self, BLOCK_GROUPS, HIGH_BITS, Layout, MINIMUMS, SUB_SCALES};
use super::{PANEL_ROWS, PanelType};
use crate::float16::f16_to_f32;

/// The low nibble of every byte of a word.
const NIBBLES: u32 = 0x0f0f_0f0f;

/// `panel` and the rows have the lengths that `k` asks for.
pub(super) fn pack(panel_type: PanelType, rows: &[&[u8]], panel: &mut [u8]) {
    panel.fill(0);
    match panel_type {
        PanelType::F32 => pack_floats::<4>(rows, panel),
        PanelType::F16 | PanelType::BF16 => pack_floats::<2>(rows, panel),
        PanelType::Q8_0 => pack_blocks(layout::Q8_0, rows, panel, pack_q8_0),
        PanelType::Q4_0 => pack_blocks(layout::Q4_0, rows, panel, pack_q4_0),
        PanelType::Q4_1 => pack_blocks(layout::Q4_1, rows, panel, pack_q4_1),
        PanelType::Q5_0 => pack_blocks(layout::Q5_0, rows, panel, pack_q5_0),
        PanelType::Q4_K => pack_blocks(layout::Q4_K, rows, panel, pack_q4_k),
        PanelType::Q6_K => pack_blocks(layout::Q6_K, rows, panel, pack_q6_k),
    }
}

/// `[16][k]` to `[k][16]`.
fn pack_floats<const BYTES: usize>(rows: &[&[u8]], panel: &mut [u8]) {
    for (lane, row) in rows.iter().enumerate() {
        let (values, _) = row.as_chunks::<BYTES>();
        for (to, value) in panel.chunks_exact_mut(PANEL_ROWS * BYTES).zip(values) {
            to[lane * BYTES..][..BYTES].copy_from_slice(value);
        }
    }
}

/// One row's share of a record: where a block is packed to.
struct Slot<'a> {
    record: &'a mut [u8],
    lane: usize,
    /// Index, within the record, of the first block of 32 that the published block fills.
    block: usize,
    layout: Layout,
}

/// Packs published blocks of `BYTES` bytes with `pack_block`, all rows of a block before the next block.
fn pack_blocks<const BYTES: usize>(
    layout: Layout,
    rows: &[&[u8]],
    panel: &mut [u8],
    pack_block: fn(&[u8; BYTES], Slot<'_>),
) {
    // A published block is a block of 32 values or, for the K types, a whole record.
    let blocks_per_record = if layout.blocks == 8 { 1 } else { layout.blocks };
    for (i, record) in panel.chunks_exact_mut(layout.record_bytes()).enumerate() {
        for block in 0..blocks_per_record {
            for (lane, row) in rows.iter().enumerate() {
                let (blocks, _) = row.as_chunks::<BYTES>();
                if let Some(bytes) = blocks.get(i * blocks_per_record + block) {
                    pack_block(
                        bytes,
                        Slot {
                            record,
                            lane,
                            block,
                            layout,
                        },
                    );
                }
            }
        }
    }
}

impl Slot<'_> {
    /// Puts this row's 16-bit `value` among those of the 16 rows at `offset`.
    fn put_u16(&mut self, offset: usize, value: u16) {
        self.record[offset + self.lane * 2..][..2].copy_from_slice(&value.to_le_bytes());
    }

    /// Puts this row's `word` into the line at `offset`.
    fn put_word(&mut self, offset: usize, word: u32) {
        self.record[offset + self.lane * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }

    /// Puts the nibbles of block `block`: `quants` holds values `4s ..` of a block in the low nibbles of word `s` of
    /// four and values `16 + 4s ..` in the high ones.
    fn put_nibbles(&mut self, block: usize, quants: [u32; 4]) {
        for (line, word) in quants.into_iter().enumerate() {
            self.put_word(self.layout.block_offset(block) + line * 64, word);
        }
    }
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

fn word_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

/// Four words from `offset`.
fn words_at(bytes: &[u8], offset: usize) -> [u32; 4] {
    std::array::from_fn(|i| word_at(bytes, offset + 4 * i))
}

/// f16 scale, 32 signed quants.
fn pack_q8_0(bytes: &[u8; 34], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 32, u16_at(bytes, 0));
    for group in 0..BLOCK_GROUPS {
        let offset = slot.layout.block_offset(slot.block) + group * 64;
        slot.put_word(offset, word_at(bytes, 2 + 4 * group) ^ 0x8080_8080);
    }
}

/// f16 scale, 16 bytes: values 0..16 in the low nibbles, 16..32 in the high ones.
fn pack_q4_0(bytes: &[u8; 18], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 32, u16_at(bytes, 0));
    slot.put_nibbles(slot.block, words_at(bytes, 2));
}

/// f16 scale, f16 minimum, nibbles as Q4_0.
fn pack_q4_1(bytes: &[u8; 20], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 64, u16_at(bytes, 0));
    slot.put_u16(slot.block * 64 + MINIMUMS, u16_at(bytes, 2));
    slot.put_nibbles(slot.block, words_at(bytes, 4));
}

/// f16 scale, the fifth bits of the 32 values in one word, nibbles as Q4_0.
fn pack_q5_0(bytes: &[u8; 22], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 32, u16_at(bytes, 0));
    slot.put_nibbles(slot.block, words_at(bytes, 6));
    let high = word_at(bytes, 2);
    let mut word = 0;
    for group in 0..BLOCK_GROUPS {
        // The product has bit j of the four at bits j, j + 7, j + 14 and j + 21: 8j is one of them.
        let four = high >> (4 * group) & 0xf;
        word |= ((four * 0x0020_4081) & 0x0101_0101) << group;
    }
    slot.put_word(slot.layout.block_offset(slot.block) + HIGH_BITS, word);
}

/// f16 d, f16 dmin, 12 bytes of 6-bit scales and minimums, 4 x 32 bytes: block `2c` in the low nibbles of chunk `c`,
/// `2c + 1` in the high ones.
fn pack_q4_k(bytes: &[u8; 144], mut slot: Slot<'_>) {
    slot.put_u16(0, u16_at(bytes, 0));
    slot.put_u16(MINIMUMS, u16_at(bytes, 2));
    for (i, word) in six_bit_words(&bytes[4..16]).into_iter().enumerate() {
        slot.put_word(SUB_SCALES + i * 64, word);
    }
    for chunk in 0..4 {
        let (first, second) = (words_at(bytes, 16 + 32 * chunk), words_at(bytes, 32 + 32 * chunk));
        slot.put_nibbles(
            2 * chunk,
            std::array::from_fn(|i| first[i] & NIBBLES | (second[i] & NIBBLES) << 4),
        );
        slot.put_nibbles(
            2 * chunk + 1,
            std::array::from_fn(|i| first[i] >> 4 & NIBBLES | second[i] & NIBBLES << 4),
        );
    }
}

/// The 8 scales and 8 minimums of Q4_K as the three words of a record. In the 12 bytes, entries 0..4 are the low six
/// bits of byte `j` (scale) and `j + 4` (minimum); entries 4..8 take four bits of byte `j + 4` and two from the tops of
/// the former.
fn six_bit_words(bytes: &[u8]) -> [u32; 3] {
    let mut values = [0; 16];
    for j in 0..4 {
        values[j] = bytes[j] & 63;
        values[8 + j] = bytes[j + 4] & 63;
        values[4 + j] = bytes[j + 8] & 15 | bytes[j] >> 6 << 4;
        values[12 + j] = bytes[j + 8] >> 4 | bytes[j + 4] >> 6 << 4;
    }
    let mut words = [0; 3];
    for (v, &value) in values[..15].iter().enumerate() {
        words[v / 5] |= u32::from(value) << (6 * (v % 5));
    }
    for (i, word) in words.iter_mut().enumerate() {
        *word |= u32::from(values[15] >> (2 * i) & 3) << 30;
    }
    words
}

/// 128 bytes of low nibbles, 64 of bit pairs, 16 signed scales, f16 d. In each half of 128 values, block `i` of four
/// has its low bits in the low (`i < 2`) or high nibbles of 32 bytes, the first or second as `i` is even or odd, and
/// its high bits in bit pair `i`.
fn pack_q6_k(bytes: &[u8; 210], mut slot: Slot<'_>) {
    slot.put_word(0, f16_to_f32(u16_at(bytes, 208)).to_bits());
    for (i, &scale) in bytes[192..208].iter().enumerate() {
        slot.record[SUB_SCALES + i * PANEL_ROWS + slot.lane] = scale;
    }
    for block in 0..8 {
        let (half, i) = (block / 4, block % 4);
        let low = 64 * half + 32 * (i % 2);
        let shift = 4 * (i / 2);
        let (first, second) = (words_at(bytes, low), words_at(bytes, low + 16));
        slot.put_nibbles(
            block,
            std::array::from_fn(|j| first[j] >> shift & NIBBLES | (second[j] >> shift & NIBBLES) << 4),
        );
        for line in 0..2 {
            let pairs = words_at(bytes, 128 + 32 * half + 16 * line);
            let mut word = 0;
            for (group, pair) in pairs.into_iter().enumerate() {
                word |= (pair >> (2 * i) & 0x0303_0303) << (2 * group);
            }
            slot.put_word(slot.layout.block_offset(block) + HIGH_BITS + line * 64, word);
        }
    }
}
