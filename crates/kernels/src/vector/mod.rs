//! SIMD registers as a trait: what the kernels need of an instruction set, and nothing more.
//!
//! A method is one instruction or a few. All instances give the same bits for the same input, NaN payloads aside, so a
//! kernel that never lets a result depend on [`Simd::LANES`] gives the same bits on all of them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(test, feature = "counting"))]
pub(crate) mod counted;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use scalar::Scalar;

use crate::panel::LINE_BYTES;

/// Registers of an instruction set with [`Self::LANES`] lanes of 32 bits.
///
/// # Safety
/// An instance reads and writes exactly the elements that a method's documentation names: kernels rely on it for memory
/// safety. Every method is unsafe to call: the machine must have the instruction set, and pointers must be valid for
/// the elements named (no alignment is required).
pub(crate) unsafe trait Simd: Copy + 'static {
    /// Lanes of a register: a power of two, at most 16.
    const LANES: usize;
    /// Registers that a kernel may fill with sums and what is in flight; 0 without SIMD.
    const REGISTERS: usize;

    /// [`Self::LANES`] f32 values.
    type F32: Copy;
    /// [`Self::LANES`] i32 values, or the same bits as `4 * LANES` bytes.
    type I32: Copy;
    /// A truth value per lane.
    type Mask: Copy;
    /// Sums of byte products on their way to i32 lanes, possibly in 16 bits. See [`Self::narrow_dot`].
    type Narrow: Copy;
    /// 16 lanes as whole registers, for sums whose order is fixed over 16 lanes whatever the width: register `i` holds
    /// lanes `i * LANES ..`.
    type F32x16: Copy + AsRef<[Self::F32]> + AsMut<[Self::F32]>;

    // f32 lanes.

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::F32;
    /// `x` in each of 16 lanes.
    unsafe fn splat_x16(x: f32) -> Self::F32x16;
    /// Reads `LANES` values.
    unsafe fn load(from: *const f32) -> Self::F32;
    /// Writes `LANES` values.
    unsafe fn store(to: *mut f32, v: Self::F32);
    /// Asks for the cache line of an address, which need not be valid, in the first cache.
    unsafe fn prefetch(from: *const u8);
    /// As [`Simd::prefetch`], in the second cache; nothing where that was not faster.
    #[inline(always)]
    unsafe fn prefetch_second(_from: *const u8) {}
    /// Reads the first `count` values, at most `LANES`; the other lanes are +0.
    unsafe fn load_first(from: *const f32, count: usize) -> Self::F32;
    /// Writes the first `count` lanes, at most `LANES`.
    unsafe fn store_first(to: *mut f32, v: Self::F32, count: usize);
    /// Reads `LANES` half-precision floats; exact.
    unsafe fn load_f16(from: *const u16) -> Self::F32;
    /// Reads `LANES` bfloat16 values; exact.
    unsafe fn load_bf16(from: *const u16) -> Self::F32;
    /// `a + b`
    unsafe fn add(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`
    unsafe fn sub(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`
    unsafe fn mul(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`, correctly rounded.
    unsafe fn div(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// Flips the sign bit.
    unsafe fn neg(v: Self::F32) -> Self::F32;
    /// Clears the sign bit.
    unsafe fn abs(v: Self::F32) -> Self::F32;
    /// `if a > b { a } else { b }`: `b` if either is NaN or both are zero.
    unsafe fn max(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `if a < b { a } else { b }`: `b` if either is NaN or both are zero.
    unsafe fn min(a: Self::F32, b: Self::F32) -> Self::F32;

    // Masks.

    /// `a < b`, false for NaN.
    unsafe fn less(a: Self::F32, b: Self::F32) -> Self::Mask;
    /// `a <= b`, false for NaN.
    unsafe fn less_equal(a: Self::F32, b: Self::F32) -> Self::Mask;
    /// `a` where the mask is true, `b` elsewhere.
    unsafe fn select(mask: Self::Mask, a: Self::F32, b: Self::F32) -> Self::F32;

    // i32 lanes and their bytes.

    /// `x` in every lane.
    unsafe fn splat_i32(x: i32) -> Self::I32;
    /// Reads `4 * LANES` bytes.
    unsafe fn load_bytes(from: *const u8) -> Self::I32;
    /// Reads `LANES` bytes as signed and widens each to a lane.
    unsafe fn load_i8(from: *const u8) -> Self::I32;
    /// Writes `LANES` bytes; every lane is in -128..=127.
    unsafe fn store_i8(to: *mut i8, v: Self::I32);
    /// `a - b`, wrapping.
    unsafe fn sub_i32(a: Self::I32, b: Self::I32) -> Self::I32;
    /// The larger of two signed lanes.
    unsafe fn max_i32(a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a & b`
    unsafe fn and(a: Self::I32, b: Self::I32) -> Self::I32;
    /// `a | b`
    unsafe fn or(a: Self::I32, b: Self::I32) -> Self::I32;
    /// Shifts each lane left by `count` < 32 bits.
    unsafe fn shl(v: Self::I32, count: u32) -> Self::I32;
    /// Shifts each lane right by `count` < 32 bits; zeros come in.
    unsafe fn shr(v: Self::I32, count: u32) -> Self::I32;
    /// For each byte the byte of `table` at its index; all are below 16.
    unsafe fn lookup(table: &[u8; 16], indices: Self::I32) -> Self::I32;
    /// The nearest f32; exact below 2^24.
    unsafe fn to_f32(v: Self::I32) -> Self::F32;
    /// The nearest integer, ties to even; `i32::MIN` for NaN and what i32 cannot hold.
    unsafe fn to_i32(v: Self::F32) -> Self::I32;
    /// The bits of the floats.
    unsafe fn to_bits(v: Self::F32) -> Self::I32;
    /// The floats of the bits.
    unsafe fn from_bits(v: Self::I32) -> Self::F32;
    /// The sum of all lanes, wrapping.
    unsafe fn sum_i32(v: Self::I32) -> i32;
    /// The largest lane.
    unsafe fn largest_i32(v: Self::I32) -> i32;

    // Dot products of four bytes a lane. The sums are exact, so their order is free.

    /// Starts a sum of [`Self::narrow_dot`]s at `start`. Give the same `start` to [`Self::narrow_finish`]: a register
    /// file without 32-bit accumulation adds it there.
    unsafe fn narrow_start(start: Self::I32) -> Self::Narrow;
    /// Adds, per lane, the four products of the unsigned bytes of `weights` and the signed bytes of `x` (not -128).
    /// From start to finish the sum of any two adjacent bytes' products must stay within i16: 8 calls for weights up to
    /// 15, 4 up to 31, 2 up to 63.
    unsafe fn narrow_dot(sum: Self::Narrow, weights: Self::I32, x: Self::I32) -> Self::Narrow;
    /// The whole sum.
    unsafe fn narrow_finish(sum: Self::Narrow, start: Self::I32) -> Self::I32;
    /// The start of a sum of [`Self::wide_dot`]s, from -128 times the sum of all bytes of `x` to come.
    unsafe fn wide_start(minus_128_sum: Self::I32) -> Self::I32;
    /// Adds, per lane, the four products of the signed bytes `weights - 128` and the signed bytes of `x` (not -128).
    unsafe fn wide_dot(sum: Self::I32, weights: Self::I32, x: Self::I32) -> Self::I32;
}

/// How far ahead of what is read its lines are asked for in the second cache. The first has room for few requests at a time, too few for
/// the time that memory takes. Measured, with one row from memory on two threads: Sapphire Rapids reads 0.96 to 1.09 of what plain reads do
/// with both, at 16 or 32 KiB, and 0.85 to 0.99 with the near ones alone; Zen 3 (8 lanes) gains nothing.
const FAR_BYTES: usize = 16 << 10;

/// As [`FAR_BYTES`], in the first cache. Measured: 8 lanes (Zen 3) read 10 to 35 % more at 2 KiB than without, as much at 4 and 6; 16 lanes
/// (Sapphire Rapids) more at 4 and 6 KiB than at 2.
const fn near_bytes<S: Simd>() -> usize {
    match S::LANES {
        16 => 4 << 10,
        _ => 2 << 10,
    }
}

/// Asks early for what a stream comes to after `bytes` bytes from `from` on, which it is reading: the lines that lie as far behind.
///
/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn read_ahead<S: Simd>(from: *const u8, bytes: usize) {
    // SAFETY: required of the caller.
    unsafe { ask_for::<S>(bytes, |ahead| from.wrapping_add(ahead)) }
}

/// Asks for the lines of `bytes` bytes as early as the caches need, which lie where `at` says: so many bytes ahead in the stream.
///
/// # Safety
/// As every method of [`Simd`].
#[inline(always)]
unsafe fn ask_for<S: Simd>(bytes: usize, at: impl Fn(usize) -> *const u8) {
    for line in (0..bytes).step_by(LINE_BYTES) {
        // SAFETY: required of the caller.
        unsafe {
            S::prefetch_second(at(FAR_BYTES + line));
            S::prefetch(at(near_bytes::<S>() + line));
        }
    }
}

/// Asks for the line of the first of `x` in the first cache: it is about to be written. No result depends on it.
#[inline(always)]
pub fn prefetch(x: &[f32]) {
    // SAFETY: the instruction is part of every processor of the architecture.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        avx2::Avx2::prefetch(x.as_ptr().cast());
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        neon::Neon::prefetch(x.as_ptr().cast());
    }
}

