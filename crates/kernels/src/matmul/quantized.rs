//! Quantised weights times 8-bit activations.

use std::marker::PhantomData;

use super::stretch::{MOST_BYTES, STRETCH_VALUES};
use super::{Operands, PanelKernel, TileKernel, TileShape, headers};
use crate::panel::PANEL_ROWS;
use crate::panel::lanes::quants::{DotWidth, Quants};
use crate::panel::lanes::scales::Scales;
use crate::panel::lanes::unpacked::{self, Unpacked};
use crate::panel::lanes::{Header, QuantizedPanel, records};
use crate::panel::layout::{BLOCK_GROUPS, BLOCK_VALUES};
use crate::quantize::{BLOCK_WORDS, MINUS_FIRST_SUM, MINUS_SUM, SCALE, SCALED_SUM};
use crate::vector::Simd;

/// Quantised panels of one type times 8-bit activations.
pub(super) struct QuantizedTile<W>(PhantomData<W>);

/// The order of a block's groups that loads each nibble line once.
const NIBBLE_ORDER: [usize; BLOCK_GROUPS] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A block of activations of the rows of a tile, `X` rows interleaved.
#[derive(Clone, Copy)]
struct ActivationBlock<const X: usize> {
    words: *const u32,
}

impl<const X: usize> ActivationBlock<X> {
    /// Word `i` of row `r` in every lane.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; the block holds row `r`; `i` is below [`BLOCK_WORDS`].
    #[inline(always)]
    unsafe fn word<S: Simd>(self, i: usize, r: usize) -> S::I32 {
        // SAFETY: required of the caller.
        unsafe { S::splat_i32(*self.words.add(i * X + r) as i32) }
    }

    /// As [`Self::word`], an f32.
    ///
    /// # Safety
    /// As [`Self::word`].
    #[inline(always)]
    unsafe fn float<S: Simd>(self, i: usize, r: usize) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::splat(f32::from_bits(*self.words.add(i * X + r))) }
    }

    /// Minus the sum of the quants of half `half` of row `r`, in every lane.
    ///
    /// # Safety
    /// As [`Self::word`].
    #[inline(always)]
    unsafe fn minus_half_sum<S: Simd>(self, half: usize, r: usize) -> S::I32 {
        // SAFETY: required of the caller.
        unsafe {
            let first = self.word::<S>(MINUS_FIRST_SUM, r);
            if half == 0 {
                first
            } else {
                S::sub_i32(self.word::<S>(MINUS_SUM, r), first)
            }
        }
    }
}

impl<W: QuantizedPanel> TileKernel for QuantizedTile<W> {
    const SHAPE: TileShape = TileShape {
        rows_max_16: 8,
        rows_max_8: match W::Quants::DOT {
            DotWidth::Narrow(8) if !W::Scales::SUB_SCALES => 4,
            // Sums of 32 bits too are kept from one run of narrow sums to the next.
            DotWidth::Narrow(_) => 3,
            DotWidth::Wide => 4,
        },
        rows_max_4: 8,
        one_pass_rows_8: 1,
    };

    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const V: usize, const X: usize>(operands: Operands, lane: usize) {
        let layout = W::LAYOUT;
        // SAFETY: required of the caller: the panel holds a record for every `layout.blocks` blocks or part of them,
        // and `x` holds as many blocks of `X` rows.
        unsafe {
            let mut sums = operands.starts::<S, R, V>(lane);
            let mut record = operands.panel;
            let mut x = ActivationBlock::<X> { words: operands.x };
            let mut blocks_left = operands.k / BLOCK_VALUES;
            while blocks_left > 0 {
                let headers = headers::<S, W, V>(record, lane);
                let record_blocks = blocks_left.min(layout.blocks);
                for block in 0..record_blocks {
                    let quants = record.add(layout.block_offset(block));
                    operands.prefetch::<S>(quants, layout.block_bytes);
                    for v in 0..V {
                        let dots = integer_dots::<S, W, R, X>(quants, lane + v * S::LANES, x, &headers[v], block);
                        let scale = W::Scales::scale::<S>(&headers[v], block);
                        for (r, sum) in sums[v].iter_mut().enumerate() {
                            *sum = S::fma(dots[r], S::mul(scale, x.float::<S>(SCALE, r)), *sum);
                        }
                        if W::Scales::MINIMUMS {
                            add_minimums::<S, W, R, X>(&mut sums[v], &headers[v], block, x);
                        }
                    }
                    x.words = x.words.add(BLOCK_WORDS * X);
                }
                record = record.add(layout.record_bytes());
                blocks_left -= record_blocks;
            }
            operands.store::<S, R, V>(lane, sums);
        }
    }
}

