//! Weights, decoded to f32 where they are quantised, times f32 activations.

use std::marker::PhantomData;

use super::stretch::STRETCH_VALUES;
use super::{Operands, PanelKernel, TileKernel, TileShape, headers};
use crate::panel::lanes::quants::Quants;
use crate::panel::lanes::scales::Scales;
use crate::panel::lanes::{self, FloatPanel, QuantizedPanel, records};
use crate::panel::layout::{BLOCK_GROUPS, BLOCK_VALUES};
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::vector::Simd;

/// Panels of floats of one type.
pub(super) struct FloatTile<W>(PhantomData<W>);

/// Quantised panels of one type, decoded.
pub(super) struct DecodedTile<W>(PhantomData<W>);

/// Adds `weight` times value `i` of each row to the sums.
///
/// # Safety
/// As [`TileKernel::tile`]; `x` points to value `i` of the first row of the tile.
#[inline(always)]
unsafe fn accumulate<S: Simd, const R: usize>(sums: &mut [S::F32; R], weight: S::F32, x: *const u32) {
    for (r, sum) in sums.iter_mut().enumerate() {
        // SAFETY: required of the caller.
        unsafe { *sum = S::fma(weight, S::splat(f32::from_bits(*x.add(r))), *sum) };
    }
}

impl<W: FloatPanel> TileKernel for FloatTile<W> {
    const SHAPE: TileShape = TileShape {
        rows_max_16: 8,
        rows_max_8: 4,
        rows_max_4: 8,
        one_pass_rows_8: 4,
    };

    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const V: usize, const X: usize>(operands: Operands, lane: usize) {
        // SAFETY: required of the caller: the panel holds 16 values and `x` holds `X` for each of `k`.
        unsafe {
            let mut sums = operands.starts::<S, R, V>(lane);
            for i in 0..operands.k {
                let x = operands.x.add(i * X);
                let values = operands.panel.add(i * PANEL_ROWS * W::BYTES);
                if i % (LINE_BYTES / W::BYTES / PANEL_ROWS) == 0 {
                    operands.prefetch::<S>(values, LINE_BYTES);
                }
                for (v, sums) in sums.iter_mut().enumerate() {
                    let weight = W::load::<S>(values.add((lane + v * S::LANES) * W::BYTES));
                    accumulate::<S, R>(sums, weight, x);
                }
            }
            operands.store::<S, R, V>(lane, sums);
        }
    }
}

impl<W: FloatPanel> PanelKernel for FloatTile<W> {
    type Unpacked = FloatTile<lanes::F32>;
    const UNPACKS: bool = W::BYTES != lanes::F32::BYTES;
    const STRETCH_BYTES: usize = STRETCH_VALUES * PANEL_ROWS * W::BYTES;

    #[inline(always)]
    unsafe fn unpack<S: Simd>(panel: *const u8, values: usize, to: *mut u8) {
        for i in (0..values * PANEL_ROWS).step_by(S::LANES) {
            // SAFETY: required of the caller.
            unsafe { S::store(to.cast::<f32>().add(i), W::load::<S>(panel.add(i * W::BYTES))) };
        }
    }
}

impl<W: QuantizedPanel> TileKernel for DecodedTile<W> {
    const SHAPE: TileShape = TileShape {
        rows_max_16: 4,
        rows_max_8: 4,
        rows_max_4: 4,
        one_pass_rows_8: 4,
    };

    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const V: usize, const X: usize>(operands: Operands, lane: usize) {
        let layout = W::LAYOUT;
        // SAFETY: required of the caller: the panel holds a record for every `layout.blocks` blocks or part of them,
        // and `x` holds `X` values for each of `k`.
        unsafe {
            let mut sums = operands.starts::<S, R, V>(lane);
            let mut record = operands.panel;
            let mut x = operands.x;
            let mut blocks_left = operands.k / BLOCK_VALUES;
            while blocks_left > 0 {
                let headers = headers::<S, W, V>(record, lane);
                let record_blocks = blocks_left.min(layout.blocks);
                for block in 0..record_blocks {
                    let quants = record.add(layout.block_offset(block));
                    operands.prefetch::<S>(quants, layout.block_bytes);
                    for group in 0..BLOCK_GROUPS {
                        for v in 0..V {
                            let codes = W::Quants::codes::<S>(quants, lane + v * S::LANES, group);
                            let weights = lanes::decode::<S, W>(codes, &headers[v], block, group / (BLOCK_GROUPS / 2));
                            for (j, weight) in weights.into_iter().enumerate() {
                                accumulate::<S, R>(&mut sums[v], weight, x.add((group * 4 + j) * X));
                            }
                        }
                    }
                    x = x.add(BLOCK_VALUES * X);
                }
                record = record.add(layout.record_bytes());
                blocks_left -= record_blocks;
            }
            operands.store::<S, R, V>(lane, sums);
        }
    }
}

impl<W: QuantizedPanel> PanelKernel for DecodedTile<W> {
    type Unpacked = FloatTile<lanes::F32>;
    const STRETCH_BYTES: usize = W::LAYOUT.bytes_of_blocks(STRETCH_VALUES / BLOCK_VALUES);

    #[inline(always)]
    unsafe fn unpack<S: Simd>(panel: *const u8, values: usize, to: *mut u8) {
        let to = to.cast::<f32>();
        // SAFETY: required of the caller.
        unsafe {
            for lane in (0..PANEL_ROWS).step_by(S::LANES) {
                for record in records::<W>(panel, values / BLOCK_VALUES) {
                    let header = W::Scales::header::<S>(record.at, lane);
                    for block in 0..record.blocks {
                        let quants = record.at.add(W::LAYOUT.block_offset(block));
                        for group in 0..BLOCK_GROUPS {
                            let codes = W::Quants::codes::<S>(quants, lane, group);
                            let weights = lanes::decode::<S, W>(codes, &header, block, group / (BLOCK_GROUPS / 2));
                            let first = ((record.first_block + block) * BLOCK_GROUPS + group) * 4;
                            for (j, weight) in weights.into_iter().enumerate() {
                                S::store(to.add((first + j) * PANEL_ROWS + lane), weight);
                            }
                        }
                    }
                }
            }
        }
    }
}
