//! 16 lanes of plain Rust that count what is asked of them: the registers of AVX-512 on any machine, for tests.

use std::array::from_fn;
use std::cell::Cell;

use super::{Scalar, Simd};

/// Registers as those of AVX-512, each of four of [`Scalar`]'s.
#[derive(Clone, Copy)]
pub(crate) struct Counted;

const PARTS: usize = 4;
const PART_LANES: usize = Scalar::LANES;
type F32 = [<Scalar as Simd>::F32; PARTS];
type I32 = [<Scalar as Simd>::I32; PARTS];
type Mask = [<Scalar as Simd>::Mask; PARTS];

thread_local! {
    /// Operations so far; none while the thread does not count.
    static OPERATIONS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs the kernels that `work` calls on this thread on registers like those of AVX-512, and says how many operations they were. The
/// processor need not have any.
pub fn count(work: impl FnOnce()) -> u64 {
    OPERATIONS.set(Some(0));
    work();
    OPERATIONS.take().unwrap_or_default()
}

/// Whether this thread is within [`count`].
pub(crate) fn is_counting() -> bool {
    OPERATIONS.get().is_some()
}

fn tell() {
    OPERATIONS.set(OPERATIONS.get().map(|operations| operations + 1));
}

/// Methods of [`Simd`] that are one instruction or a few of AVX-512, `[i]` being part `i` of a register.
macro_rules! counted_methods {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty { $body:expr })*) => {$(
        // As a call: a kernel is compiled for what it counts, not for speed.
        #[inline(never)]
        unsafe fn $name($($arg: $ty),*) -> $ret {
            tell();
            // SAFETY: by the contract of `Simd`, whose 16 lanes are four times 4.
            unsafe { $body }
        }
    )*};
}

/// Methods of [`Simd`] that are no instruction on AVX-512.
macro_rules! free_methods {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty { $body:expr })*) => {$(
        #[inline(never)]
        unsafe fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: plain Rust.
            unsafe { $body }
        }
    )*};
}

/// How many of the first `count` lanes are in part `i`.
fn lanes_of_part(count: usize, i: usize) -> usize {
    count.saturating_sub(i * PART_LANES).min(PART_LANES)
}

// SAFETY: every load and store below is of four parts of 4 lanes, or of those of the first `count`.
unsafe impl Simd for Counted {
    const LANES: usize = PARTS * PART_LANES;
    const REGISTERS: usize = 32;
    type F32 = F32;
    type I32 = I32;
    type Mask = Mask;
    type Narrow = I32;
    type F32x16 = [F32; 1];

