//! Quantised panels for many rows: what [`Scales`] and [`Quants`] decode, as it is multiplied with.
//!
//! A record has 8 blocks. Its header is lines of f32: the scale of each block, its minimum, then two factors a block of each. A block is 8
//! lines of codes, one byte each.

use std::marker::PhantomData;

use super::quants::{DotWidth, Quants};
use super::scales::{At, Scales};
use super::{QuantizedPanel, load_line};
use crate::panel::LINE_BYTES;
use crate::panel::layout::BLOCK_GROUPS;
use crate::vector::Simd;

/// A panel of type `W`, unpacked.
pub(crate) struct Unpacked<W>(PhantomData<W>);

/// The scales `A` as lines of f32.
pub(crate) struct Lines<A>(PhantomData<A>);

/// The codes of `Q`, one a byte.
pub(crate) struct Codes<Q>(PhantomData<Q>);

impl<W: QuantizedPanel> QuantizedPanel for Unpacked<W> {
    type Scales = Lines<W::Scales>;
    type Quants = Codes<W::Quants>;
}

const BLOCKS: usize = 8;

/// First lines of the header's parts.
const MINIMUM_LINES: usize = BLOCKS;
const SUB_SCALE_LINES: usize = 2 * BLOCKS;
const SUB_MINIMUM_LINES: usize = 4 * BLOCKS;
const HEADER_LINES: usize = 6 * BLOCKS;

impl<A: Scales> Scales for Lines<A> {
    const BLOCKS: usize = BLOCKS;
    const BYTES: usize = HEADER_LINES * LINE_BYTES;
    const MINIMUMS: bool = A::MINIMUMS;
    const SUB_SCALES: bool = A::SUB_SCALES;
    type Header<S: Simd> = At;

    #[inline(always)]
    unsafe fn header<S: Simd>(record: *const u8, lane: usize) -> At {
        At { record, lane }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(header: &At, block: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { header.f32::<S>(block) }
    }

    #[inline(always)]
    unsafe fn minimum<S: Simd>(header: &At, block: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { header.f32::<S>(MINIMUM_LINES + block) }
    }

    #[inline(always)]
    unsafe fn sub_scale<S: Simd>(header: &At, block: usize, half: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { header.f32::<S>(SUB_SCALE_LINES + 2 * block + half) }
    }

    #[inline(always)]
    unsafe fn sub_minimum<S: Simd>(header: &At, block: usize, half: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { header.f32::<S>(SUB_MINIMUM_LINES + 2 * block + half) }
    }
}

impl<Q: Quants> Quants for Codes<Q> {
    const BYTES: usize = BLOCK_GROUPS * LINE_BYTES;
    const DOT: DotWidth = Q::DOT;
    const ZERO: i32 = Q::ZERO;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: required of the caller.
        unsafe { load_line::<S>(block, lane, group) }
    }
}

/// Writes the scales of block `from` of a header as those of block `block` of the unpacked record `to`, for the lanes of a register.
///
/// # Safety
/// As the methods of [`Scales`]; `to` has room for a record.
#[inline(always)]
pub(crate) unsafe fn store_scales<S: Simd, W: QuantizedPanel>(
    header: &super::Header<S, W>,
    from: usize,
    to: *mut u8,
    (block, lane): (usize, usize),
) {
    // SAFETY: required of the caller.
    unsafe {
        store_line::<S>(to, block, lane, W::Scales::scale::<S>(header, from));
        if W::Scales::MINIMUMS {
            store_line::<S>(to, MINIMUM_LINES + block, lane, W::Scales::minimum::<S>(header, from));
        }
        for half in 0..2 {
            if W::Scales::SUB_SCALES {
                let line = SUB_SCALE_LINES + 2 * block + half;
                store_line::<S>(to, line, lane, W::Scales::sub_scale::<S>(header, from, half));
            }
            if W::Scales::SUB_SCALES && W::Scales::MINIMUMS {
                let line = SUB_MINIMUM_LINES + 2 * block + half;
                store_line::<S>(to, line, lane, W::Scales::sub_minimum::<S>(header, from, half));
            }
        }
    }
}

/// Writes the codes of a block as those of block `block` of the unpacked record `to`, for the lanes of a register.
///
/// # Safety
/// As [`Quants::codes`]; `to` has room for a record.
#[inline(always)]
pub(crate) unsafe fn store_codes<S: Simd, W: QuantizedPanel>(
    quants: *const u8,
    to: *mut u8,
    (block, lane): (usize, usize),
) {
    // SAFETY: required of the caller.
    unsafe {
        let to = to.add(Unpacked::<W>::LAYOUT.block_offset(block));
        for group in 0..BLOCK_GROUPS {
            let codes = W::Quants::codes::<S>(quants, lane, group);
            store_line::<S>(to, group, lane, S::from_bits(codes));
        }
    }
}

/// Writes the lanes of a register to line `line`.
///
/// # Safety
/// The machine has the instruction set of `S`, and there is such a line at `to`.
#[inline(always)]
unsafe fn store_line<S: Simd>(to: *mut u8, line: usize, lane: usize, v: S::F32) {
    // SAFETY: required of the caller.
    unsafe { S::store(to.add(line * LINE_BYTES).cast::<f32>().add(lane), v) };
}
