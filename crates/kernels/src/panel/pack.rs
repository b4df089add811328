//! Blocks of rows to panels. The layouts of the published blocks are those of ggml's file format.

use super::lanes::levels::{Iq1, Iq2, Iq3S, Iq3Xxs, Levels};
use super::layout::{AFTER_NIBBLES, AFTER_PAIRS, BLOCK_GROUPS, BLOCK_VALUES, Layout, MINIMUMS, SUB_SCALES};
use super::{INTEGER_BLOCK_BYTES, LINE_BYTES, PANEL_ROWS, PanelType};
use crate::float16::f16_to_f32;

/// A word for each group of four values of a block, a code a byte.
type Groups = [u32; BLOCK_GROUPS];

/// Lines of the nibbles of a block, after which those of the high bits come.
const NIBBLE_LINES: usize = AFTER_NIBBLES / LINE_BYTES;

/// Lines of the bit pairs of a block, after which that of the high bits comes.
const PAIR_LINES: usize = AFTER_PAIRS / LINE_BYTES;

/// Most lines of the blocks of a record: eight blocks of six bits.
const MOST_LINES: usize = 48;

/// The words of a row in the lines of the blocks of a record.
type Words = [u32; MOST_LINES];

/// The lowest bits of every byte of a word.
const ONE_BIT: u32 = 0x0101_0101;
const TWO_BITS: u32 = 0x0303_0303;
const FOUR_BITS: u32 = 0x0f0f_0f0f;
const SIX_BITS: u32 = 0x3f3f_3f3f;

/// `panel` and the rows have the lengths that `k` asks for.
pub(super) fn pack(panel_type: PanelType, rows: &[&[u8]], k: usize, panel: &mut [u8]) {
    let has_all_values = match panel_type.layout() {
        Some(layout) => k.is_multiple_of(layout.blocks * BLOCK_VALUES),
        None => panel.len() == PANEL_ROWS * panel_type.row_bytes(k),
    };
    // Rows and values that there are not are zeros.
    if rows.len() < PANEL_ROWS || !has_all_values {
        panel.fill(0);
    }
    let blocks = Rows {
        panel_type,
        rows,
        panel,
    };
    match panel_type {
        PanelType::F32 => pack_floats::<4>(rows, panel),
        PanelType::F16 | PanelType::BF16 => pack_floats::<2>(rows, panel),
        PanelType::Q8_0 => blocks.pack(pack_q8_0),
        PanelType::Q4_0 | PanelType::IQ4_NL => blocks.pack(pack_q4_0),
        PanelType::Q4_1 => blocks.pack(pack_q4_1),
        PanelType::Q5_0 => blocks.pack(pack_q5_0),
        PanelType::Q5_1 => blocks.pack(pack_q5_1),
        PanelType::Q2_K => blocks.pack(pack_q2_k),
        PanelType::Q3_K => blocks.pack(pack_q3_k),
        PanelType::Q4_K => blocks.pack(pack_q4_k),
        PanelType::Q5_K => blocks.pack(pack_q5_k),
        PanelType::Q6_K => blocks.pack(pack_q6_k),
        PanelType::IQ1 => blocks.pack(pack_integers::<Iq1, 3>),
        PanelType::IQ2 => blocks.pack(pack_integers::<Iq2, 3>),
        PanelType::IQ3_XXS => blocks.pack(pack_integers::<Iq3Xxs, 4>),
        PanelType::IQ3_S => blocks.pack(pack_integers::<Iq3S, 4>),
        PanelType::IQ4_XS => blocks.pack(pack_iq4_xs),
        PanelType::TQ1_0 => blocks.pack(pack_tq1_0),
        PanelType::TQ2_0 => blocks.pack(pack_tq2_0),
        PanelType::MXFP4 => blocks.pack(pack_mxfp4),
        PanelType::NVFP4 => blocks.pack(pack_nvfp4),
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

/// Rows of blocks and where they go.
struct Rows<'a> {
    panel_type: PanelType,
    rows: &'a [&'a [u8]],
    panel: &'a mut [u8],
}

/// One row's share of a record: where a block is packed to.
struct Slot<'a> {
    record: &'a mut [u8],
    words: &'a mut Words,
    lane: usize,
    /// Index, within the record, of the first block of 32 that the block of the row fills.
    block: usize,
    layout: Layout,
}

