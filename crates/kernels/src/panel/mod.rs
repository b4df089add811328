//! Weights in panels: the layout that one sequential stream of the kernels reads.
//!
//! A panel holds 16 output rows (a weight matrix is `[outputs][k]`) side by side: lane `l` of every register belongs to
//! row `l`. Quantised panels are a sequence of records of whole 64-byte lines. A record holds, for all 16 rows, the
//! scales of its blocks of 32 values and then their quants. [`layout`] gives the bytes. Rows that a matrix lacks in its
//! last panel are zero.

pub(crate) mod lanes;
pub(crate) mod layout;
mod pack;
mod unpack;

use std::fmt;

use layout::Layout;

/// Output rows of a panel.
pub const PANEL_ROWS: usize = 16;

/// Bytes of a cache line: panels are a multiple of it.
pub(crate) const LINE_BYTES: usize = 64;

/// The weight types that have panels, named as their published block types. Weights of other types are decoded to f32
/// rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the published names of the types")]
pub enum PanelType {
    /// 32-bit floats.
    F32,
    /// IEEE half-precision floats.
    F16,
    /// bfloat16.
    BF16,
    /// Blocks of 32: f16 scale, 8-bit signed quants.
    Q8_0,
    /// Blocks of 32: f16 scale, 4-bit quants around 8.
    Q4_0,
    /// Blocks of 32: f16 scale and minimum, 4-bit quants.
    Q4_1,
    /// Blocks of 32: f16 scale, 5-bit quants around 16.
    Q5_0,
    /// Blocks of 256: f16 scales of 6-bit scales and minimums of 32 values each, 4-bit quants.
    Q4_K,
    /// Blocks of 256: f16 scale of 8-bit signed scales of 16 values each, 6-bit quants around 32.
    Q6_K,
}

impl PanelType {
    /// Every type.
    pub const ALL: [PanelType; 9] = [
        PanelType::F32,
        PanelType::F16,
        PanelType::BF16,
        PanelType::Q8_0,
        PanelType::Q4_0,
        PanelType::Q4_1,
        PanelType::Q5_0,
        PanelType::Q4_K,
        PanelType::Q6_K,
    ];

    /// Whether the weights are quantised, so that 8-bit activations may meet them.
    pub fn is_quantized(self) -> bool {
        self.layout().is_some()
    }

    /// Values of a published block: the smallest step of `k`.
    pub fn block_values(self) -> usize {
        match self {
            PanelType::F32 | PanelType::F16 | PanelType::BF16 => 1,
            PanelType::Q8_0 | PanelType::Q4_0 | PanelType::Q4_1 | PanelType::Q5_0 => 32,
            PanelType::Q4_K | PanelType::Q6_K => 256,
        }
    }

    /// Bytes of a published block.
    pub fn block_bytes(self) -> usize {
        match self {
            PanelType::F32 => 4,
            PanelType::F16 | PanelType::BF16 => 2,
            PanelType::Q8_0 => 34,
            PanelType::Q4_0 => 18,
            PanelType::Q4_1 => 20,
            PanelType::Q5_0 => 22,
            PanelType::Q4_K => 144,
            PanelType::Q6_K => 210,
        }
    }

    /// Bytes of one row of `k` values in the file, a multiple of [`Self::block_values`].
    pub fn row_bytes(self, k: usize) -> usize {
        (k / self.block_values()).saturating_mul(self.block_bytes())
    }

    /// Bytes of a panel of 16 rows of `k` values, a multiple of 64. `usize::MAX` if they are not countable.
    pub fn panel_bytes(self, k: usize) -> usize {
        match self.layout() {
            Some(layout) => layout.records(k).saturating_mul(layout.record_bytes()),
            None => {
                let bytes = k.saturating_mul(PANEL_ROWS * self.block_bytes());
                bytes.checked_next_multiple_of(LINE_BYTES).unwrap_or(usize::MAX)
            }
        }
    }

    /// Packs up to 16 rows of published blocks, each of [`Self::row_bytes`], into `panel` of [`Self::panel_bytes`].
    ///
    /// # Panics
    /// If a length is not as said or `k` is no multiple of the block: a mistake of the caller.
    pub fn pack(self, rows: &[&[u8]], k: usize, panel: &mut [u8]) {
        self.check(k, panel);
        assert!(
            rows.len() <= PANEL_ROWS,
            "{} rows in a panel of {PANEL_ROWS}",
            rows.len()
        );
        for row in rows {
            assert_eq!(row.len(), self.row_bytes(k), "bytes of a row of {k} {self} values");
        }
        pack::pack(self, rows, panel);
    }

    /// Decodes row `lane` of a panel to `out`, whose length is `k`: the published decoding, bit for bit.
    ///
    /// # Panics
    /// If a length is not as said, `k` is no multiple of the block or `lane` is not below 16: a mistake of the caller.
    pub fn unpack_row(self, panel: &[u8], lane: usize, out: &mut [f32]) {
        self.check(out.len(), panel);
        assert!(lane < PANEL_ROWS, "row {lane} of a panel of {PANEL_ROWS}");
        unpack::unpack_row(self, panel, lane, out);
    }

    /// The record layout of a quantised type.
    pub(crate) fn layout(self) -> Option<Layout> {
        match self {
            PanelType::F32 | PanelType::F16 | PanelType::BF16 => None,
            PanelType::Q8_0 => Some(layout::Q8_0),
            PanelType::Q4_0 => Some(layout::Q4_0),
            PanelType::Q4_1 => Some(layout::Q4_1),
            PanelType::Q5_0 => Some(layout::Q5_0),
            PanelType::Q4_K => Some(layout::Q4_K),
            PanelType::Q6_K => Some(layout::Q6_K),
        }
    }

    fn check(self, k: usize, panel: &[u8]) {
        assert!(
            k.is_multiple_of(self.block_values()),
            "{k} values are no whole number of {self} blocks"
        );
        assert_eq!(
            panel.len(),
            self.panel_bytes(k),
            "bytes of a panel of {k} {self} values"
        );
    }
}

impl fmt::Display for PanelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_whole_lines_of_the_documented_size() {
        let sizes = [
            (PanelType::Q8_0, 64, 1088),
            (PanelType::Q4_0, 64, 576),
            (PanelType::Q4_1, 64, 640),
            (PanelType::Q5_0, 64, 704),
            (PanelType::Q4_K, 256, 2304),
            (PanelType::Q6_K, 256, 3392),
            (PanelType::F16, 3, 128),
        ];
        for (panel_type, k, bytes) in sizes {
            assert_eq!(panel_type.panel_bytes(k), bytes, "{panel_type}");
        }
        for panel_type in PanelType::ALL {
            assert_eq!(
                panel_type.panel_bytes(7 * panel_type.block_values()) % LINE_BYTES,
                0,
                "{panel_type}"
            );
        }
    }

    #[test]
    fn uncountable_sizes_saturate() {
        assert_eq!(PanelType::F32.panel_bytes(usize::MAX / 2), usize::MAX);
        assert_eq!(PanelType::Q6_K.panel_bytes(usize::MAX - 255), usize::MAX);
    }
}