impl<W: QuantizedPanel> PanelKernel for QuantizedTile<W> {
    type Unpacked = QuantizedTile<Unpacked<W>>;
    const STRETCH_BYTES: usize = W::LAYOUT.bytes_of_blocks(STRETCH_VALUES / BLOCK_VALUES);

    #[inline(always)]
    unsafe fn unpack<S: Simd>(panel: *const u8, values: usize, to: *mut u8) {
        const { assert!(Unpacked::<W>::LAYOUT.record_bytes() <= MOST_BYTES) };
        // SAFETY: required of the caller.
        unsafe {
            for lane in (0..PANEL_ROWS).step_by(S::LANES) {
                for record in records::<W>(panel, values / BLOCK_VALUES) {
                    let header = W::Scales::header::<S>(record.at, lane);
                    for block in 0..record.blocks {
                        let to_block = record.first_block + block;
                        unpacked::store_scales::<S, W>(&header, block, to, (to_block, lane));
                        let quants = record.at.add(W::LAYOUT.block_offset(block));
                        unpacked::store_codes::<S, W>(quants, to, (to_block, lane));
                    }
                }
            }
        }
    }
}

/// The dot products of a block of weights and `R` rows: integers below 2^24, as f32. Where there are scales of 16 values,
/// they are factors of the integers: integer scales leave each product and their sum exact in f32, those of NVFP4 each
/// product, and the sum is rounded once.
///
/// # Safety
/// As [`TileKernel::tile`].
#[inline(always)]
unsafe fn integer_dots<S: Simd, W: QuantizedPanel, const R: usize, const X: usize>(
    quants: *const u8,
    lane: usize,
    x: ActivationBlock<X>,
    header: &Header<S, W>,
    block: usize,
) -> [S::F32; R] {
    // SAFETY: required of the caller.
    unsafe {
        let mut dots = [S::splat(0.0); R];
        if W::Scales::SUB_SCALES {
            for half in 0..2 {
                let starts = half_starts::<S, W, R, X>(x, half);
                let sums = group_dots::<S, W, R, X>(
                    quants,
                    lane,
                    x,
                    if half == 0 { &[0, 1, 2, 3] } else { &[4, 5, 6, 7] },
                    starts,
                );
                let sub_scale = W::Scales::sub_scale::<S>(header, block, half);
                for r in 0..R {
                    let sum = S::to_f32(sums[r]);
                    dots[r] = if half == 0 {
                        S::mul(sum, sub_scale)
                    } else {
                        S::fma(sum, sub_scale, dots[r])
                    };
                }
            }
        } else {
            let sums = group_dots::<S, W, R, X>(quants, lane, x, &NIBBLE_ORDER, starts::<S, W, R, X>(x));
            for r in 0..R {
                dots[r] = S::to_f32(sums[r]);
            }
        }
        dots
    }
}