impl Rows<'_> {
    /// Packs blocks of `BYTES` bytes with `pack_block`, a record's share of all rows before the next record. Words are made row by row,
    /// side by side in memory, and go to their lines together: both can then be done with vectors.
    fn pack<const BYTES: usize>(self, pack_block: fn(&[u8; BYTES], Slot<'_>)) {
        let Some(layout) = self.panel_type.layout() else { return };
        let step = self.panel_type.block_values() / BLOCK_VALUES;
        let blocks_per_record = layout.blocks / step;
        let mut words = [[0; MOST_LINES]; PANEL_ROWS];
        for (i, record) in self.panel.chunks_exact_mut(layout.record_bytes()).enumerate() {
            for (lane, (row, words)) in self.rows.iter().zip(&mut words).enumerate() {
                let (blocks, _) = row.as_chunks::<BYTES>();
                let blocks = blocks.get(i * blocks_per_record..).unwrap_or(&[]);
                if blocks.len() < blocks_per_record {
                    words.fill(0);
                }
                for (block, bytes) in blocks.iter().take(blocks_per_record).enumerate() {
                    let slot = Slot {
                        record,
                        words,
                        lane,
                        block: block * step,
                        layout,
                    };
                    pack_block(bytes, slot);
                }
            }
            put_lines(&words, &mut record[layout.header_bytes..]);
        }
    }
}

/// `[16][lines]` to `[lines][16]`.
fn put_lines(words: &[Words; PANEL_ROWS], lines: &mut [u8]) {
    for (index, line) in lines.chunks_exact_mut(LINE_BYTES).enumerate().take(MOST_LINES) {
        for (to, words) in line.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&words[index].to_le_bytes());
        }
    }
}

impl Slot<'_> {
    /// Puts this row's bytes into the rows of the bytes at `offset`, `[bytes.len()][16]`.
    #[inline(always)]
    fn put_bytes(&mut self, offset: usize, bytes: &[u8]) {
        let rows = self.record[offset..].chunks_exact_mut(PANEL_ROWS);
        rows.zip(bytes).for_each(|(row, byte)| row[self.lane] = *byte);
    }

    /// Puts this row's 16-bit `value` among those of the 16 rows at `offset`.
    #[inline(always)]
    fn put_u16(&mut self, offset: usize, value: u16) {
        self.record[offset + self.lane * 2..][..2].copy_from_slice(&value.to_le_bytes());
    }

    /// Puts this row's `word` into the line at `offset` of the header.
    #[inline(always)]
    fn put_word(&mut self, offset: usize, word: u32) {
        self.record[offset + self.lane * 4..][..4].copy_from_slice(&word.to_le_bytes());
    }

    /// Puts this row's words into the lines of block `block`, from line `first`.
    #[inline(always)]
    fn put_block<const LINES: usize>(&mut self, block: usize, first: usize, words: [u32; LINES]) {
        let lines = self.layout.block_bytes / LINE_BYTES;
        self.words[block * lines + first..][..LINES].copy_from_slice(&words);
    }

    /// Puts the f16 at the start of `bytes` as the f32 at the start of the header.
    #[inline(always)]
    fn put_scale(&mut self, f16: u16) {
        self.put_word(0, f16_to_f32(f16).to_bits());
    }

    /// Puts the low four bits of the codes of block `block`.
    #[inline(always)]
    fn put_nibbles(&mut self, block: usize, codes: Groups) {
        let mut words = [0; 4];
        for (line, word) in words.iter_mut().enumerate() {
            *word = codes[line] & FOUR_BITS | (codes[line + 4] & FOUR_BITS) << 4;
        }
        self.put_block(block, 0, words);
    }

    /// Puts the low two bits of the codes of block `block` into two lines of it, from line `first`.
    #[inline(always)]
    fn put_pairs(&mut self, block: usize, first: usize, codes: Groups) {
        let mut words = [0; 2];
        for (word, codes) in words.iter_mut().zip(codes.chunks_exact(4)) {
            let pairs = codes.iter().enumerate();
            *word = pairs.fold(0, |word, (s, code)| word | (code & TWO_BITS) << (2 * s));
        }
        self.put_block(block, first, words);
    }

    /// Puts the 64 bytes of bit pairs of a record's eight blocks into two lines of each, from line `first`. 32 bytes hold four blocks, one
    /// bit pair of all bytes after the other.
    #[inline(always)]
    fn put_bit_pairs(&mut self, first: usize, bytes: &[u8]) {
        for (i, bytes) in bytes.chunks_exact(16).enumerate() {
            let (block, half) = (4 * (i / 2), i % 2);
            let words = [0, 4, 8, 12].map(|offset| word_at(bytes, offset));
            for (i, word) in transpose_pairs(words).into_iter().enumerate() {
                self.put_block(block + i, first + half, [word]);
            }
        }
    }

    /// Puts the lowest bits of the codes of block `block` into line `line` of it.
    #[inline(always)]
    fn put_bits(&mut self, block: usize, line: usize, codes: Groups) {
        let bits = codes.iter().enumerate();
        let word = bits.fold(0, |word, (group, code)| word | (code & ONE_BIT) << group);
        self.put_block(block, line, [word]);
    }

    /// Puts d, dmin, and 12 bytes of 6-bit scales and minimums.
    #[inline(always)]
    fn put_six_bit_scales(&mut self, bytes: &[u8]) {
        self.put_u16(0, u16_at(bytes, 0));
        self.put_u16(MINIMUMS, u16_at(bytes, 2));
        for (i, word) in six_bit_words(&bytes[4..16]).into_iter().enumerate() {
            self.put_word(SUB_SCALES + i * LINE_BYTES, word);
        }
    }
}

