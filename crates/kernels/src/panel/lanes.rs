//! Panels decoded in registers: lane `l` of a register is row `lane + l` of the panel.

use super::layout::{self, HIGH_BITS, Layout, MINIMUMS, SUB_SCALES};
use super::{LINE_BYTES, PANEL_ROWS};
use crate::vector::Simd;

/// How the integer dot product of a block is summed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DotWidth {
    /// Codes that allow this many [`Simd::narrow_dot`]s in a row: 8, 4 or 2.
    Narrow(usize),
    /// Bytes that are quant + 128, for [`Simd::wide_dot`].
    Wide,
}

/// A quantised panel type. The value of code `q` is `scale * (q - 2^ZERO_BITS) + minimum`.
///
/// All methods are unsafe: the machine must have the instruction set of `S`, `record` must point to a whole record of
/// the type, `block` to the start of one of its blocks, and `lane + LANES` must be at most 16.
pub(crate) trait QuantizedPanel: 'static {
    const LAYOUT: Layout;
    const DOT: DotWidth;
    /// The code of zero is `1 << ZERO_BITS`; `None`: it is 0.
    const ZERO_BITS: Option<u32>;
    /// Whether blocks have minimums.
    const MINIMUMS: bool = false;
    /// Whether [`Self::sub_scale`] differs from 1.
    const SUB_SCALES: bool = false;

    /// What is read of a record's header once, before its blocks.
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

    /// The integer scale of half `half` of block `block`, where the type has [`Self::SUB_SCALES`].
    #[inline(always)]
    unsafe fn sub_scale<S: Simd>(_header: &Self::Header<S>, _block: usize, _half: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { S::splat(1.0) }
    }

    /// The four codes of group `group` of 8, one a byte.
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32;
}

/// Line `line` of a block.
///
/// # Safety
/// As the methods of [`QuantizedPanel`].
#[inline(always)]
unsafe fn load_line<S: Simd>(block: *const u8, lane: usize, line: usize) -> S::I32 {
    // SAFETY: required of the caller.
    unsafe { S::load_bytes(block.add(line * LINE_BYTES + lane * 4)) }
}

/// The f16 of the lanes among the 16 at `offset` of a record.
///
/// # Safety
/// As the methods of [`QuantizedPanel`].
#[inline(always)]
unsafe fn load_f16<S: Simd>(record: *const u8, lane: usize, offset: usize) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe { S::load_f16(record.add(offset + lane * 2).cast()) }
}

/// Group `group` of the nibble lines of a block.
///
/// # Safety
/// As the methods of [`QuantizedPanel`].
#[inline(always)]
unsafe fn nibbles<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
    // SAFETY: required of the caller.
    unsafe {
        let line = load_line::<S>(block, lane, group % 4);
        let line = if group < 4 { line } else { S::shr(line, 4) };
        S::and(line, S::splat_i32(0x0f0f_0f0f))
    }
}

/// The start of a record at the lanes of a register.
#[derive(Clone, Copy)]
pub(crate) struct At {
    record: *const u8,
    lane: usize,
}

/// Implements a type whose header is two blocks of f16 values, read when they are used.
macro_rules! paired_blocks {
    ($type:ident, $dot:expr, $zero_bits:expr, $codes:expr) => {
        pub(crate) struct $type;

        impl QuantizedPanel for $type {
            const LAYOUT: Layout = layout::$type;
            const DOT: DotWidth = $dot;
            const ZERO_BITS: Option<u32> = $zero_bits;
            type Header<S: Simd> = At;

            #[inline(always)]
            unsafe fn header<S: Simd>(record: *const u8, lane: usize) -> At {
                At { record, lane }
            }

            #[inline(always)]
            unsafe fn scale<S: Simd>(header: &At, block: usize) -> S::F32 {
                // SAFETY: as all methods.
                unsafe { load_f16::<S>(header.record, header.lane, block * 2 * PANEL_ROWS) }
            }

            #[inline(always)]
            unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
                // SAFETY: as all methods.
                unsafe { $codes(block, lane, group) }
            }
        }
    };
}

paired_blocks!(Q8_0, DotWidth::Wide, Some(7), load_line::<S>);
paired_blocks!(Q4_0, DotWidth::Narrow(8), Some(3), nibbles::<S>);
paired_blocks!(Q5_0, DotWidth::Narrow(4), Some(4), five_bits::<S>);

/// Group `group` of a Q5_0 block.
///
/// # Safety
/// As the methods of [`QuantizedPanel`].
#[inline(always)]
unsafe fn five_bits<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
    // SAFETY: required of the caller.
    unsafe {
        let high = load_line::<S>(block, lane, HIGH_BITS / LINE_BYTES);
        // Bit `group` of every byte goes to bit 4.
        let high = if group < 4 {
            S::shl(high, 4 - group as u32)
        } else {
            S::shr(high, group as u32 - 4)
        };
        S::or(
            nibbles::<S>(block, lane, group),
            S::and(high, S::splat_i32(0x1010_1010)),
        )
    }
}

