//! The kinds of scales in the header of a record.

use super::load_line;
use crate::panel::layout::{MINIMUMS, SUB_SCALES};
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::vector::Simd;

/// The scales of a record.
///
/// All methods are unsafe: the machine must have the instruction set of `S`, `record` must point to a whole header, and
/// `lane + LANES` must be at most 16; blocks are below [`Self::BLOCKS`] and halves below 2.
pub(crate) trait Scales: 'static {
    /// Blocks of 32 values in a record.
    const BLOCKS: usize;
    /// Bytes of the header.
    const BYTES: usize;
    /// Whether blocks have minimums.
    const MINIMUMS: bool = false;
    /// Whether [`Self::sub_scale`] and [`Self::sub_minimum`] differ from 1.
    const SUB_SCALES: bool = false;

    /// What is read of the header once, before the blocks.
    type Header<S: Simd>: Copy;

    unsafe fn header<S: Simd>(record: *const u8, lane: usize) -> Self::Header<S>;

    /// The scale of block `block`.
    unsafe fn scale<S: Simd>(header: &Self::Header<S>, block: usize) -> S::F32;

    /// What is added to each value of block `block`, where the type has [`Self::MINIMUMS`].
    #[inline(always)]
    unsafe fn minimum<S: Simd>(_header: &Self::Header<S>, _block: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { S::splat(0.0) }
    }

    /// A factor of the scale for half `half` of block `block`, of at most 8 bits.
    #[inline(always)]
    unsafe fn sub_scale<S: Simd>(_header: &Self::Header<S>, _block: usize, _half: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { S::splat(1.0) }
    }

    /// An integer factor of the minimum for half `half` of block `block`, of at most 8 bits.
    #[inline(always)]
    unsafe fn sub_minimum<S: Simd>(_header: &Self::Header<S>, _block: usize, _half: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { S::splat(1.0) }
    }
}

/// A header at the lanes of a register, read when it is used.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub record: *const u8,
    pub lane: usize,
}

impl At {
    /// The f16 of the lanes among the 16 at `offset`.
    ///
    /// # Safety
    /// As the methods of [`Scales`].
    #[inline(always)]
    unsafe fn f16<S: Simd>(&self, offset: usize) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load_f16(self.record.add(offset + self.lane * 2).cast()) }
    }

    /// The f32 of the lanes in line `line`.
    ///
    /// # Safety
    /// As the methods of [`Scales`].
    #[inline(always)]
    pub(crate) unsafe fn f32<S: Simd>(&self, line: usize) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load(self.record.add(line * LINE_BYTES + self.lane * 4).cast()) }
    }

    /// The signed bytes of the lanes in row `row` of the bytes at `offset`, `[rows][16]`.
    ///
    /// # Safety
    /// As the methods of [`Scales`].
    #[inline(always)]
    unsafe fn i8<S: Simd>(&self, offset: usize, row: usize) -> S::I32 {
        // SAFETY: required of the caller.
        unsafe { S::load_i8(self.record.add(offset + row * PANEL_ROWS + self.lane)) }
    }
}

