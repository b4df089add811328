//! The rotation of queries, keys and values before they are quantised: fixed random signs, then a Walsh–Hadamard transform.
//!
//! It spreads a large number over its whole block, so that quantised neighbours keep their precision, and changes no dot product of a
//! rotated query with a rotated key.

use crate::Kernels;
use crate::dispatch::Kernel;
use crate::elementwise::{Scale, map};
use crate::scalar::rotation::{SIGNS, block_len, block_scale};
use crate::vector::Simd;

/// Numbers whose butterflies are done without registers: the widest.
const CHUNK: usize = 16;

impl Kernels {
    /// Rotates every head of `heads` (`head_dim` elements each) in place. With n the largest power of two that divides `head_dim`:
    ///
    /// ```text
    /// x[i] = x[i] · sign[i]                                  fixed signs, by the index in the head
    /// (x[i], x[i + h]) = (x[i] + x[i + h], x[i] − x[i + h])  in each block of n, for h = 1, 2, 4 … n/2
    /// x[i] = x[i] · (1/√n)
    /// ```
    ///
    /// # Panics
    /// If `heads` is not a whole number of heads: a caller's bug.
    pub fn rotate_signed(self, heads: &mut [f32], head_dim: usize) {
        check_heads(heads, head_dim);
        self.run(Rotate {
            heads,
            head_dim,
            back: false,
        });
    }

    /// The inverse of [`Kernels::rotate_signed`]: the same steps with the signs last.
    ///
    /// # Panics
    /// If `heads` is not a whole number of heads: a caller's bug.
    pub fn unrotate_signed(self, heads: &mut [f32], head_dim: usize) {
        check_heads(heads, head_dim);
        self.run(Rotate {
            heads,
            head_dim,
            back: true,
        });
    }
}

fn check_heads(heads: &[f32], head_dim: usize) {
    assert!(
        head_dim > 0 && heads.len().is_multiple_of(head_dim),
        "{} elements as heads of {head_dim}",
        heads.len()
    );
}

struct Rotate<'a> {
    heads: &'a mut [f32],
    head_dim: usize,
    back: bool,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = block_len(self.head_dim);
        for head in self.heads.chunks_exact_mut(self.head_dim) {
            if !self.back {
                sign(head);
            }
            for block in head.chunks_exact_mut(n) {
                // SAFETY: required of the caller; a block is a power of two long.
                unsafe {
                    butterflies::<S>(block);
                    map::<S, _>(Scale(block_scale(n)), block);
                }
            }
            if self.back {
                sign(head);
            }
        }
    }
}

#[inline(always)]
fn sign(head: &mut [f32]) {
    for part in head.chunks_mut(SIGNS.len()) {
        part.iter_mut().zip(&SIGNS).for_each(|(x, sign)| *x *= sign);
    }
}

/// The sums and differences of a block.
///
/// # Safety
/// The machine has the instruction set of `S`; the block is a power of two long.
#[inline(always)]
unsafe fn butterflies<S: Simd>(block: &mut [f32]) {
    let (chunks, rest) = block.as_chunks_mut::<CHUNK>();
    for chunk in chunks {
        near_butterflies(chunk);
    }
    near_butterflies(rest);
    let mut distance = CHUNK;
    while distance < block.len() {
        for pair in block.chunks_exact_mut(2 * distance) {
            let (first, second) = pair.split_at_mut(distance);
            let mut i = 0;
            while i < distance {
                // SAFETY: both halves are whole groups of 16, and a register has at most 16 lanes.
                unsafe {
                    let (to_first, to_second) = (first.as_mut_ptr().add(i), second.as_mut_ptr().add(i));
                    let (x, y) = (S::load(to_first), S::load(to_second));
                    S::store(to_first, S::add(x, y));
                    S::store(to_second, S::sub(x, y));
                }
                i += S::LANES;
            }
        }
        distance *= 2;
    }
}

/// All butterflies of at most 16 numbers.
#[inline(always)]
fn near_butterflies(x: &mut [f32]) {
    for distance in [1, 2, 4, 8] {
        for pair in x.chunks_exact_mut(2 * distance) {
            let (first, second) = pair.split_at_mut(distance);
            for (x, y) in first.iter_mut().zip(second) {
                (*x, *y) = (*x + *y, *x - *y);
            }
        }
    }
}
