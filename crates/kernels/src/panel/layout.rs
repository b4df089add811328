//! The bytes of a record of a quantised panel.
//!
//! A record is a header with the scales of all 16 rows, then the quants of its blocks of 32 values, one block after the
//! other. Values `4g .. 4g + 4` of a block (group `g` of 8) of row `l` are the four bytes of one 32-bit word; the words
//! of the 16 rows lie side by side in one 64-byte line.
//!
//! | type | header | block |
//! |---|---|---|
//! | Q8_0 | f16 scale `[2][16]` | 8 lines, group `g` in line `g`; bytes are quant + 128 |
//! | Q4_0 | f16 scale `[2][16]` | 4 nibble lines: group `s` in the low nibbles of line `s`, `s + 4` in the high ones |
//! | Q4_1 | per block: f16 scale `[16]`, f16 minimum `[16]` | 4 nibble lines |
//! | Q5_0 | f16 scale `[2][16]` | 4 nibble lines, 1 of high bits: bit `g` of byte `j` belongs to value `4g + j` |
//! | Q4_K | f16 d `[16]`, f16 dmin `[16]`, 3 lines of 6-bit values | 4 nibble lines |
//! | Q6_K | f32 d `[16]`, i8 scales `[16][16]` | 4 nibble lines, 2 of bit pairs: group `4h + s` at bit `2s` of line `h` |
//!
//! The 6-bit values of Q4_K are numbered: the scale of block `b` is value `b`, its minimum value `8 + b`. Value `v`
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

    /// Records of a panel of `k` values a row. Only the last may be partly used.
    pub(crate) const fn records(self, k: usize) -> usize {
        k.div_ceil(self.blocks * BLOCK_VALUES)
    }

    /// Offset of block `block` of a record from its start.
    pub(crate) const fn block_offset(self, block: usize) -> usize {
        self.header_bytes + block * self.block_bytes
    }
}

pub(crate) const Q8_0: Layout = Layout {
    blocks: 2,
    header_bytes: 64,
    block_bytes: 512,
};
pub(crate) const Q4_0: Layout = Layout {
    blocks: 2,
    header_bytes: 64,
    block_bytes: 256,
};
pub(crate) const Q4_1: Layout = Layout {
    blocks: 2,
    header_bytes: 128,
    block_bytes: 256,
};
pub(crate) const Q5_0: Layout = Layout {
    blocks: 2,
    header_bytes: 64,
    block_bytes: 320,
};
pub(crate) const Q4_K: Layout = Layout {
    blocks: 8,
    header_bytes: 256,
    block_bytes: 256,
};
pub(crate) const Q6_K: Layout = Layout {
    blocks: 8,
    header_bytes: 320,
    block_bytes: 384,
};

/// Offset of the lines after the nibbles of a block: the high bits of Q5_0 and Q6_K.
pub(crate) const HIGH_BITS: usize = 256;

/// Offset of the 6-bit values in a Q4_K record, and of the 8-bit scales in a Q6_K record.
pub(crate) const SUB_SCALES: usize = 64;

/// Offset of the minimums after the scales of a Q4_1 block, and of dmin after d in a Q4_K record.
pub(crate) const MINIMUMS: usize = 32;