#[inline(always)]
fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

#[inline(always)]
fn word_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

/// A word for each group. A loop, because the compiler does not inline `array::from_fn` here, and packing was several times slower with it.
#[inline(always)]
fn groups(word: impl Fn(usize) -> u32) -> Groups {
    let mut groups = [0; BLOCK_GROUPS];
    for (group, to) in groups.iter_mut().enumerate() {
        *to = word(group);
    }
    groups
}

/// The 32 bytes from `offset`, each word shifted right: the codes of a block in its lowest bits.
#[inline(always)]
fn shifted(bytes: &[u8], offset: usize, shift: usize) -> Groups {
    groups(|group| word_at(bytes, offset + 4 * group) >> shift)
}

/// The 16 bytes from `offset`: values 0..16 in the low nibbles, 16..32 in the high ones.
#[inline(always)]
fn halves(bytes: &[u8], offset: usize) -> Groups {
    groups(|group| word_at(bytes, offset + 4 * (group % 4)) >> (4 * (group / 4)))
}

/// Bit pair `s` of word `i` of the result is pair `i` of word `s`, byte by byte: first nibbles change places, then the pairs in them.
#[inline(always)]
fn transpose_pairs([a, b, c, d]: [u32; 4]) -> [u32; 4] {
    const LOW_PAIRS: u32 = 0x3333_3333;
    let nibbles = |x: u32, y: u32| {
        [
            x & FOUR_BITS | (y & FOUR_BITS) << 4,
            x >> 4 & FOUR_BITS | y & !FOUR_BITS,
        ]
    };
    let pairs = |x: u32, y: u32| {
        [
            x & LOW_PAIRS | (y & LOW_PAIRS) << 2,
            x >> 2 & LOW_PAIRS | y & !LOW_PAIRS,
        ]
    };
    let ([a, c], [b, d]) = (nibbles(a, c), nibbles(b, d));
    let ([a, b], [c, d]) = (pairs(a, b), pairs(c, d));
    [a, b, c, d]
}

/// Block `block` of the nibbles at `offset`: 32 bytes hold 2 blocks, all low nibbles before the high ones.
#[inline(always)]
fn nibble_pairs(bytes: &[u8], offset: usize, block: usize) -> Groups {
    shifted(bytes, offset + 32 * (block / 2), 4 * (block % 2))
}

/// The bits of a word, a byte each.
#[inline(always)]
fn spread(bits: u32) -> Groups {
    // The product has bit j of the four at bits j, j + 7, j + 14 and j + 21: 8j is one of them.
    groups(|group| ((bits >> (4 * group) & 0xf) * 0x0020_4081) & ONE_BIT)
}

/// f16 scale, 32 signed quants.
fn pack_q8_0(bytes: &[u8; 34], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 32, u16_at(bytes, 0));
    let words = groups(|group| word_at(bytes, 2 + 4 * group) ^ 0x8080_8080);
    slot.put_block(slot.block, 0, words);
}

/// f16 scale, 16 bytes: values 0..16 in the low nibbles, 16..32 in the high ones. IQ4_NL, too.
fn pack_q4_0(bytes: &[u8; 18], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 32, u16_at(bytes, 0));
    slot.put_nibbles(slot.block, halves(bytes, 2));
}

/// f16 scale, f16 minimum, nibbles as Q4_0.
fn pack_q4_1(bytes: &[u8; 20], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 64, u16_at(bytes, 0));
    slot.put_u16(slot.block * 64 + MINIMUMS, u16_at(bytes, 2));
    slot.put_nibbles(slot.block, halves(bytes, 4));
}

/// f16 scale, the fifth bits of the 32 values in one word, nibbles as Q4_0.
fn pack_q5_0(bytes: &[u8; 22], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 32, u16_at(bytes, 0));
    slot.put_nibbles(slot.block, halves(bytes, 6));
    slot.put_bits(slot.block, NIBBLE_LINES, spread(word_at(bytes, 2)));
}