/// Adds the minimum of a block times the sum of its activations. Where there are integer minimums of 16 values, they are
/// factors of the sums: exact in f32, as the products of [`integer_dots`].
///
/// # Safety
/// As [`TileKernel::tile`].
#[inline(always)]
unsafe fn add_minimums<S: Simd, W: QuantizedPanel, const R: usize, const X: usize>(
    sums: &mut [S::F32; R],
    header: &Header<S, W>,
    block: usize,
    x: ActivationBlock<X>,
) {
    // SAFETY: required of the caller.
    unsafe {
        let minimum = W::Scales::minimum::<S>(header, block);
        if W::Scales::SUB_SCALES {
            let minus_minimum = S::neg(minimum);
            let factors = [
                W::Scales::sub_minimum::<S>(header, block, 0),
                W::Scales::sub_minimum::<S>(header, block, 1),
            ];
            for (r, sum) in sums.iter_mut().enumerate() {
                let first = S::mul(S::to_f32(x.minus_half_sum::<S>(0, r)), factors[0]);
                let both = S::fma(S::to_f32(x.minus_half_sum::<S>(1, r)), factors[1], first);
                *sum = S::fma(minus_minimum, S::mul(x.float::<S>(SCALE, r), both), *sum);
            }
        } else {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(minimum, x.float::<S>(SCALED_SUM, r), *sum);
            }
        }
    }
}

/// What the zero offset of the codes adds to the dot product of a block: minus the code of zero times the sum of the
/// activations.
///
/// # Safety
/// As [`TileKernel::tile`].
#[inline(always)]
unsafe fn starts<S: Simd, W: QuantizedPanel, const R: usize, const X: usize>(x: ActivationBlock<X>) -> [S::I32; R] {
    // SAFETY: required of the caller.
    unsafe {
        let mut starts = [S::splat_i32(0); R];
        if W::Quants::ZERO != 0 {
            for (r, start) in starts.iter_mut().enumerate() {
                *start = S::shl(x.word::<S>(MINUS_SUM, r), W::Quants::ZERO.trailing_zeros());
            }
        }
        starts
    }
}

/// As [`starts`], of half a block.
///
/// # Safety
/// As [`TileKernel::tile`].
#[inline(always)]
unsafe fn half_starts<S: Simd, W: QuantizedPanel, const R: usize, const X: usize>(
    x: ActivationBlock<X>,
    half: usize,
) -> [S::I32; R] {
    // SAFETY: required of the caller.
    unsafe {
        let mut starts = [S::splat_i32(0); R];
        if W::Quants::ZERO != 0 {
            for (r, start) in starts.iter_mut().enumerate() {
                let sum = x.minus_half_sum::<S>(half, r);
                *start = S::shl(sum, W::Quants::ZERO.trailing_zeros());
            }
        }
        starts
    }
}

/// The dot products of some groups of a block, added to `starts`.
///
/// # Safety
/// As [`TileKernel::tile`].
#[inline(always)]
unsafe fn group_dots<S: Simd, W: QuantizedPanel, const R: usize, const X: usize>(
    quants: *const u8,
    lane: usize,
    x: ActivationBlock<X>,
    groups: &[usize],
    starts: [S::I32; R],
) -> [S::I32; R] {
    let mut sums = starts;
    // SAFETY: required of the caller.
    unsafe {
        match W::Quants::DOT {
            DotWidth::Wide => {
                for sum in &mut sums {
                    *sum = S::wide_start(*sum);
                }
                for &group in groups {
                    let codes = W::Quants::codes::<S>(quants, lane, group);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = S::wide_dot(*sum, codes, x.word::<S>(group, r));
                    }
                }
            }
            DotWidth::Narrow(run) => {
                for groups in groups.chunks_exact(run.min(groups.len())) {
                    let mut narrow = [S::narrow_start(sums[0]); R];
                    for (narrow, sum) in narrow.iter_mut().zip(sums) {
                        *narrow = S::narrow_start(sum);
                    }
                    for &group in groups {
                        let codes = W::Quants::codes::<S>(quants, lane, group);
                        for (r, narrow) in narrow.iter_mut().enumerate() {
                            *narrow = S::narrow_dot(*narrow, codes, x.word::<S>(group, r));
                        }
                    }
                    for (sum, narrow) in sums.iter_mut().zip(narrow) {
                        *sum = S::narrow_finish(narrow, *sum);
                    }
                }
            }
        }
    }
    sums
}
