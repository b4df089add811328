//! Loops that do nothing but what a machine is limited by: reading memory, products of bytes, products of f32. Speeds are measured
//! against them.

use std::hint::black_box;

use crate::dispatch::{Kernel, Kernels};
use crate::vector::Simd;

/// Registers in flight while memory is read.
const STREAM_REGISTERS: usize = 8;
/// Registers of weights that one round of products goes through: the first cache holds them.
const WEIGHT_REGISTERS: usize = 64;
/// Most rows of products of bytes, each with a register of inputs and one of sums.
const BYTE_ROWS_MAX: usize = 12;
/// Sums of f32 products: two units of a latency of four cycles need eight.
const FLOAT_ROWS: usize = 10;
/// Lanes of the widest register.
const LANES_MAX: usize = 16;

impl Kernels {
    /// Reads all bytes, in order. Returns minus the wrapping sum of their little-endian words, the last one padded with zeros, so that no
    /// read can be left out.
    pub fn read_through(self, bytes: &[u8]) -> i32 {
        self.run(ReadThrough { bytes })
    }

    /// Multiplies bytes and adds the products up from registers, in the fastest way that the kernels have (unsigned weights of few bits);
    /// returns how many multiplications and additions that were, a number that grows with `rounds`.
    pub fn multiply_bytes(self, rounds: usize) -> u64 {
        self.run(ByteProducts {
            rounds,
            operands: black_box(&ByteOperands::new()),
        })
    }

    /// As [`Self::multiply_bytes`], of fused f32 multiply-adds.
    pub fn multiply_floats(self, rounds: usize) -> u64 {
        self.run(FloatProducts {
            rounds,
            operands: black_box(&FloatOperands::new()),
        })
    }
}

struct ReadThrough<'a> {
    bytes: &'a [u8],
}

impl Kernel for ReadThrough<'_> {
    type Output = i32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> i32 {
        let register_bytes = 4 * S::LANES;
        let mut chunks = self.bytes.chunks_exact(STREAM_REGISTERS * register_bytes);
        let mut digest = 0_i32;
        // SAFETY: the machine has the instruction set of `S` (contract of `Kernel`); every load lies in its chunk.
        unsafe {
            let mut sums = [S::splat_i32(0); STREAM_REGISTERS];
            for chunk in &mut chunks {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::sub_i32(*sum, S::load_bytes(chunk.as_ptr().add(i * register_bytes)));
                }
            }
            for sum in sums {
                digest = digest.wrapping_add(S::sum_i32(sum));
            }
        }
        for rest in chunks.remainder().chunks(4) {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            digest = digest.wrapping_sub(i32::from_le_bytes(word));
        }
        digest
    }
}

/// Neighbours have the same weight and opposite inputs, so that no sum grows.
struct ByteOperands {
    weights: [u8; WEIGHT_REGISTERS * 4 * LANES_MAX],
    inputs: [u8; BYTE_ROWS_MAX * 4 * LANES_MAX],
}

impl ByteOperands {
    fn new() -> ByteOperands {
        let input = |i: usize| {
            let magnitude = (i / 2 % 127 + 1) as i8;
            (if i.is_multiple_of(2) { magnitude } else { -magnitude }) as u8
        };
        ByteOperands {
            weights: std::array::from_fn(|i| (i / 2 % 16) as u8),
            inputs: std::array::from_fn(input),
        }
    }
}

struct ByteProducts<'a> {
    rounds: usize,
    operands: &'a ByteOperands,
}

impl Kernel for ByteProducts<'_> {
    type Output = u64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> u64 {
        // SAFETY: required of the caller.
        unsafe {
            if S::LANES == LANES_MAX {
                // A dot product that takes five cycles, two at a time, needs ten; there are 32 registers.
                self.rows::<S, BYTE_ROWS_MAX>()
            } else {
                self.rows::<S, { BYTE_ROWS_MAX / 2 }>()
            }
        }
    }
}