/// Implements [`Scales`] of a type whose header is read when it is used.
macro_rules! scales {
    (
        $(#[$doc:meta])* $type:ident, $blocks:literal blocks, $bytes:literal bytes,
        $(const $constant:ident,)*
        $(fn $method:ident($header:ident, $block:ident $(, $half:ident)?) $body:expr;)*
    ) => {
        $(#[$doc])*
        pub(crate) struct $type;

        impl Scales for $type {
            const BLOCKS: usize = $blocks;
            const BYTES: usize = $bytes;
            $(const $constant: bool = true;)*
            type Header<S: Simd> = At;

            #[inline(always)]
            unsafe fn header<S: Simd>(record: *const u8, lane: usize) -> At {
                At { record, lane }
            }

            $(
                #[inline(always)]
                unsafe fn $method<S: Simd>($header: &At, $block: usize $(, $half: usize)?) -> S::F32 {
                    // SAFETY: as all methods.
                    unsafe { $body }
                }
            )*
        }
    };
}

scales! {
    /// An f16 for each block.
    PairScales, 2 blocks, 64 bytes,
    fn scale(header, block) header.f16::<S>(block * 2 * PANEL_ROWS);
}

scales! {
    /// An f16 scale and minimum for each block.
    PairMinimums, 2 blocks, 128 bytes,
    const MINIMUMS,
    fn scale(header, block) header.f16::<S>(block * 4 * PANEL_ROWS);
    fn minimum(header, block) header.f16::<S>(block * 4 * PANEL_ROWS + MINIMUMS);
}

scales! {
    /// 4-bit scales and minimums of 16 values, times an f16 each.
    NibbleScales, 8 blocks, 320 bytes,
    const MINIMUMS, const SUB_SCALES,
    fn scale(header, _block) header.f16::<S>(0);
    fn minimum(header, _block) S::neg(header.f16::<S>(MINIMUMS));
    fn sub_scale(header, block, half) {
        S::to_f32(S::and(header.i8::<S>(SUB_SCALES, block * 2 + half), S::splat_i32(15)))
    };
    fn sub_minimum(header, block, half) {
        S::to_f32(S::and(S::shr(header.i8::<S>(SUB_SCALES, block * 2 + half), 4), S::splat_i32(15)))
    };
}

scales! {
    /// Signed 8-bit scales of 16 values, times an f32.
    Scales16, 8 blocks, 320 bytes,
    const SUB_SCALES,
    fn scale(header, _block) header.f32::<S>(0);
    fn sub_scale(header, block, half) S::to_f32(header.i8::<S>(SUB_SCALES, block * 2 + half));
}

scales! {
    /// Signed 8-bit scales of 32 values, times an f32.
    Scales32, 8 blocks, 192 bytes,
    fn scale(header, block) S::mul(header.f32::<S>(0), S::to_f32(header.i8::<S>(SUB_SCALES, block)));
}

scales! {
    /// One f32.
    RecordScale, 8 blocks, 64 bytes,
    fn scale(header, _block) header.f32::<S>(0);
}

scales! {
    /// A power of two for each block as E8M0, halved: the levels of its quants are doubled.
    Exponents, 4 blocks, 64 bytes,
    fn scale(header, block) {
        // 2^(e - 128): the exponent field is e - 1, but for e = 0 and e = 1, which are subnormal: 2^21 (e + 1) units
        // of the last place, less than the other for all e above 1.
        let exponent = S::and(header.i8::<S>(0, block), S::splat_i32(0xff));
        let normal = S::sub_i32(S::shl(exponent, 23), S::splat_i32(1 << 23));
        let subnormal = S::sub_i32(S::shl(exponent, 21), S::splat_i32(-(1 << 21)));
        S::from_bits(S::max_i32(normal, subnormal))
    };
}

scales! {
    /// An E4M3 without sign for each 16 values, halved: the levels of its quants are doubled.
    SmallFloats, 2 blocks, 64 bytes,
    const SUB_SCALES,
    fn scale(_header, _block) S::splat(1.0);
    fn sub_scale(header, block, half) {
        // As the upper bits of an f32 it is 2^-120 of what it is as E4M3, subnormal or not.
        let float = S::from_bits(S::shl(header.i8::<S>(0, block * 2 + half), 20));
        S::mul(float, S::splat(f32::from_bits((127 + 119) << 23)))
    };
}

/// 6-bit scales and minimums of 32 values, times an f16 each.
pub(crate) struct SixBitScales;

/// The scales and negated minimums of the 8 blocks.
#[derive(Clone, Copy)]
pub(crate) struct SixBitHeader<S: Simd> {
    scales: [S::F32; 8],
    minimums: [S::F32; 8],
}

/// Value `v` of the 6-bit values of a record, from its three words a row.
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
unsafe fn six_bits<S: Simd>(words: &[S::I32; 3], v: usize) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        if v < 15 {
            return S::to_f32(S::and(S::shr(words[v / 5], 6 * (v % 5) as u32), S::splat_i32(63)));
        }
        let middle = S::shl(S::shr(words[1], 30), 2);
        let high = S::shl(S::shr(words[2], 30), 4);
        S::to_f32(S::or(S::shr(words[0], 30), S::or(middle, high)))
    }
}

impl Scales for SixBitScales {
    const BLOCKS: usize = 8;
    const BYTES: usize = 256;
    const MINIMUMS: bool = true;
    type Header<S: Simd> = SixBitHeader<S>;

    #[inline(always)]
    unsafe fn header<S: Simd>(record: *const u8, lane: usize) -> SixBitHeader<S> {
        // SAFETY: as all methods.
        unsafe {
            let values = record.add(SUB_SCALES);
            let words = [
                load_line::<S>(values, lane, 0),
                load_line::<S>(values, lane, 1),
                load_line::<S>(values, lane, 2),
            ];
            let at = At { record, lane };
            let d = at.f16::<S>(0);
            let minus_dmin = S::neg(at.f16::<S>(MINIMUMS));
            let mut header = SixBitHeader {
                scales: [d; 8],
                minimums: [d; 8],
            };
            for block in 0..8 {
                header.scales[block] = S::mul(d, six_bits::<S>(&words, block));
                header.minimums[block] = S::mul(minus_dmin, six_bits::<S>(&words, 8 + block));
            }
            header
        }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(header: &SixBitHeader<S>, block: usize) -> S::F32 {
        header.scales[block]
    }

    #[inline(always)]
    unsafe fn minimum<S: Simd>(header: &SixBitHeader<S>, block: usize) -> S::F32 {
        header.minimums[block]
    }
}
