//! One row of a panel to f32: the rows of a tied embedding.

use super::lanes::scales::Scales;
use super::lanes::{self, QuantizedPanel, quants::Quants};
use super::layout::{BLOCK_GROUPS, BLOCK_VALUES};
use super::{PANEL_ROWS, PanelType, match_panels};
use crate::float16::{bf16_to_f32, f16_to_f32};
use crate::vector::{Scalar, Simd};

/// `panel` has the length that `out` asks for.
pub(super) fn unpack_row(panel_type: PanelType, panel: &[u8], lane: usize, out: &mut [f32]) {
    match_panels!(panel_type; W => unpack_blocks::<W>(panel, lane, out);
        PanelType::F32 => unpack_floats(panel, lane, out, f32::from_le_bytes),
        PanelType::F16 => unpack_floats(panel, lane, out, |bytes| f16_to_f32(u16::from_le_bytes(bytes))),
        PanelType::BF16 => unpack_floats(panel, lane, out, |bytes| bf16_to_f32(u16::from_le_bytes(bytes))),
    )
}

fn unpack_floats<const BYTES: usize>(panel: &[u8], lane: usize, out: &mut [f32], decode: fn([u8; BYTES]) -> f32) {
    let (values, _) = panel.as_chunks::<BYTES>();
    for (to, &value) in out.iter_mut().zip(values[lane..].iter().step_by(PANEL_ROWS)) {
        *to = decode(value);
    }
}

/// Decodes as the kernels do, in plain Rust, the few rows that share a register.
fn unpack_blocks<W: QuantizedPanel>(panel: &[u8], lane: usize, out: &mut [f32]) {
    let (blocks, _) = out.as_chunks_mut::<BLOCK_VALUES>();
    let records = panel.chunks_exact(W::LAYOUT.record_bytes());
    let (first, lane) = (lane / Scalar::LANES * Scalar::LANES, lane % Scalar::LANES);
    for (blocks, record) in blocks.chunks_mut(W::LAYOUT.blocks).zip(records) {
        // SAFETY: `Scalar` is plain Rust. `record` is a whole record with as many blocks as `blocks` at most, `first`
        // is a multiple of the width below 16.
        unsafe {
            let header = W::Scales::header::<Scalar>(record.as_ptr(), first);
            for (block, values) in blocks.iter_mut().enumerate() {
                let quants = record.as_ptr().add(W::LAYOUT.block_offset(block));
                for group in 0..BLOCK_GROUPS {
                    let codes = W::Quants::codes::<Scalar>(quants, first, group);
                    let weights = lanes::decode::<Scalar, W>(codes, &header, block, group / (BLOCK_GROUPS / 2));
                    for (value, weights) in values[4 * group..].iter_mut().zip(weights) {
                        *value = weights[lane];
                    }
                }
            }
        }
    }
}
