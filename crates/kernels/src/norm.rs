//! RMSNorm, LayerNorm and L2 norm over rows of any length, also over the heads of a row.
//!
//! A weight or bias is one row long, or several: then they belong to the rows in turn, as in a per-head norm with weights
//! `[heads, head_dim]` over rows of `head_dim` elements.
//!
//! A sum over a row has sixteen chains, element `i` in chain `i % 16`, which are then added by halves (8, 4, 2, 1):
//! independent of the register width and of how rows are grouped.

use crate::Kernels;
use crate::dispatch::Kernel;
use crate::elementwise::{Add, LaneFunction, LanePairFunction, Scale, load_up_to, map, map_pairs, store_up_to};
use crate::scalar::norm::{LANES, tree_sum};
use crate::vector::Simd;

impl Kernels {
    /// RMSNorm in place of every row of `rows`, each of `row_len` elements:
    ///
    /// ```text
    /// mean = (Σ x[i]²) / row_len                 squares added by fma in 16 chains
    /// y[i] = (x[i] · (1 / √(mean + eps))) · weight[i]
    /// ```
    ///
    /// Without a weight the last product is left out. `weight` is the effective one: models whose files hold `w − 1` add the 1 when
    /// they are loaded.
    ///
    /// # Panics
    /// If `rows` is not a whole number of rows (and of weights), `row_len` is 0, or `weight` is not a whole number of rows: a caller's
    /// bug.
    pub fn rms_norm(self, rows: &mut [f32], row_len: usize, weight: Option<&[f32]>, eps: f32) {
        check_rows(rows, row_len, [weight, None]);
        self.run(RmsNorm {
            rows,
            row_len,
            weight,
            eps,
        });
    }

    /// LayerNorm in place of every row of `rows`, each of `row_len` elements:
    ///
    /// ```text
    /// mean     = (Σ x[i]) / row_len              sums in 16 chains
    /// variance = (Σ (x[i] − mean)²) / row_len    squares added by fma in 16 chains
    /// n[i]     = (x[i] − mean) · (1 / √(variance + eps))
    /// y[i]     = fma(n[i], weight[i], bias[i])
    /// ```
    ///
    /// Without a bias y = n·weight, without a weight y = n + bias, without both y = n.
    ///
    /// # Panics
    /// As [`Kernels::rms_norm`], for `bias` too.
    pub fn layer_norm(self, rows: &mut [f32], row_len: usize, weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
        check_rows(rows, row_len, [weight, bias]);
        self.run(LayerNorm {
            rows,
            row_len,
            weight,
            bias,
            eps,
        });
    }

    /// Divides every row of `rows`, each of `row_len` elements, by its length:
    ///
    /// ```text
    /// y[i] = x[i] · (1 / √(Σ x[i]² + eps))       squares added by fma in 16 chains
    /// ```
    ///
    /// # Panics
    /// If `rows` is not a whole number of rows, or `row_len` is 0: a caller's bug.
    pub fn l2_norm(self, rows: &mut [f32], row_len: usize, eps: f32) {
        check_rows(rows, row_len, [None, None]);
        self.run(L2Norm { rows, row_len, eps });
    }

    /// Σ x[i]·y[i], products added by fma in 16 chains.
    ///
    /// # Panics
    /// If the lengths differ: a caller's bug.
    pub fn dot(self, x: &[f32], y: &[f32]) -> f32 {
        assert_eq!(x.len(), y.len(), "lengths of a dot product");
        self.run(Dot { x, y })
    }
}

/// The part of `vector`, one or several rows long, for the row with this index.
#[inline(always)]
fn part_for_row(vector: &[f32], row_len: usize, row: usize) -> &[f32] {
    let start = row * row_len % vector.len();
    &vector[start..start + row_len]
}

fn check_rows(rows: &[f32], row_len: usize, vectors: [Option<&[f32]>; 2]) {
    assert!(
        row_len > 0 && rows.len().is_multiple_of(row_len),
        "{} elements as rows of {row_len}",
        rows.len()
    );
    for vector in vectors.into_iter().flatten() {
        assert!(
            !vector.is_empty() && vector.len().is_multiple_of(row_len) && rows.len().is_multiple_of(vector.len()),
            "a weight or bias of {} for {} elements as rows of {row_len}",
            vector.len(),
            rows.len()
        );
    }
}

struct RmsNorm<'a> {
    rows: &'a mut [f32],
    row_len: usize,
    weight: Option<&'a [f32]>,
    eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (i, row) in self.rows.chunks_exact_mut(self.row_len).enumerate() {
            let weight = self.weight.map(|weight| part_for_row(weight, self.row_len, i));
            // SAFETY: required of the caller; the part of a weight is as long as a row.
            unsafe {
                let mean = sum::<S, true>(row) / self.row_len as f32;
                let inverse = 1.0 / (mean + self.eps).sqrt();
                match weight {
                    None => map::<S, _>(Scale(inverse), row),
                    Some(weight) => map_pairs::<S, _>(ScaleWeighted(inverse), row, weight),
                }
            }
        }
    }
}

struct L2Norm<'a> {
    rows: &'a mut [f32],
    row_len: usize,
    eps: f32,
}

