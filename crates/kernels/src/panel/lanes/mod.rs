//! Panels decoded in registers: lane `l` of a register is row `lane + l` of the panel.
//!
//! A quantised type is a kind of [`Scales`] with a kind of [`Quants`].

pub(crate) mod levels;
pub(crate) mod quants;
pub(crate) mod scales;
pub(crate) mod types;
pub(crate) mod unpacked;

use std::marker::PhantomData;

use super::LINE_BYTES;
use super::layout::Layout;
use crate::vector::Simd;
use quants::Quants;
use scales::Scales;

/// A quantised panel type. Its values are `scale * sub_scale * (code - ZERO) + minimum * sub_minimum`.
pub(crate) trait QuantizedPanel: 'static {
    type Scales: Scales;
    type Quants: Quants;
    const LAYOUT: Layout = Layout {
        blocks: Self::Scales::BLOCKS,
        header_bytes: Self::Scales::BYTES,
        block_bytes: Self::Quants::BYTES,
    };
}

/// Records of scales `A` and quants `Q`.
pub(crate) struct Records<A, Q>(PhantomData<(A, Q)>);

impl<A: Scales, Q: Quants> QuantizedPanel for Records<A, Q> {
    type Scales = A;
    type Quants = Q;
}

/// What is read of a record's header once.
pub(crate) type Header<S, W> = <<W as QuantizedPanel>::Scales as Scales>::Header<S>;

/// A record of some that follow each other.
pub(crate) struct RecordAt {
    pub at: *const u8,
    /// The number of its first block in all of them.
    pub first_block: usize,
    /// Blocks that are used.
    pub blocks: usize,
}

/// The records that hold the first `blocks` blocks from `first` on.
#[inline(always)]
pub(crate) fn records<W: QuantizedPanel>(first: *const u8, blocks: usize) -> impl Iterator<Item = RecordAt> {
    (0..blocks.div_ceil(W::LAYOUT.blocks)).map(move |index| {
        let first_block = index * W::LAYOUT.blocks;
        RecordAt {
            at: first.wrapping_add(index * W::LAYOUT.record_bytes()),
            first_block,
            blocks: W::LAYOUT.blocks.min(blocks - first_block),
        }
    })
}

/// The weights of four codes: the published decoding, each product and sum rounded.
///
/// # Safety
/// As the methods of [`Scales`] and [`Quants`].
#[inline(always)]
pub(crate) unsafe fn decode<S: Simd, W: QuantizedPanel>(
    codes: S::I32,
    header: &Header<S, W>,
    block: usize,
    half: usize,
) -> [S::F32; 4] {
    // SAFETY: required of the caller.
    unsafe {
        let mut scale = W::Scales::scale::<S>(header, block);
        if W::Scales::SUB_SCALES {
            scale = S::mul(scale, W::Scales::sub_scale::<S>(header, block, half));
        }
        let mut weights = [scale; 4];
        for (j, weight) in weights.iter_mut().enumerate() {
            let mut quant = S::and(S::shr(codes, 8 * j as u32), S::splat_i32(0xff));
            if W::Quants::ZERO != 0 {
                quant = S::sub_i32(quant, S::splat_i32(W::Quants::ZERO));
            }
            *weight = S::mul(scale, S::to_f32(quant));
            if W::Scales::MINIMUMS {
                let mut minimum = W::Scales::minimum::<S>(header, block);
                if W::Scales::SUB_SCALES {
                    minimum = S::mul(minimum, W::Scales::sub_minimum::<S>(header, block, half));
                }
                *weight = S::add(*weight, minimum);
            }
        }
        weights
    }
}

/// Line `line` of a block or header.
///
/// # Safety
/// As the methods of [`Quants`].
#[inline(always)]
unsafe fn load_line<S: Simd>(block: *const u8, lane: usize, line: usize) -> S::I32 {
    // SAFETY: required of the caller.
    unsafe { S::load_bytes(block.add(line * LINE_BYTES + lane * 4)) }
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