impl ByteProducts<'_> {
    /// # Safety
    /// The machine has the instruction set of `S`; `R` is at most [`BYTE_ROWS_MAX`].
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(self) -> u64 {
        let register_bytes = 4 * S::LANES;
        let (weights, inputs) = (self.operands.weights.as_ptr(), self.operands.inputs.as_ptr());
        // SAFETY: required of the caller; the operands hold `WEIGHT_REGISTERS` and `BYTE_ROWS_MAX` of the widest registers.
        unsafe {
            let zero = S::splat_i32(0);
            let mut x = [zero; R];
            for (r, x) in x.iter_mut().enumerate() {
                *x = S::load_bytes(inputs.add(r * register_bytes));
            }
            let mut sums = [S::narrow_start(zero); R];
            for _ in 0..self.rounds {
                for i in 0..WEIGHT_REGISTERS {
                    let weights = S::load_bytes(weights.add(i * register_bytes));
                    for r in 0..R {
                        sums[r] = S::narrow_dot(sums[r], weights, x[r]);
                    }
                }
            }
            for sum in sums {
                black_box(S::sum_i32(S::narrow_finish(sum, zero)));
            }
        }
        (2 * self.rounds * WEIGHT_REGISTERS * R * register_bytes) as u64
    }
}

/// The weights' signs alternate, so that no sum grows.
struct FloatOperands {
    weights: [f32; WEIGHT_REGISTERS * LANES_MAX],
    starts: [f32; FLOAT_ROWS],
}

impl FloatOperands {
    fn new() -> FloatOperands {
        FloatOperands {
            weights: std::array::from_fn(|i| if (i / LANES_MAX).is_multiple_of(2) { 0.5 } else { -0.5 }),
            starts: std::array::from_fn(|i| i as f32),
        }
    }
}

struct FloatProducts<'a> {
    rounds: usize,
    operands: &'a FloatOperands,
}

impl Kernel for FloatProducts<'_> {
    type Output = u64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> u64 {
        let weights = self.operands.weights.as_ptr();
        // SAFETY: the machine has the instruction set of `S` (contract of `Kernel`); the operands hold `WEIGHT_REGISTERS` of the widest
        // registers.
        unsafe {
            let mut sums = [S::splat(0.0); FLOAT_ROWS];
            for (sum, start) in sums.iter_mut().zip(&self.operands.starts) {
                *sum = S::splat(*start);
            }
            let x = S::splat(self.operands.starts[1]);
            for _ in 0..self.rounds {
                for i in 0..WEIGHT_REGISTERS {
                    let weights = S::load(weights.add(i * S::LANES));
                    for sum in &mut sums {
                        *sum = S::fma(weights, x, *sum);
                    }
                }
            }
            for sum in sums {
                black_box(S::to_i32(sum));
            }
        }
        (2 * self.rounds * WEIGHT_REGISTERS * FLOAT_ROWS * S::LANES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn all() -> impl Iterator<Item = Kernels> {
        Isa::available().map(|isa| Kernels::new(isa).unwrap())
    }

    #[test]
    fn every_byte_is_read_once() {
        let bytes: Vec<u8> = (0..3000_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for len in [0, 1, 3, 4, 127, 128, 512, 513, 1027, 3000] {
            let bytes = &bytes[..len];
            let word = |bytes: &[u8]| {
                bytes
                    .iter()
                    .rev()
                    .fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
            };
            let sum = bytes.chunks(4).map(word).fold(0_u32, u32::wrapping_add);
            for kernels in all() {
                assert_eq!(
                    kernels.read_through(bytes),
                    (sum as i32).wrapping_neg(),
                    "{len} {}",
                    kernels.isa()
                );
            }
        }
    }

    #[test]
    fn operations_grow_with_rounds_and_sums_do_not() {
        for kernels in all() {
            for products in [Kernels::multiply_bytes, Kernels::multiply_floats] {
                let one = products(kernels, 1);
                assert!(one > 0);
                // Debug builds would find an overflow here.
                assert_eq!(
                    [0, 7, 5000].map(|rounds| products(kernels, rounds)),
                    [0, 7 * one, 5000 * one]
                );
            }
        }
    }
}