impl Kernel for L2Norm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.rows.chunks_exact_mut(self.row_len) {
            // SAFETY: required of the caller.
            unsafe {
                let inverse = 1.0 / (sum::<S, true>(row) + self.eps).sqrt();
                map::<S, _>(Scale(inverse), row);
            }
        }
    }
}

struct Dot<'a> {
    x: &'a [f32],
    y: &'a [f32],
}

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        // SAFETY: required of the caller; both are equally long.
        unsafe { dot::<S>(self.x, self.y) }
    }
}

struct LayerNorm<'a> {
    rows: &'a mut [f32],
    row_len: usize,
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f32,
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.row_len as f32;
        for (i, row) in self.rows.chunks_exact_mut(self.row_len).enumerate() {
            let weight = self.weight.map(|weight| part_for_row(weight, self.row_len, i));
            let bias = self.bias.map(|bias| part_for_row(bias, self.row_len, i));
            // SAFETY: required of the caller; the parts of weight and bias are as long as a row.
            unsafe {
                let mean = sum::<S, false>(row) / len;
                map::<S, _>(Subtract(mean), row);
                let variance = sum::<S, true>(row) / len;
                let inverse = 1.0 / (variance + self.eps).sqrt();
                match (weight, bias) {
                    (None, None) => map::<S, _>(Scale(inverse), row),
                    (Some(weight), None) => map_pairs::<S, _>(ScaleWeighted(inverse), row, weight),
                    (None, Some(bias)) => {
                        map::<S, _>(Scale(inverse), row);
                        map_pairs::<S, _>(Add, row, bias);
                    }
                    (Some(weight), Some(bias)) => {
                        map::<S, _>(Scale(inverse), row);
                        multiply_add::<S>(row, weight, bias);
                    }
                }
            }
        }
    }
}

/// Σ x, or Σ x² if `SQUARES`, in 16 chains.
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
pub(crate) unsafe fn sum<S: Simd, const SQUARES: bool>(row: &[f32]) -> f32 {
    let from = row.as_ptr();
    let mut chains = [0.0; LANES];
    // SAFETY: whole groups of 16 lie in `row`, the rest is bounded by its count; `F32x16` is 16 lanes wide.
    unsafe {
        let mut sums = S::splat_x16(0.0);
        let mut start = 0;
        while start < row.len() {
            for (i, sum) in sums.as_mut().iter_mut().enumerate() {
                let at = start + i * S::LANES;
                // Lanes beyond the row add +0, which changes no chain: none is ever -0.
                let x = if at + S::LANES <= row.len() {
                    S::load(from.add(at))
                } else if at < row.len() {
                    S::load_first(from.add(at), row.len() - at)
                } else {
                    S::splat(0.0)
                };
                *sum = if SQUARES { S::fma(x, x, *sum) } else { S::add(x, *sum) };
            }
            start += LANES;
        }
        for (i, sum) in sums.as_ref().iter().enumerate() {
            S::store(chains.as_mut_ptr().add(i * S::LANES), *sum);
        }
    }
    tree_sum(chains)
}

/// Σ x·y in 16 chains.
///
/// # Safety
/// The machine has the instruction set of `S`; both are equally long.
#[inline(always)]
unsafe fn dot<S: Simd>(x: &[f32], y: &[f32]) -> f32 {
    let mut chains = [0.0; LANES];
    // SAFETY: a group that begins in `x` and `y` is read as far as they go; `F32x16` is 16 lanes wide.
    unsafe {
        let mut sums = S::splat_x16(0.0);
        let mut start = 0;
        while start < x.len() {
            for (i, sum) in sums.as_mut().iter_mut().enumerate() {
                let at = start + i * S::LANES;
                // Lanes beyond the end add +0, which changes no chain: none is ever -0.
                if at < x.len() {
                    let left = x.len() - at;
                    let x = load_up_to::<S>(x.as_ptr().add(at), left);
                    *sum = S::fma(x, load_up_to::<S>(y.as_ptr().add(at), left), *sum);
                }
            }
            start += LANES;
        }
        for (i, sum) in sums.as_ref().iter().enumerate() {
            S::store(chains.as_mut_ptr().add(i * S::LANES), *sum);
        }
    }
    tree_sum(chains)
}

/// x ← fma(x, weight, bias)
///
/// # Safety
/// The machine has the instruction set of `S`; all three are equally long.
#[inline(always)]
unsafe fn multiply_add<S: Simd>(x: &mut [f32], weight: &[f32], bias: &[f32]) {
    let mut i = 0;
    while i < x.len() {
        let left = x.len() - i;
        // SAFETY: `left` elements follow the `i`-th of all three.
        unsafe {
            let w = load_up_to::<S>(weight.as_ptr().add(i), left);
            let b = load_up_to::<S>(bias.as_ptr().add(i), left);
            let y = S::fma(load_up_to::<S>(x.as_ptr().add(i), left), w, b);
            store_up_to::<S>(x.as_mut_ptr().add(i), y, left);
        }
        i += S::LANES;
    }
}

/// (x · factor) · weight
#[derive(Clone, Copy)]
struct ScaleWeighted(f32);

impl LanePairFunction for ScaleWeighted {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32, weight: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::mul(S::mul(x, S::splat(self.0)), weight) }
    }
}

/// x − amount
#[derive(Clone, Copy)]
struct Subtract(f32);

impl LaneFunction for Subtract {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::sub(x, S::splat(self.0)) }
    }
}
