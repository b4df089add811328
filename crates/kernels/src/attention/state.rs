//! The softmax of one row over a segment, and the running state that segments merge into.

use std::ops::Range;

use super::kv::SEGMENT_POSITIONS;
use super::segment::{TileRow, WIDE_TILE_ROWS};
use super::{Alibi, ScoreRule, SlotSet, attention_state_len};
use crate::dispatch::Kernel;
use crate::elementwise::{AddScaled, LaneFunction, LanePairFunction, Scale, Softcap, map, map_pairs};
use crate::math::exp_lanes;
use crate::norm::sum;
use crate::scalar::norm::LANES;
use crate::vector::Simd;

/// One number per position of a page.
pub(super) type PerPosition = [f32; SEGMENT_POSITIONS];

/// Turns the dot products of the rows of a tile into weights exp(score − max), and merges their maxima and sums into the rows' states.
///
/// Hidden slots that share a group of 16 with a visible one become 0; the others are left as they are. Each step goes over all rows before
/// the next one begins: while the maximum or the sum of a row waits for its chain, the processor has other rows to go on with.
pub(super) struct Softmax<'a, 'r, 's> {
    /// As many of each as there are rows, at most [`WIDE_TILE_ROWS`].
    pub dots: &'a mut [PerPosition],
    pub rows: &'a [TileRow<'r>],
    pub states: &'a mut [&'s mut [f32]],
    pub merges: &'a mut [Merge],
    pub rule: &'a ScoreRule,
}

impl Kernel for Softmax<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut maxima = [0.0; WIDE_TILE_ROWS];
        let mut sums = [0.0; WIDE_TILE_ROWS];
        // SAFETY: required of the caller.
        unsafe {
            for ((dots, row), max) in self.dots.iter_mut().zip(self.rows).zip(&mut maxima) {
                *max = row.scores::<S>(dots, self.rule);
            }
            for (((dots, row), max), sum) in self.dots.iter_mut().zip(self.rows).zip(maxima).zip(&mut sums) {
                *sum = row.weights::<S>(dots, max);
            }
            let rows = self
                .states
                .iter_mut()
                .zip(self.merges)
                .zip(maxima.into_iter().zip(sums));
            for ((state, merge), (max, sum)) in rows {
                *merge = Merge::of::<S>(state, max, sum);
            }
        }
    }
}

impl TileRow<'_> {
    /// Slots in whole groups of 16 around those that the row sees, the first of them, and which of them it sees.
    #[inline(always)]
    fn slots<'d>(&self, dots: &'d mut PerPosition) -> (&'d mut [f32], usize, Range<usize>) {
        let first = self.start - self.start % LANES;
        let slots = &mut dots[first..self.end.next_multiple_of(LANES)];
        (slots, first, self.start - first..self.end - first)
    }

    /// Turns dot products into scores, −∞ for hidden slots, and returns the largest.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`.
    #[inline(always)]
    unsafe fn scores<S: Simd>(&self, dots: &mut PerPosition, rule: &ScoreRule) -> f32 {
        let (slots, first, visible) = self.slots(dots);
        // SAFETY: required of the caller.
        unsafe {
            map::<S, _>(Scale(rule.scale), slots);
            if let Some(Alibi { slope, query_slot }) = self.alibi {
                let distances = distances(first, query_slot);
                map_pairs::<S, _>(AddScaled(slope), slots, &distances[..slots.len()]);
            }
            if let Some(cap) = rule.softcap {
                map::<S, _>(Softcap(cap), slots);
            }
            self.hide(slots, first, visible, f32::NEG_INFINITY);
            largest::<S>(slots)
        }
    }

    /// Turns scores into weights, 0 for hidden slots, and returns their sum.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`.
    #[inline(always)]
    unsafe fn weights<S: Simd>(&self, scores: &mut PerPosition, max: f32) -> f32 {
        let (slots, first, visible) = self.slots(scores);
        // SAFETY: required of the caller.
        unsafe {
            map::<S, _>(ExpMinus(max), slots);
            self.hide(slots, first, visible, 0.0);
            sum::<S, false>(slots)
        }
    }

    /// Puts `value` into those of the `slots` from `first` on that the row does not see.
    #[inline(always)]
    fn hide(&self, slots: &mut [f32], first: usize, visible: Range<usize>, value: f32) {
        if visible.len() < slots.len() {
            slots[..visible.start].fill(value);
            slots[visible.end..].fill(value);
        }
        replace_unchosen(slots, first, self.chosen, value);
    }
}

/// Puts `value` into the slots, `first` and those after it, that were not chosen.
fn replace_unchosen(slots: &mut [f32], first: usize, chosen: Option<&SlotSet>, value: f32) {
    let Some(chosen) = chosen else { return };
    for (i, slot) in slots.iter_mut().enumerate() {
        if !chosen.contains(first + i) {
            *slot = value;
        }
    }
}

/// Position of each slot from `first` on, minus that of the query.
#[inline(always)]
fn distances(first: usize, query_slot: usize) -> PerPosition {
    let mut distances = [0.0; SEGMENT_POSITIONS];
    for (i, distance) in distances.iter_mut().enumerate() {
        *distance = ((first + i) as i64 - query_slot as i64) as f32;
    }
    distances
}

