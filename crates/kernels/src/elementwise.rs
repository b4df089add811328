//! Element-by-element operations on rows.

use crate::Kernels;
use crate::dispatch::Kernel;
use crate::math::tanh_lanes;
use crate::panel::PANEL_ROWS;
use crate::vector::Simd;

/// A function of one lane.
pub(crate) trait LaneFunction: Copy {
    /// # Safety
    /// As every method of [`Simd`].
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32;
}

/// A function of two lanes.
pub(crate) trait LanePairFunction: Copy {
    /// # Safety
    /// As every method of [`Simd`].
    unsafe fn of<S: Simd>(self, x: S::F32, y: S::F32) -> S::F32;
}

/// Reads `count` elements, at most a vector of them; the other lanes are +0.
///
/// # Safety
/// As every method of [`Simd`]; `from` is valid for `count` elements.
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Simd>(from: *const f32, count: usize) -> S::F32 {
    // SAFETY: required of the caller.
    unsafe {
        if count >= S::LANES {
            S::load(from)
        } else {
            S::load_first(from, count)
        }
    }
}

/// Writes the first `count` lanes of `v`, at most all.
///
/// # Safety
/// As every method of [`Simd`]; `to` is valid for `count` elements.
#[inline(always)]
pub(crate) unsafe fn store_up_to<S: Simd>(to: *mut f32, v: S::F32, count: usize) {
    // SAFETY: required of the caller.
    unsafe {
        if count >= S::LANES {
            S::store(to, v);
        } else {
            S::store_first(to, v, count);
        }
    }
}

/// x ← f(x)
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
pub(crate) unsafe fn map<S: Simd, F: LaneFunction>(f: F, x: &mut [f32]) {
    let mut i = 0;
    while i < x.len() {
        let left = x.len() - i;
        // SAFETY: `left` elements follow the `i`-th.
        unsafe {
            let to = x.as_mut_ptr().add(i);
            store_up_to::<S>(to, f.of::<S>(load_up_to::<S>(to, left)), left);
        }
        i += S::LANES;
    }
}

/// x ← f(x, y)
///
/// # Safety
/// The machine has the instruction set of `S`; `x` and `y` are equally long.
#[inline(always)]
pub(crate) unsafe fn map_pairs<S: Simd, F: LanePairFunction>(f: F, x: &mut [f32], y: &[f32]) {
    debug_assert_eq!(x.len(), y.len());
    let mut i = 0;
    while i < x.len() {
        let left = x.len() - i;
        // SAFETY: `left` elements follow the `i`-th of both.
        unsafe {
            let to = x.as_mut_ptr().add(i);
            let y = load_up_to::<S>(y.as_ptr().add(i), left);
            store_up_to::<S>(to, f.of::<S>(load_up_to::<S>(to, left), y), left);
        }
        i += S::LANES;
    }
}

/// [`map`] as a kernel.
pub(crate) struct Map<'a, F> {
    pub f: F,
    pub x: &'a mut [f32],
}

impl<F: LaneFunction> Kernel for Map<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: required of the caller.
        unsafe { map::<S, F>(self.f, self.x) }
    }
}

/// [`map_pairs`] as a kernel over rows of `y.len()` elements.
pub(crate) struct MapRows<'a, F> {
    pub f: F,
    pub rows: &'a mut [f32],
    pub y: &'a [f32],
}

impl<F: LanePairFunction> Kernel for MapRows<'_, F> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in self.rows.chunks_exact_mut(self.y.len().max(1)) {
            // SAFETY: required of the caller; a row is as long as `y`.
            unsafe { map_pairs::<S, F>(self.f, row, self.y) }
        }
    }
}

/// Rows that multiples of others are added to.
pub trait ScaledRows {
    /// A row, or the first of its elements that anything is added to, at most 16, and the factor of what is added.
    fn row(&mut self, i: usize) -> (&mut [f32], f32);
}

/// The arguments of [`Kernels::add_scaled_rows`].
struct AddScaledRows<'a, R> {
    rows: &'a mut R,
    y: &'a [[f32; PANEL_ROWS]],
}

impl<R: ScaledRows> Kernel for AddScaledRows<'_, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (i, y) in self.y.iter().enumerate() {
            let (x, factor) = self.rows.row(i);
            // SAFETY: required of the caller; both are equally long, nearly always whole.
            unsafe {
                match <&mut [f32; PANEL_ROWS]>::try_from(&mut *x) {
                    Ok(whole) => map_pairs::<S, _>(AddScaled(factor), whole, y),
                    Err(_) => map_pairs::<S, _>(AddScaled(factor), x, &y[..x.len()]),
                }
            }
        }
    }
}

/// x + y
#[derive(Clone, Copy)]
pub(crate) struct Add;

impl LanePairFunction for Add {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32, y: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::add(x, y) }
    }
}

/// x·y
#[derive(Clone, Copy)]
struct Mul;