/// f16 scale, f16 minimum, fifth bits and nibbles as Q5_0.
fn pack_q5_1(bytes: &[u8; 24], mut slot: Slot<'_>) {
    slot.put_u16(slot.block * 64, u16_at(bytes, 0));
    slot.put_u16(slot.block * 64 + MINIMUMS, u16_at(bytes, 2));
    slot.put_nibbles(slot.block, halves(bytes, 8));
    slot.put_bits(slot.block, NIBBLE_LINES, spread(word_at(bytes, 4)));
}

/// 16 bytes with a scale and a minimum of 4 bits, 64 bytes of bit pairs, f16 d, f16 dmin.
fn pack_q2_k(bytes: &[u8; 84], mut slot: Slot<'_>) {
    slot.put_u16(0, u16_at(bytes, 80));
    slot.put_u16(MINIMUMS, u16_at(bytes, 82));
    slot.put_bytes(SUB_SCALES, &bytes[..16]);
    slot.put_bit_pairs(0, &bytes[16..80]);
}

/// 32 bytes of third bits, block `b` in bit `b`; 64 bytes of bit pairs; 16 scales of 6 bits around 32, their low nibbles
/// in 8 bytes and their bit pairs in 4; f16 d.
fn pack_q3_k(bytes: &[u8; 110], mut slot: Slot<'_>) {
    slot.put_scale(u16_at(bytes, 108));
    let (low, high) = (&bytes[96..104], &bytes[104..108]);
    let mut scales = [0_u8; 16];
    for (i, scale) in scales.iter_mut().enumerate() {
        let code = low[i % 8] >> (4 * (i / 8)) & 15 | (high[i % 4] >> (2 * (i / 4)) & 3) << 4;
        *scale = code.wrapping_sub(32);
    }
    slot.put_bytes(SUB_SCALES, &scales);
    slot.put_bit_pairs(0, &bytes[32..96]);
    for block in 0..8 {
        slot.put_bits(block, PAIR_LINES, shifted(bytes, 0, block));
    }
}