/// The largest element that is not NaN; −∞ without one.
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
unsafe fn largest<S: Simd>(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    // SAFETY: a register has at most 16 lanes; `x` is a whole number of groups of 16.
    unsafe {
        let mut max = S::splat(f32::NEG_INFINITY);
        for chunk in x.chunks_exact(S::LANES) {
            max = S::max(S::load(chunk.as_ptr()), max);
        }
        S::store(lanes.as_mut_ptr(), max);
    }
    let mut largest = lanes[0];
    for lane in lanes {
        if lane > largest {
            largest = lane;
        }
    }
    largest
}

/// exp(x − amount)
#[derive(Clone, Copy)]
struct ExpMinus(f32);

impl LaneFunction for ExpMinus {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { exp_lanes::<S>(S::sub(x, S::splat(self.0))) }
    }
}

/// e^x of one number.
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
unsafe fn exp_one<S: Simd>(x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: required of the caller; a register has at most 16 lanes.
    unsafe { S::store(lanes.as_mut_ptr(), exp_lanes::<S>(S::splat(x))) };
    lanes[0]
}

/// How the outputs of two states are combined: fma(o, keep, next·add).
#[derive(Clone, Copy, Default)]
pub(super) struct Merge {
    /// The first state has seen no key: the second is taken as it is.
    replace: bool,
    keep: f32,
    add: f32,
}

impl Merge {
    /// Merges the maximum and the sum of a later segment, which saw at least one key, into `state`.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`.
    #[inline(always)]
    unsafe fn of<S: Simd>(state: &mut [f32], next_max: f32, next_sum: f32) -> Merge {
        let (max, sum) = (state[0], state[1]);
        if sum == 0.0 {
            state[0] = next_max;
            state[1] = next_sum;
            return Merge {
                replace: true,
                ..Merge::default()
            };
        }
        let larger = if next_max > max { next_max } else { max };
        // SAFETY: required of the caller.
        let (keep, add) = unsafe { (exp_one::<S>(max - larger), exp_one::<S>(next_max - larger)) };
        state[0] = larger;
        state[1] = sum.mul_add(keep, next_sum * add);
        Merge {
            replace: false,
            keep,
            add,
        }
    }

    /// # Safety
    /// The machine has the instruction set of `S`; both slices are equally long.
    #[inline(always)]
    unsafe fn columns<S: Simd>(self, output: &mut [f32], next: &[f32]) {
        if self.replace {
            output.copy_from_slice(next);
        } else {
            // SAFETY: required of the caller.
            unsafe { map_pairs::<S, _>(self, output, next) }
        }
    }
}

/// Merges the output of a later segment into `output`, which is equally long.
pub(super) struct MergeOutput<'a> {
    pub merge: Merge,
    pub output: &'a mut [f32],
    pub next: &'a [f32],
}

impl Kernel for MergeOutput<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: required of the caller.
        unsafe { self.merge.columns::<S>(self.output, self.next) }
    }
}

impl LanePairFunction for Merge {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, output: S::F32, next: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::fma(output, S::splat(self.keep), S::mul(next, S::splat(self.add))) }
    }
}

/// The arguments of [`crate::Kernels::merge_attention`], which checked all lengths.
pub(super) struct MergeRows<'a> {
    pub states: &'a mut [f32],
    pub next: &'a [f32],
    pub v_dim: usize,
}

impl Kernel for MergeRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = attention_state_len(self.v_dim);
        let pairs = self.states.chunks_exact_mut(len).zip(self.next.chunks_exact(len));
        for (state, next) in pairs {
            if next[1] != 0.0 {
                // SAFETY: required of the caller; states are equally long.
                unsafe { Merge::of::<S>(state, next[0], next[1]).columns::<S>(&mut state[2..], &next[2..]) }
            }
        }
    }
}

/// The arguments of [`crate::Kernels::finish_attention`], which checked all lengths.
pub(super) struct FinishRow<'a> {
    pub state: &'a [f32],
    pub sink: Option<f32>,
    pub out: &'a mut [f32],
}

impl Kernel for FinishRow<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut head = [self.state[0], self.state[1]];
        if head[1] == 0.0 {
            self.out.fill(0.0);
            return;
        }
        self.out.copy_from_slice(&self.state[2..]);
        // SAFETY: required of the caller.
        unsafe {
            if let Some(logit) = self.sink {
                let merge = Merge::of::<S>(&mut head, logit, 1.0);
                let zero = 0.0 * merge.add;
                map::<S, _>(MultiplyAdd(merge.keep, zero), self.out);
            }
            map::<S, _>(Divide(head[1]), self.out);
        }
    }
}

/// fma(x, factor, addend)
#[derive(Clone, Copy)]
struct MultiplyAdd(f32, f32);

impl LaneFunction for MultiplyAdd {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::fma(x, S::splat(self.0), S::splat(self.1)) }
    }
}

/// x / divisor
#[derive(Clone, Copy)]
struct Divide(f32);

impl LaneFunction for Divide {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::div(x, S::splat(self.0)) }
    }
}