impl LanePairFunction for Mul {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32, y: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::mul(x, y) }
    }
}

/// Multiplies the `i`-th of the equal groups of a row by the `i`-th factor, in every row of `row_len` elements.
struct MulGroups<'a> {
    rows: &'a mut [f32],
    row_len: usize,
    factors: &'a [f32],
}

impl Kernel for MulGroups<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let group_len = self.row_len / self.factors.len();
        for row in self.rows.chunks_exact_mut(self.row_len) {
            for (group, factor) in row.chunks_exact_mut(group_len).zip(self.factors) {
                // SAFETY: required of the caller.
                unsafe { map::<S, _>(Scale(*factor), group) }
            }
        }
    }
}

/// x + factor·y, rounded once
#[derive(Clone, Copy)]
pub(crate) struct AddScaled(pub f32);

impl LanePairFunction for AddScaled {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32, y: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::fma(S::splat(self.0), y, x) }
    }
}

/// x·factor
#[derive(Clone, Copy)]
pub(crate) struct Scale(pub f32);

impl LaneFunction for Scale {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::mul(x, S::splat(self.0)) }
    }
}

/// See [`Kernels::softcap`].
#[derive(Clone, Copy)]
pub(crate) struct Softcap(pub f32);

impl LaneFunction for Softcap {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe {
            let cap = S::splat(self.0);
            S::mul(cap, tanh_lanes::<S>(S::div(x, cap)))
        }
    }
}

impl Kernels {
    /// x ← x + y (residual).
    ///
    /// # Panics
    /// If the lengths differ: a caller's bug.
    pub fn add(self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths of a sum");
        self.run(MapRows { f: Add, rows: x, y });
    }

    /// Adds `bias` to every row of `rows`, each of `bias.len()` elements.
    ///
    /// # Panics
    /// If `rows` is not a whole number of rows: a caller's bug.
    pub fn add_bias(self, rows: &mut [f32], bias: &[f32]) {
        assert!(
            rows.len().is_multiple_of(bias.len().max(1)),
            "rows of {} for a bias of {}",
            rows.len(),
            bias.len()
        );
        self.run(MapRows { f: Add, rows, y: bias });
    }

    /// x ← x·y
    ///
    /// # Panics
    /// If the lengths differ: a caller's bug.
    pub fn mul(self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths of a product");
        self.run(MapRows { f: Mul, rows: x, y });
    }

    /// Multiplies `x`, taken as `factors.len()` equal groups, by one factor a group. With factors `[rows, groups]` every row has its own.
    ///
    /// # Panics
    /// If `x` is not that many equal groups: a caller's bug.
    pub fn mul_groups(self, x: &mut [f32], factors: &[f32]) {
        self.mul_vector(x, x.len(), factors);
    }

    /// Multiplies every row of `rows`, each of `row_len` elements, by the same `vector`, whose element `i` covers the `i`-th of
    /// `vector.len()` equal groups of a row: one column if the vector is as long as a row, a head if it has one element a head.
    ///
    /// # Panics
    /// If `rows` is not a whole number of rows, or a row not a whole number of groups: a caller's bug.
    pub fn mul_vector(self, rows: &mut [f32], row_len: usize, vector: &[f32]) {
        if rows.is_empty() {
            return;
        }
        assert!(
            !vector.is_empty() && rows.len().is_multiple_of(row_len) && row_len.is_multiple_of(vector.len()),
            "{} elements as rows of {row_len} for a vector of {}",
            rows.len(),
            vector.len()
        );
        if vector.len() == row_len {
            self.run(MapRows {
                f: Mul,
                rows,
                y: vector,
            });
        } else {
            self.run(MulGroups {
                rows,
                row_len,
                factors: vector,
            });
        }
    }

    /// x ← x·factor
    pub fn scale(self, x: &mut [f32], factor: f32) {
        self.run(Map { f: Scale(factor), x });
    }

    /// x ← fma(factor, y, x)
    ///
    /// # Panics
    /// If the lengths differ: a caller's bug.
    pub fn add_scaled(self, x: &mut [f32], factor: f32, y: &[f32]) {
        assert_eq!(x.len(), y.len(), "lengths of a sum");
        self.run(MapRows {
            f: AddScaled(factor),
            rows: x,
            y,
        });
    }

    /// As [`Self::add_scaled`], for rows of as many outputs as a panel has, `y`, each with a place and a factor of its own.
    ///
    /// # Panics
    /// If a place is longer than 16: a caller's bug.
    pub fn add_scaled_rows(self, rows: &mut impl ScaledRows, y: &[[f32; PANEL_ROWS]]) {
        self.run(AddScaledRows { rows, y });
    }

    /// x ← cap·tanh(x / cap)
    pub fn softcap(self, x: &mut [f32], cap: f32) {
        self.run(Map { f: Softcap(cap), x });
    }
}