/// A stream that ends before long, and goes on elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    end: *const u8,
    next: *const u8,
}

impl Stretch {
    /// Without a next one, what is asked for behind the end is the start of `bytes`, which was read already and costs nothing.
    pub(crate) fn new(bytes: &[u8], next: Option<&[u8]>) -> Stretch {
        Stretch {
            end: bytes.as_ptr_range().end,
            next: next.unwrap_or(bytes).as_ptr(),
        }
    }

    /// As [`read_ahead`].
    ///
    /// # Safety
    /// As every method of [`Simd`].
    #[inline(always)]
    pub(crate) unsafe fn read_ahead<S: Simd>(self, from: *const u8, bytes: usize) {
        let at = |ahead: usize| {
            let here = from.wrapping_add(ahead);
            let behind = here.addr().wrapping_sub(self.end.addr());
            if here < self.end {
                here
            } else {
                self.next.wrapping_add(behind)
            }
        };
        // SAFETY: required of the caller.
        unsafe { ask_for::<S>(bytes, at) }
    }
}

/// Writes methods of [`Simd`] whose body is one expression of unsafe operations.
macro_rules! simd_methods {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? { $body:expr })*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: by the contract of `Simd` the machine has the instructions and pointers are valid for the lanes
            // named.
            unsafe { $body }
        }
    )*};
}

/// Writes methods of [`Simd`] whose body is one safe expression.
macro_rules! safe_methods {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty { $body:expr })*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) -> $ret {
            $body
        }
    )*};
}
pub(crate) use {safe_methods, simd_methods};
