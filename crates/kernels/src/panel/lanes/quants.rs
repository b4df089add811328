//! The kinds of quants of a block.

use std::marker::PhantomData;

use super::levels::Levels;
use super::load_line;
use crate::panel::LINE_BYTES;
use crate::panel::layout::{AFTER_NIBBLES, AFTER_PAIRS};
use crate::vector::Simd;

/// How the integer dot product of a block is summed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DotWidth {
    /// Codes that allow this many [`Simd::narrow_dot`]s in a row: 8, 4 or 2.
    Narrow(usize),
    /// Bytes that are quant + 128, for [`Simd::wide_dot`].
    Wide,
}

impl DotWidth {
    /// For codes up to `largest`.
    const fn of(largest: i32) -> DotWidth {
        match largest {
            ..16 => DotWidth::Narrow(8),
            16..32 => DotWidth::Narrow(4),
            32..64 => DotWidth::Narrow(2),
            _ => DotWidth::Wide,
        }
    }
}

/// The quants of a block as codes.
///
/// The method is unsafe: the machine must have the instruction set of `S`, `block` must point to the quants of a whole
/// block, and `lane + LANES` must be at most 16.
pub(crate) trait Quants: 'static {
    /// Bytes of a block.
    const BYTES: usize;
    const DOT: DotWidth;
    /// The code of the value 0: 0 or a power of two.
    const ZERO: i32;

    /// The four codes of group `group` of 8, one a byte.
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32;
}

/// 8 bits around 128.
pub(crate) struct Bytes;

impl Quants for Bytes {
    const BYTES: usize = 512;
    const DOT: DotWidth = DotWidth::Wide;
    const ZERO: i32 = 128;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: required of the caller.
        unsafe { load_line::<S>(block, lane, group) }
    }
}

/// 4 bits around `ZERO`.
pub(crate) struct Nibbles<const ZERO: i32>;

impl<const ZERO: i32> Quants for Nibbles<ZERO> {
    const BYTES: usize = AFTER_NIBBLES;
    const DOT: DotWidth = DotWidth::of(15);
    const ZERO: i32 = ZERO;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: required of the caller.
        unsafe { nibbles::<S>(block, lane, group) }
    }
}

/// 5 bits around `ZERO`.
pub(crate) struct FiveBits<const ZERO: i32>;

impl<const ZERO: i32> Quants for FiveBits<ZERO> {
    const BYTES: usize = AFTER_NIBBLES + LINE_BYTES;
    const DOT: DotWidth = DotWidth::of(31);
    const ZERO: i32 = ZERO;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: required of the caller; the block has a line after its nibbles.
        unsafe {
            let high = high_bit::<S, 4>(block.add(AFTER_NIBBLES), lane, group);
            S::or(nibbles::<S>(block, lane, group), high)
        }
    }
}

/// 6 bits around 32.
pub(crate) struct SixBits;

impl Quants for SixBits {
    const BYTES: usize = AFTER_NIBBLES + 2 * LINE_BYTES;
    const DOT: DotWidth = DotWidth::of(63);
    const ZERO: i32 = 32;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: required of the caller; the block has two lines after its nibbles.
        unsafe {
            let high = pairs::<S, 4>(block.add(AFTER_NIBBLES), lane, group);
            S::or(nibbles::<S>(block, lane, group), high)
        }
    }
}

/// 2 bits around `ZERO`.
pub(crate) struct TwoBits<const ZERO: i32>;

impl<const ZERO: i32> Quants for TwoBits<ZERO> {
    const BYTES: usize = AFTER_PAIRS;
    const DOT: DotWidth = DotWidth::of(3);
    const ZERO: i32 = ZERO;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: required of the caller.
        unsafe { pairs::<S, 0>(block, lane, group) }
    }
}

/// 3 bits around 4.
pub(crate) struct ThreeBits;

impl Quants for ThreeBits {
    const BYTES: usize = AFTER_PAIRS + LINE_BYTES;
    const DOT: DotWidth = DotWidth::of(7);
    const ZERO: i32 = 4;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: required of the caller; the block has a line after its pairs.
        unsafe {
            let high = high_bit::<S, 2>(block.add(AFTER_PAIRS), lane, group);
            S::or(pairs::<S, 0>(block, lane, group), high)
        }
    }
}

/// Indices `Q` of the levels `L`.
pub(crate) struct Table<L, Q>(PhantomData<(L, Q)>);

impl<L: Levels, Q: Quants> Quants for Table<L, Q> {
    const BYTES: usize = Q::BYTES;
    const DOT: DotWidth = DotWidth::of(2 * L::ZERO - 1);
    const ZERO: i32 = L::ZERO;

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: required of the caller; codes of at most four bits are below 16.
        unsafe { S::lookup(&L::BYTES, Q::codes::<S>(block, lane, group)) }
    }
}

/// Group `group` of the nibble lines of a block.
///
/// # Safety
/// As [`Quants::codes`].
#[inline(always)]
unsafe fn nibbles<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
    // SAFETY: required of the caller.
    unsafe {
        let line = load_line::<S>(block, lane, group % 4);
        let line = if group < 4 { line } else { S::shr(line, 4) };
        S::and(line, S::splat_i32(0x0f0f_0f0f))
    }
}

/// Group `group` of a line of single bits, as bit `BIT` of each byte.
///
/// # Safety
/// As [`Quants::codes`].
#[inline(always)]
unsafe fn high_bit<S: Simd, const BIT: u32>(line: *const u8, lane: usize, group: usize) -> S::I32 {
    // SAFETY: required of the caller.
    unsafe {
        let line = shift::<S>(load_line::<S>(line, lane, 0), group as u32, BIT);
        S::and(line, S::splat_i32(0x0101_0101 << BIT))
    }
}

/// Group `group` of two lines of bit pairs, as bits `BIT` and `BIT + 1` of each byte.
///
/// # Safety
/// As [`Quants::codes`].
#[inline(always)]
unsafe fn pairs<S: Simd, const BIT: u32>(lines: *const u8, lane: usize, group: usize) -> S::I32 {
    // SAFETY: required of the caller.
    unsafe {
        let line = shift::<S>(load_line::<S>(lines, lane, group / 4), 2 * (group % 4) as u32, BIT);
        S::and(line, S::splat_i32(0x0303_0303 << BIT))
    }
}

/// Moves bit `from` of each lane to bit `to`.
///
/// # Safety
/// The machine has the instruction set of `S`; both are below 32.
#[inline(always)]
unsafe fn shift<S: Simd>(v: S::I32, from: u32, to: u32) -> S::I32 {
    // SAFETY: required of the caller.
    unsafe {
        if from < to {
            S::shl(v, to - from)
        } else {
            S::shr(v, from - to)
        }
    }
}