pub(crate) struct Q4_1;

impl QuantizedPanel for Q4_1 {
    const LAYOUT: Layout = layout::Q4_1;
    const DOT: DotWidth = DotWidth::Narrow(8);
    const ZERO_BITS: Option<u32> = None;
    const MINIMUMS: bool = true;
    type Header<S: Simd> = At;

    #[inline(always)]
    unsafe fn header<S: Simd>(record: *const u8, lane: usize) -> At {
        At { record, lane }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(header: &At, block: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { load_f16::<S>(header.record, header.lane, block * 4 * PANEL_ROWS) }
    }

    #[inline(always)]
    unsafe fn minimum<S: Simd>(header: &At, block: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { load_f16::<S>(header.record, header.lane, block * 4 * PANEL_ROWS + MINIMUMS) }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: as all methods.
        unsafe { nibbles::<S>(block, lane, group) }
    }
}

#[allow(non_camel_case_types, reason = "the published name of the type")]
pub(crate) struct Q4_K;

/// The scales and negated minimums of the 8 blocks.
#[derive(Clone, Copy)]
pub(crate) struct SixBitScales<S: Simd> {
    scales: [S::F32; 8],
    minimums: [S::F32; 8],
}

/// Value `v` of the 6-bit values of a Q4_K record, from its three words a row.
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

impl QuantizedPanel for Q4_K {
    const LAYOUT: Layout = layout::Q4_K;
    const DOT: DotWidth = DotWidth::Narrow(8);
    const ZERO_BITS: Option<u32> = None;
    const MINIMUMS: bool = true;
    type Header<S: Simd> = SixBitScales<S>;

    #[inline(always)]
    unsafe fn header<S: Simd>(record: *const u8, lane: usize) -> SixBitScales<S> {
        // SAFETY: as all methods.
        unsafe {
            let values = record.add(SUB_SCALES);
            let words = [
                load_line::<S>(values, lane, 0),
                load_line::<S>(values, lane, 1),
                load_line::<S>(values, lane, 2),
            ];
            let d = load_f16::<S>(record, lane, 0);
            let minus_dmin = S::neg(load_f16::<S>(record, lane, MINIMUMS));
            let mut header = SixBitScales {
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
    unsafe fn scale<S: Simd>(header: &SixBitScales<S>, block: usize) -> S::F32 {
        header.scales[block]
    }

    #[inline(always)]
    unsafe fn minimum<S: Simd>(header: &SixBitScales<S>, block: usize) -> S::F32 {
        header.minimums[block]
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: as all methods.
        unsafe { nibbles::<S>(block, lane, group) }
    }
}

#[allow(non_camel_case_types, reason = "the published name of the type")]
pub(crate) struct Q6_K;

impl QuantizedPanel for Q6_K {
    const LAYOUT: Layout = layout::Q6_K;
    const DOT: DotWidth = DotWidth::Narrow(2);
    const ZERO_BITS: Option<u32> = Some(5);
    const SUB_SCALES: bool = true;
    type Header<S: Simd> = At;

    #[inline(always)]
    unsafe fn header<S: Simd>(record: *const u8, lane: usize) -> At {
        At { record, lane }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(header: &At, _block: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe { S::load(header.record.add(header.lane * 4).cast()) }
    }

    #[inline(always)]
    unsafe fn sub_scale<S: Simd>(header: &At, block: usize, half: usize) -> S::F32 {
        // SAFETY: as all methods.
        unsafe {
            S::to_f32(S::load_i8(
                header
                    .record
                    .add(SUB_SCALES + (block * 2 + half) * PANEL_ROWS + header.lane),
            ))
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(block: *const u8, lane: usize, group: usize) -> S::I32 {
        // SAFETY: as all methods.
        unsafe {
            let pairs = load_line::<S>(block, lane, HIGH_BITS / LINE_BYTES + group / 4);
            // Bits 2s and 2s + 1 of every byte, s = group % 4, go to bits 4 and 5.
            let pairs = match group % 4 {
                0 => S::shl(pairs, 4),
                1 => S::shl(pairs, 2),
                2 => pairs,
                _ => S::shr(pairs, 2),
            };
            S::or(
                nibbles::<S>(block, lane, group),
                S::and(pairs, S::splat_i32(0x3030_3030)),
            )
        }
    }
}

/// A panel of floats, `[k][16]`.
///
/// The method is unsafe: the machine must have the instruction set of `S`, `at` must point to `LANES` values.
pub(crate) trait FloatPanel: 'static {
    /// Bytes of a value.
    const BYTES: usize;

    unsafe fn load<S: Simd>(at: *const u8) -> S::F32;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct BF16;

impl FloatPanel for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Simd>(at: *const u8) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load(at.cast()) }
    }
}

impl FloatPanel for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(at: *const u8) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load_f16(at.cast()) }
    }
}

impl FloatPanel for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(at: *const u8) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::load_bf16(at.cast()) }
    }
}
