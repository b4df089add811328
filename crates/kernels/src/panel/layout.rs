//! The bytes of a record of a quantised panel.
//!
//! A record is a header with the scales of all 16 rows, then the quants of its blocks of 32 values, one block after the
//! other. Values `4g .. 4g + 4` of a block (group `g` of 8) of row `l` are the four bytes of one 32-bit word; the words
//! of the 16 rows lie side by side in one 64-byte line.
//!
//! | header | bytes | blocks | holds |
//! |---|---|---|---|
//! | pair scales | 64 | 2 | f16 scale `[2][16]` |
//! | pair scales and minimums | 128 | 2 | per block: f16 scale `[16]`, f16 minimum `[16]` |
//! | six-bit scales | 256 | 8 | f16 d `[16]`, f16 dmin `[16]`, 3 lines of 6-bit values |
//! | nibble scales | 320 | 8 | f16 d `[16]`, f16 dmin `[16]`, `[16][16]` bytes: scale in the low nibble, minimum in the high |
//! | scales of 16 | 320 | 8 | f32 d `[16]`, i8 scale `[16][16]` |
//! | scales of 32 | 192 | 8 | f32 d `[16]`, i8 scale `[8][16]` |
//! | record scale | 64 | 8 | f32 d `[16]` |
//! | exponents | 64 | 4 | E8M0 scale `[4][16]` |
//! | small floats | 64 | 2 | unsigned E4M3 scale of 16 values `[4][16]` |
//!
//! | quants | bytes | lines of a block |
//! |---|---|---|
//! | bytes | 512 | 8, group `g` in line `g`; quant + 128 |
//! | nibbles | 256 | 4: group `s` in the low nibbles of line `s`, `s + 4` in the high ones |
//! | five bits | 320 | 4 nibble lines, 1 of high bits: bit `g` of byte `j` belongs to value `4g + j` |
//! | six bits | 384 | 4 nibble lines, 2 of bit pairs: group `4h + s` at bit `2s` of line `h` |
//! | two bits | 128 | 2 of bit pairs, as above |
//! | three bits | 192 | 2 of bit pairs, 1 of high bits |
//!
//! | type | header | quants | bits a weight |
//! |---|---|---|---|
//! | Q8_0 | pair scales | bytes | 8.5 |
//! | Q4_0, IQ4_NL | pair scales | nibbles | 4.5 |
//! | Q5_0 | pair scales | five bits | 5.5 |
//! | Q4_1 | pair scales and minimums | nibbles | 5 |
//! | Q5_1 | pair scales and minimums | five bits | 6 |
//! | Q4_K | six-bit scales | nibbles | 4.5 |
//! | Q5_K | six-bit scales | five bits | 5.5 |
//! | Q2_K | nibble scales | two bits | 2.625 |
//! | Q3_K, IQ1, IQ2 | scales of 16 | three bits | 3.625 |
//! | IQ3_XXS, IQ3_S | scales of 16 | nibbles | 4.625 |
//! | Q6_K | scales of 16 | six bits | 6.625 |
//! | IQ4_XS | scales of 32 | nibbles | 4.375 |
//! | TQ1_0, TQ2_0 | record scale | two bits | 2.125 |
//! | MXFP4 | exponents | nibbles | 4.25 |
//! | NVFP4 | small floats | nibbles | 4.5 |
//!
//! The quants of IQ and FP4 types are indices of a table of 8 or 16 levels.
//!
//! The six-bit values are numbered: the scale of block `b` is value `b`, its minimum value `8 + b`. Value `v`
//! below 15 lies in word `v / 5` at bit `6 (v % 5)`; value 15 lies two bits at a time in the tops of words 0, 1 and 2.

/// Values of a block: one scale of the activations.
pub(crate) const BLOCK_VALUES: usize = 32;

/// Words of four values in a block.
pub(crate) const BLOCK_GROUPS: usize = 8;

/// Where a record keeps its blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Blocks of 32 values in a record.
    pub blocks: usize,
    /// Bytes of the scales before the first block.
    pub header_bytes: usize,
    /// Bytes of the quants of a block.
    pub block_bytes: usize,
}

impl Layout {
    /// Bytes of a record.
    pub(crate) const fn record_bytes(self) -> usize {
        self.header_bytes + self.blocks * self.block_bytes
    }

    /// Bytes of whole records of so many blocks together.
    pub(crate) const fn bytes_of_blocks(self, blocks: usize) -> usize {
        blocks / self.blocks * self.record_bytes()
    }

    /// Records of a panel of `k` values a row. Only the last may be partly used.
    pub(crate) const fn records(self, k: usize) -> usize {
        k.div_ceil(self.blocks * BLOCK_VALUES)
    }

    /// Offset of block `block` of a record from its start.
    pub(crate) const fn block_offset(self, block: usize) -> usize {
        self.header_bytes + block * self.block_bytes
    }
}

/// Offset of the lines after the nibbles of a block: the high bits of five- and six-bit quants.
pub(crate) const AFTER_NIBBLES: usize = 256;

/// Offset of the line after the bit pairs of three-bit quants.
pub(crate) const AFTER_PAIRS: usize = 128;

/// Offset of the scales within a record after d, or d and dmin.
pub(crate) const SUB_SCALES: usize = 64;

/// Offset of minimums after the scales of a block, and of dmin after d.
pub(crate) const MINIMUMS: usize = 32;
