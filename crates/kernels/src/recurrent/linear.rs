//! Linear attention with decay, one head: gated delta nets, Kimi delta attention, Mamba-2 and lightning attention.

use super::ColumnsMut;
use crate::Kernels;
use crate::dispatch::Kernel;
use crate::elementwise::{load_up_to, store_up_to};
use crate::vector::Simd;

/// Registers of value columns that walk down the state together: as many chains hide the latency of an fma, and their part of a
/// state of 128 keys stays in the first cache from the first pass to the second.
const STRIP_REGISTERS: usize = 4;

/// How much of a state is kept from one row to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay<'a> {
    /// One factor for the head.
    One(f32),
    /// A factor for each dimension of the key.
    PerKey(&'a [f32]),
}

/// What one row brings to the state of one head, for some columns of the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearStep<'a> {
    /// Reads the updated state: `[key_dim]`. Mamba-2's C.
    pub query: &'a [f32],
    /// Says where the value goes: `[key_dim]`. Mamba-2's B.
    pub key: &'a [f32],
    /// `[value_dim]`. Mamba-2's dt·x.
    pub value: &'a [f32],
    /// Factor of the old state. Mamba-2's exp(dt·A).
    pub decay: Decay<'a>,
    /// The delta rule: the value is corrected by what the state already holds for the key, and written with this strength. Without
    /// it the value is added as it is.
    pub beta: Option<f32>,
}

impl Kernels {
    /// Brings the state `S` of a head, `[key_dim, value_dim]`, forward by one row and reads it out:
    ///
    /// ```text
    /// S[i][j] = S[i][j]·decay[i]
    /// u[j]    = Σ S[i][j]·key[i]           with beta only; one fma chain from +0 in rising i
    /// v[j]    = beta·(value[j] − u[j]),    or value[j] without beta
    /// S[i][j] = fma(key[i], v[j], S[i][j])
    /// out[j]  = Σ S[i][j]·query[i]         one fma chain from +0 in rising i
    /// ```
    ///
    /// `state`, `step.value` and `out` may be the same columns of the whole ones.
    ///
    /// # Panics
    /// If query, key, decay and the state's rows, or value, out and the state's columns differ in number: a caller's bug.
    pub fn linear_state_step(self, state: &mut ColumnsMut<'_>, step: &LinearStep<'_>, out: &mut [f32]) {
        let (key_dim, value_dim) = (state.rows(), state.columns());
        assert_eq!(step.query.len(), key_dim, "dimensions of query and state");
        assert_eq!(step.key.len(), key_dim, "dimensions of key and state");
        if let Decay::PerKey(decay) = step.decay {
            assert_eq!(decay.len(), key_dim, "dimensions of decay and state");
        }
        assert_eq!(step.value.len(), value_dim, "columns of value and state");
        assert_eq!(out.len(), value_dim, "columns of out and state");
        self.run(StateStep {
            state: state.reborrow(),
            step: *step,
            out,
        });
    }
}

struct StateStep<'a> {
    state: ColumnsMut<'a>,
    /// By value: what lies behind a reference would be read again after each store.
    step: LinearStep<'a>,
    out: &'a mut [f32],
}

impl Kernel for StateStep<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let strip = STRIP_REGISTERS * S::LANES;
        let mut column = 0;
        while column < self.out.len() {
            let left = self.out.len() - column;
            // SAFETY: required of the caller; the columns exist.
            column += unsafe {
                if left >= strip {
                    self.strip::<S, STRIP_REGISTERS>(column, strip)
                } else {
                    self.strip::<S, 1>(column, left.min(S::LANES))
                }
            };
        }
    }
}

impl StateStep<'_> {
    /// The step of `count` columns from `column` on, at most `N` registers of them; returns `count`.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; the columns exist.
    #[inline(always)]
    unsafe fn strip<S: Simd, const N: usize>(&mut self, column: usize, count: usize) -> usize {
        let LinearStep { query, key, .. } = self.step;
        // SAFETY: required of the caller. `linear_state_step` checked all dimensions, so the loops stay in query, key, decay and state.
        unsafe {
            let mut values = load_strip::<S, N>(self.step.value.as_ptr().add(column), count);
            if let Some(beta) = self.step.beta {
                let mut known = [S::splat(0.0); N];
                for (i, k) in key.iter().enumerate() {
                    let (_, state) = self.decayed::<S, N>(i, column, count);
                    let k = S::splat(*k);
                    for (known, state) in known.iter_mut().zip(state) {
                        *known = S::fma(state, k, *known);
                    }
                }
                for (value, known) in values.iter_mut().zip(known) {
                    *value = S::mul(S::splat(beta), S::sub(*value, known));
                }
            }
            let mut sums = [S::splat(0.0); N];
            for (i, (k, q)) in key.iter().zip(query).enumerate() {
                let (place, mut state) = self.decayed::<S, N>(i, column, count);
                let (k, q) = (S::splat(*k), S::splat(*q));
                for ((state, value), sum) in state.iter_mut().zip(values).zip(&mut sums) {
                    *state = S::fma(k, value, *state);
                    *sum = S::fma(*state, q, *sum);
                }
                store_strip::<S, N>(place, state, count);
            }
            store_strip::<S, N>(self.out.as_mut_ptr().add(column), sums, count);
        }
        count
    }

    /// Where `count` columns of row `i` of the state lie, and the columns after decay. The delta rule takes the product twice: that is
    /// cheaper than to store it in between.
    ///
    /// # Safety
    /// As [`StateStep::strip`]; the row exists.
    #[inline(always)]
    unsafe fn decayed<S: Simd, const N: usize>(
        &mut self,
        i: usize,
        column: usize,
        count: usize,
    ) -> (*mut f32, [S::F32; N]) {
        // SAFETY: required of the caller; a decay for each key is as long as the state has rows.
        unsafe {
            let decay = S::splat(match self.step.decay {
                Decay::One(decay) => decay,
                Decay::PerKey(decays) => *decays.get_unchecked(i),
            });
            let place = self.state.row_ptr(i).add(column);
            let mut state = load_strip::<S, N>(place, count);
            for state in &mut state {
                *state = S::mul(*state, decay);
            }
            (place, state)
        }
    }
}

/// Reads `count` elements into `N` registers; the other lanes are +0.
///
/// # Safety
/// As every method of [`Simd`]; `from` is valid for `count` elements, which reach into the last register.
#[inline(always)]
unsafe fn load_strip<S: Simd, const N: usize>(from: *const f32, count: usize) -> [S::F32; N] {
    // SAFETY: required of the caller.
    unsafe {
        let mut registers = [S::splat(0.0); N];
        for (n, register) in registers.iter_mut().enumerate() {
            *register = load_up_to::<S>(from.add(n * S::LANES), count - n * S::LANES);
        }
        registers
    }
}

/// Writes the first `count` lanes of `N` registers.
///
/// # Safety
/// As every method of [`Simd`]; `to` is valid for `count` elements, which reach into the last register.
#[inline(always)]
unsafe fn store_strip<S: Simd, const N: usize>(to: *mut f32, registers: [S::F32; N], count: usize) {
    for (n, register) in registers.into_iter().enumerate() {
        // SAFETY: required of the caller.
        unsafe { store_up_to::<S>(to.add(n * S::LANES), register, count - n * S::LANES) }
    }
}
