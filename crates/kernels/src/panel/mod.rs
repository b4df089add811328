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

use lanes::QuantizedPanel;
use layout::Layout;

/// Output rows of a panel.
pub const PANEL_ROWS: usize = 16;

/// Bytes of a cache line: panels are a multiple of it.
pub(crate) const LINE_BYTES: usize = 64;

/// The weight types that have panels, named as their published block types. Rows are packed from published blocks or, for
/// the codebook types, from *integer blocks* of 256 values: an f32 scale (little-endian), 16 signed bytes that scale 16
/// values each (at most 31), 256 signed quants. Weights of other types are decoded to f32 rows.
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
    /// Blocks of 32: f16 scale and minimum, 5-bit quants.
    Q5_1,
    /// Blocks of 256: f16 scales of 4-bit scales and minimums of 16 values each, 2-bit quants.
    Q2_K,
    /// Blocks of 256: f16 scale of 6-bit signed scales of 16 values each, 3-bit quants around 4.
    Q3_K,
    /// Blocks of 256: f16 scales of 6-bit scales and minimums of 32 values each, 4-bit quants.
    Q4_K,
    /// As Q4_K, 5-bit quants.
    Q5_K,
    /// Blocks of 256: f16 scale of 8-bit signed scales of 16 values each, 6-bit quants around 32.
    Q6_K,
    /// The IQ1 types as integer blocks of quants ±1, ±7 and ±9.
    IQ1,
    /// The IQ2 types as integer blocks of quants ±8, ±25 and ±43.
    IQ2,
    /// IQ3_XXS as integer blocks of quants ±2, ±6, … ±26 and ±31.
    IQ3_XXS,
    /// IQ3_S as integer blocks of quants ±1, ±3, … ±15.
    IQ3_S,
    /// Blocks of 32: f16 scale, indices of 16 levels.
    IQ4_NL,
    /// Blocks of 256: f16 scale of 6-bit signed scales of 32 values each, indices of 16 levels.
    IQ4_XS,
    /// Blocks of 256: f16 scale, -1, 0 and 1 as base-3 digits.
    TQ1_0,
    /// Blocks of 256: f16 scale, -1, 0 and 1 as 2-bit quants around 1.
    TQ2_0,
    /// Blocks of 32: E8M0 scale, 4-bit floats.
    MXFP4,
    /// Blocks of 64: E4M3 scales of 16 values each, 4-bit floats.
    NVFP4,
}

/// Evaluates an expression with `$W` the records of a quantised panel type; the arms given are for the other types.
macro_rules! match_panels {
    ($panel_type:expr; $W:ident => $body:expr; $($pattern:pat => $arm:expr,)*) => {
        match_panels!(@ $panel_type; $W => $body; $($pattern => $arm,)* ;
            Q8_0 Q8_0, Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1,
            Q2_K Q2_K, Q3_K Q3_K, Q4_K Q4_K, Q5_K Q5_K, Q6_K Q6_K,
            IQ1 IQ1, IQ2 IQ2, IQ3_XXS IQ3_XXS, IQ3_S IQ3_S, IQ4_NL IQ4_NL, IQ4_XS IQ4_XS,
            TQ1_0 TQ, TQ2_0 TQ, MXFP4 MXFP4, NVFP4 NVFP4)
    };
    (@ $panel_type:expr; $W:ident => $body:expr; $($pattern:pat => $arm:expr,)* ; $($name:ident $records:ident),*) => {
        match $panel_type {
            $($pattern => $arm,)*
            $(PanelType::$name => {
                type $W = $crate::panel::lanes::types::$records;
                $body
            })*
        }
    };
}
pub(crate) use match_panels;

/// Bytes of 256 values as an integer block.
const INTEGER_BLOCK_BYTES: usize = 4 + 16 + 256;

impl PanelType {
    /// Every type.
    pub const ALL: [PanelType; 23] = {
        use PanelType::*;
        [
            F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ1, IQ2, IQ3_XXS, IQ3_S,
            IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4,
        ]
    };

    /// Whether the weights are quantised, so that 8-bit activations may meet them.
    pub fn is_quantized(self) -> bool {
        self.layout().is_some()
    }

    /// Values and bytes of a block of a row.
    fn block(self) -> (usize, usize) {
        match self {
            PanelType::F32 => (1, 4),
            PanelType::F16 | PanelType::BF16 => (1, 2),
            PanelType::Q8_0 => (32, 34),
            PanelType::Q4_0 | PanelType::IQ4_NL => (32, 18),
            PanelType::Q4_1 => (32, 20),
            PanelType::Q5_0 => (32, 22),
            PanelType::Q5_1 => (32, 24),
            PanelType::Q2_K => (256, 84),
            PanelType::Q3_K => (256, 110),
            PanelType::Q4_K => (256, 144),
            PanelType::Q5_K => (256, 176),
            PanelType::Q6_K => (256, 210),
            PanelType::IQ1 | PanelType::IQ2 | PanelType::IQ3_XXS | PanelType::IQ3_S => (256, INTEGER_BLOCK_BYTES),
            PanelType::IQ4_XS => (256, 136),
            PanelType::TQ1_0 => (256, 54),
            PanelType::TQ2_0 => (256, 66),
            PanelType::MXFP4 => (32, 17),
            PanelType::NVFP4 => (64, 36),
        }
    }

    /// Values of a block: the smallest step of `k`.
    pub fn block_values(self) -> usize {
        self.block().0
    }

    /// Bytes of a published or integer block.
    pub fn block_bytes(self) -> usize {
        self.block().1
    }

    /// Whether rows are packed from integer blocks.
    pub fn takes_integers(self) -> bool {
        self.block_bytes() == INTEGER_BLOCK_BYTES
    }

    /// Bytes of one row of `k` values as it is packed, a multiple of [`Self::block_values`].
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

    /// Packs up to 16 rows of blocks, each of [`Self::row_bytes`], into `panel` of [`Self::panel_bytes`].
    ///
    /// # Panics
    /// If a length is not as said, `k` is no multiple of the block or an integer block holds what it must not: a mistake of the
    /// caller.
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
        pack::pack(self, rows, k, panel);
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
        match_panels!(self; W => Some(W::LAYOUT); PanelType::F32 | PanelType::F16 | PanelType::BF16 => None,)
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
            (PanelType::Q5_1, 64, 768),
            (PanelType::Q2_K, 256, 1344),
            (PanelType::Q3_K, 256, 1856),
            (PanelType::Q4_K, 256, 2304),
            (PanelType::Q5_K, 256, 2816),
            (PanelType::Q6_K, 256, 3392),
            (PanelType::IQ1, 256, 1856),
            (PanelType::IQ2, 256, 1856),
            (PanelType::IQ3_XXS, 256, 2368),
            (PanelType::IQ3_S, 256, 2368),
            (PanelType::IQ4_NL, 64, 576),
            (PanelType::IQ4_XS, 256, 2240),
            (PanelType::TQ1_0, 256, 1088),
            (PanelType::TQ2_0, 256, 1088),
            (PanelType::MXFP4, 128, 1088),
            (PanelType::NVFP4, 64, 576),
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