/// f16 d, f16 dmin, 12 bytes of 6-bit scales and minimums, 4 x 32 bytes: block `2c` in the low nibbles of chunk `c`,
/// `2c + 1` in the high ones.
fn pack_q4_k(bytes: &[u8; 144], mut slot: Slot<'_>) {
    slot.put_six_bit_scales(&bytes[..16]);
    for block in 0..8 {
        slot.put_nibbles(block, nibble_pairs(bytes, 16, block));
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the nibbles, block `b` in bit `b`.
fn pack_q5_k(bytes: &[u8; 176], mut slot: Slot<'_>) {
    slot.put_six_bit_scales(&bytes[..16]);
    for block in 0..8 {
        slot.put_nibbles(block, nibble_pairs(bytes, 48, block));
        slot.put_bits(block, NIBBLE_LINES, shifted(bytes, 16, block));
    }
}

/// The 8 scales and 8 minimums of Q4_K as the three words of a record. In the 12 bytes, entries 0..4 are the low six
/// bits of byte `j` (scale) and `j + 4` (minimum); entries 4..8 take four bits of byte `j + 4` and two from the tops of
/// the former.
fn six_bit_words(bytes: &[u8]) -> [u32; 3] {
    let [first, second, third] = [0, 4, 8].map(|offset| word_at(bytes, offset));
    let of_four = |tops: u32, nibbles: u32| {
        let low = u64::from(six_bits(tops & SIX_BITS));
        low | u64::from(six_bits(nibbles & FOUR_BITS | tops >> 2 & (SIX_BITS ^ FOUR_BITS))) << 24
    };
    let (scales, minimums) = (of_four(first, third), of_four(second, third >> 4));
    let last = (minimums >> 42) as u32;
    let word = |five: u64, top: u32| five as u32 & 0x3fff_ffff | top << 30;
    [
        word(scales, last),
        word(scales >> 30 | minimums << 18, last >> 2),
        word(minimums >> 12, last >> 4),
    ]
}

/// Four bytes of six bits side by side.
fn six_bits(word: u32) -> u32 {
    word & 0x3f | word >> 2 & 0xfc0 | word >> 4 & 0x3_f000 | word >> 6 & 0xfc_0000
}

/// 128 bytes of low nibbles, 64 of bit pairs, 16 signed scales, f16 d. In each half of 128 values, block `i` of four
/// has its low bits in the low (`i < 2`) or high nibbles of 32 bytes, the first or second as `i` is even or odd, and
/// its high bits in bit pair `i`.
fn pack_q6_k(bytes: &[u8; 210], mut slot: Slot<'_>) {
    slot.put_scale(u16_at(bytes, 208));
    slot.put_bytes(SUB_SCALES, &bytes[192..208]);
    for block in 0..8 {
        let (half, i) = (block / 4, block % 4);
        slot.put_nibbles(block, shifted(bytes, 64 * half + 32 * (i % 2), 4 * (i / 2)));
    }
    slot.put_bit_pairs(NIBBLE_LINES, &bytes[128..192]);
}

/// An integer block, its quants as indices of `BITS` bits of the levels `L`.
fn pack_integers<L: Levels, const BITS: usize>(bytes: &[u8; INTEGER_BLOCK_BYTES], mut slot: Slot<'_>) {
    slot.put_word(0, word_at(bytes, 0));
    slot.put_bytes(SUB_SCALES, &bytes[4..20]);
    for (block, quants) in bytes[20..].chunks_exact(BLOCK_VALUES).enumerate() {
        let codes = groups(|group| {
            let quants = word_at(quants, 4 * group).to_le_bytes();
            u32::from_le_bytes(quants.map(|quant| L::CODES[usize::from(quant)]))
        });
        assert_eq!(
            codes.iter().fold(0, |all, code| all | code) & !FOUR_BITS,
            0,
            "a quant that is no level"
        );
        if BITS == 4 {
            slot.put_nibbles(block, codes);
        } else {
            slot.put_pairs(block, 0, codes);
            slot.put_bits(block, PAIR_LINES, codes.map(|code| code >> 2));
        }
    }
}

/// f16 d, a bit pair and 8 nibbles of each block's scale around 32, nibbles as Q4_0.
fn pack_iq4_xs(bytes: &[u8; 136], mut slot: Slot<'_>) {
    slot.put_scale(u16_at(bytes, 0));
    let pairs = u16_at(bytes, 2);
    let mut scales = [0_u8; 8];
    for (block, scale) in scales.iter_mut().enumerate() {
        let low = bytes[4 + block / 2] >> (4 * (block % 2)) & 15;
        *scale = (low | ((pairs >> (2 * block) & 3) << 4) as u8).wrapping_sub(32);
        slot.put_nibbles(block, halves(bytes, 8 + 16 * block));
    }
    slot.put_bytes(SUB_SCALES, &scales);
}

/// 48 bytes of five base-3 digits and 4 of four, f16 d. The digits of a byte are those of the fraction of 256 that it is; 32, then 16,
/// then 4 bytes take turns.
fn pack_tq1_0(bytes: &[u8; 54], mut slot: Slot<'_>) {
    slot.put_scale(u16_at(bytes, 52));
    let mut digits = [0; 256];
    let (first, rest) = digits.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    for (stored, digits) in [(&bytes[..32], first), (&bytes[32..48], second), (&bytes[48..52], third)] {
        let mut power = 1_u8;
        for digits in digits.chunks_exact_mut(stored.len()) {
            for (digit, byte) in digits.iter_mut().zip(stored) {
                *digit = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
            }
            power = power.wrapping_mul(3);
        }
    }
    for block in 0..8 {
        slot.put_pairs(block, 0, shifted(&digits, 32 * block, 0));
    }
}

/// 64 bytes of bit pairs, f16 d.
fn pack_tq2_0(bytes: &[u8; 66], mut slot: Slot<'_>) {
    slot.put_scale(u16_at(bytes, 64));
    slot.put_bit_pairs(0, &bytes[..64]);
}

/// E8M0 exponent, nibbles as Q4_0.
fn pack_mxfp4(bytes: &[u8; 17], mut slot: Slot<'_>) {
    slot.put_bytes(slot.block * PANEL_ROWS, &bytes[..1]);
    slot.put_nibbles(slot.block, halves(bytes, 1));
}

/// Four E4M3 scales whose sign bit is not used and whose largest means 0; for each, 8 bytes: values 0..8 in the low nibbles, 8..16 in
/// the high ones.
fn pack_nvfp4(bytes: &[u8; 36], mut slot: Slot<'_>) {
    let scales = [0, 1, 2, 3].map(|i| bytes[i] & 0x7f);
    slot.put_bytes(0, &scales.map(|scale| if scale == 0x7f { 0 } else { scale }));
    for (block, quants) in bytes[4..].chunks_exact(16).enumerate() {
        let codes = groups(|group| word_at(quants, 8 * (group / 4) + 4 * (group % 2)) >> (4 * (group % 4 / 2)));
        slot.put_nibbles(block, codes);
    }
}