    counted_methods! {
        fn prefetch(from: *const u8) -> () { Scalar::prefetch(from) }
        fn prefetch_second(from: *const u8) -> () { Scalar::prefetch_second(from) }
        fn splat(x: f32) -> F32 { [Scalar::splat(x); PARTS] }
        fn splat_x16(x: f32) -> [F32; 1] { [[Scalar::splat(x); PARTS]] }
        fn load(from: *const f32) -> F32 { from_fn(|i| Scalar::load(from.add(i * PART_LANES))) }
        fn store(to: *mut f32, v: F32) -> () { for (i, v) in v.into_iter().enumerate() { Scalar::store(to.add(i * PART_LANES), v) } }
        fn load_first(from: *const f32, count: usize) -> F32 {
            from_fn(|i| Scalar::load_first(from.wrapping_add(i * PART_LANES), lanes_of_part(count, i)))
        }
        fn store_first(to: *mut f32, v: F32, count: usize) -> () {
            for (i, v) in v.into_iter().enumerate() {
                Scalar::store_first(to.wrapping_add(i * PART_LANES), v, lanes_of_part(count, i));
            }
        }
        fn load_f16(from: *const u16) -> F32 { from_fn(|i| Scalar::load_f16(from.add(i * PART_LANES))) }
        fn load_bf16(from: *const u16) -> F32 { from_fn(|i| Scalar::load_bf16(from.add(i * PART_LANES))) }
        fn add(a: F32, b: F32) -> F32 { from_fn(|i| Scalar::add(a[i], b[i])) }
        fn sub(a: F32, b: F32) -> F32 { from_fn(|i| Scalar::sub(a[i], b[i])) }
        fn mul(a: F32, b: F32) -> F32 { from_fn(|i| Scalar::mul(a[i], b[i])) }
        fn div(a: F32, b: F32) -> F32 { from_fn(|i| Scalar::div(a[i], b[i])) }
        fn fma(a: F32, b: F32, c: F32) -> F32 { from_fn(|i| Scalar::fma(a[i], b[i], c[i])) }
        fn neg(v: F32) -> F32 { from_fn(|i| Scalar::neg(v[i])) }
        fn abs(v: F32) -> F32 { from_fn(|i| Scalar::abs(v[i])) }
        fn max(a: F32, b: F32) -> F32 { from_fn(|i| Scalar::max(a[i], b[i])) }
        fn min(a: F32, b: F32) -> F32 { from_fn(|i| Scalar::min(a[i], b[i])) }

        fn less(a: F32, b: F32) -> Mask { from_fn(|i| Scalar::less(a[i], b[i])) }
        fn less_equal(a: F32, b: F32) -> Mask { from_fn(|i| Scalar::less_equal(a[i], b[i])) }
        fn select(mask: Mask, a: F32, b: F32) -> F32 { from_fn(|i| Scalar::select(mask[i], a[i], b[i])) }

        fn splat_i32(x: i32) -> I32 { [Scalar::splat_i32(x); PARTS] }
        fn load_bytes(from: *const u8) -> I32 { from_fn(|i| Scalar::load_bytes(from.add(i * 4 * PART_LANES))) }
        fn load_i8(from: *const u8) -> I32 { from_fn(|i| Scalar::load_i8(from.add(i * PART_LANES))) }
        fn store_i8(to: *mut i8, v: I32) -> () {
            for (i, v) in v.into_iter().enumerate() {
                Scalar::store_i8(to.add(i * PART_LANES), v);
            }
        }
        fn sub_i32(a: I32, b: I32) -> I32 { from_fn(|i| Scalar::sub_i32(a[i], b[i])) }
        fn max_i32(a: I32, b: I32) -> I32 { from_fn(|i| Scalar::max_i32(a[i], b[i])) }
        fn and(a: I32, b: I32) -> I32 { from_fn(|i| Scalar::and(a[i], b[i])) }
        fn or(a: I32, b: I32) -> I32 { from_fn(|i| Scalar::or(a[i], b[i])) }
        fn shl(v: I32, count: u32) -> I32 { from_fn(|i| Scalar::shl(v[i], count)) }
        fn shr(v: I32, count: u32) -> I32 { from_fn(|i| Scalar::shr(v[i], count)) }
        fn lookup(table: &[u8; 16], indices: I32) -> I32 { from_fn(|i| Scalar::lookup(table, indices[i])) }
        fn to_f32(v: I32) -> F32 { from_fn(|i| Scalar::to_f32(v[i])) }
        fn to_i32(v: F32) -> I32 { from_fn(|i| Scalar::to_i32(v[i])) }
        fn sum_i32(v: I32) -> i32 { v.into_iter().fold(0, |sum, v| sum.wrapping_add(Scalar::sum_i32(v))) }
        fn largest_i32(v: I32) -> i32 { v.into_iter().fold(i32::MIN, |max, v| max.max(Scalar::largest_i32(v))) }

        fn narrow_dot(sum: I32, weights: I32, x: I32) -> I32 { from_fn(|i| Scalar::narrow_dot(sum[i], weights[i], x[i])) }
        fn wide_dot(sum: I32, weights: I32, x: I32) -> I32 { from_fn(|i| Scalar::wide_dot(sum[i], weights[i], x[i])) }
    }

    free_methods! {
        fn to_bits(v: F32) -> I32 { from_fn(|i| Scalar::to_bits(v[i])) }
        fn from_bits(v: I32) -> F32 { from_fn(|i| Scalar::from_bits(v[i])) }
        fn narrow_start(start: I32) -> I32 { from_fn(|i| Scalar::narrow_start(start[i])) }
        fn narrow_finish(sum: I32, start: I32) -> I32 { from_fn(|i| Scalar::narrow_finish(sum[i], start[i])) }
        fn wide_start(minus_128_sum: I32) -> I32 { from_fn(|i| Scalar::wide_start(minus_128_sum[i])) }
    }
}
