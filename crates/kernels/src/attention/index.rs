//! Index scores, by which rows choose the keys that they attend to (DeepSeek-V3.2, "lightning indexer").
//!
//! An index has one key a position and several query heads. For a row:
//!
//! ```text
//! dot[h][k] = q[h] · key[k]                          one fma chain from +0 over the dimensions in order
//! score[k]  = Σ_h weight[h] · max(dot[h][k], 0)      one fma chain from +0 over the heads in order; NaN counts as 0
//! ```
//!
//! A row keeps the keys of the largest scores; of equal ones, the earlier. A score that is NaN is the smallest.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::Range;

use super::kv::{KvElement, KvLayout, PANEL_POSITIONS, SEGMENT_POSITIONS};
use super::page::{Element, F16, F32, Q8, Scores};
use super::state::PerPosition;
use crate::Kernels;
use crate::dispatch::Kernel;
use crate::elementwise::{LanePairFunction, map_pairs};
use crate::vector::{Simd, Stretch};

/// Heads whose products with the keys are computed side by side.
const TILE_HEADS: usize = 4;

/// The index heads of one row.
#[derive(Clone, Copy, Debug)]
pub struct IndexQuery<'a> {
    /// `[heads, k_dim]`
    pub q: &'a [f32],
    /// One a head.
    pub weights: &'a [f32],
}

impl Kernels {
    /// The scores of the keys in `slots` of a page, in their order.
    ///
    /// # Panics
    /// If the page, the query or `scores` has another length than the layout, the weights and `slots` say, or `slots` exceeds the page: a
    /// caller's bug.
    pub fn index_scores(
        self,
        layout: &KvLayout,
        page: &[u8],
        query: IndexQuery<'_>,
        slots: Range<usize>,
        scores: &mut [f32],
    ) {
        assert_eq!(page.len(), layout.page_bytes(), "page size of {layout:?}");
        assert_eq!(query.q.len(), query.weights.len() * layout.k_dim, "query length");
        assert!(slots.end <= SEGMENT_POSITIONS, "slots {slots:?} of a page");
        let index = Index {
            kernels: self,
            layout,
            keys: &page[..layout.v_offset_bytes()],
            slots: slots.clone(),
        };
        let mut sums = [0.0; SEGMENT_POSITIONS];
        let heads = query.q.chunks(TILE_HEADS * layout.k_dim);
        for (q, weights) in heads.zip(query.weights.chunks(TILE_HEADS)) {
            match layout.element {
                KvElement::F16 => index.add_heads::<F16>(q, weights, &mut sums),
                KvElement::F32 => index.add_heads::<F32>(q, weights, &mut sums),
                KvElement::Q8_0 | KvElement::Q4 => index.add_heads::<Q8>(q, weights, &mut sums),
            }
        }
        scores.copy_from_slice(&sums[slots]);
    }
}

/// Some keys of a page.
struct Index<'a> {
    kernels: Kernels,
    layout: &'a KvLayout,
    keys: &'a [u8],
    slots: Range<usize>,
}

impl Index<'_> {
    /// Adds what up to [`TILE_HEADS`] heads contribute, the first of them first.
    fn add_heads<K: Element>(&self, q: &[f32], weights: &[f32], sums: &mut PerPosition) {
        let heads = q.chunks_exact(self.layout.k_dim);
        if let Ok(all) = <[f32; TILE_HEADS]>::try_from(weights) {
            let mut queries = [q; TILE_HEADS];
            queries.iter_mut().zip(heads).for_each(|(query, head)| *query = head);
            self.add_tile::<K, TILE_HEADS>(queries, all, sums);
        } else {
            for (head, weight) in heads.zip(weights) {
                self.add_tile::<K, 1>([head], [*weight], sums);
            }
        }
    }

    fn add_tile<K: Element, const R: usize>(&self, queries: [&[f32]; R], weights: [f32; R], sums: &mut PerPosition) {
        let panels = self.slots.start / PANEL_POSITIONS..self.slots.end.div_ceil(PANEL_POSITIONS);
        let seen = panels.start * PANEL_POSITIONS..panels.end * PANEL_POSITIONS;
        let mut dots = [[0.0; SEGMENT_POSITIONS]; R];
        self.kernels.run(Scores::<K, R> {
            layout: self.layout,
            keys: self.keys,
            queries,
            panels,
            scores: &mut dots,
            ahead: Some(Stretch::new(self.keys, None)),
            element: PhantomData,
        });
        for (dots, weight) in dots.iter().zip(weights) {
            self.kernels.run(AddHead {
                weight,
                dots: &dots[seen.clone()],
                sums: &mut sums[seen.clone()],
            });
        }
    }
}

/// Adds what one head contributes to scores.
struct AddHead<'a> {
    weight: f32,
    dots: &'a [f32],
    sums: &'a mut [f32],
}

impl Kernel for AddHead<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: required of the caller; both are panels of the same positions.
        unsafe { map_pairs::<S, _>(AddPositive(self.weight), self.sums, self.dots) }
    }
}

/// sum + weight·max(dot, 0), rounded once
#[derive(Clone, Copy)]
struct AddPositive(f32);

impl LanePairFunction for AddPositive {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, sum: S::F32, dot: S::F32) -> S::F32 {
        // SAFETY: required of the caller.
        unsafe { S::fma(S::max(dot, S::splat(0.0)), S::splat(self.0), sum) }
    }
}

/// The places in `scores` of the `keep` largest, in rising order, or all if there are fewer. `places` is overwritten.
pub fn choose_largest(scores: &[f32], keep: usize, places: &mut Vec<u32>) {
    places.clear();
    // No more than is needed: the memory is planned for.
    places.reserve_exact(scores.len());
    places.extend(0..scores.len() as u32);
    if keep < scores.len() {
        let rank = |a: &u32, b: &u32| by_rank(scores[*a as usize], scores[*b as usize]).then(a.cmp(b));
        places.select_nth_unstable_by(keep, rank);
        places.truncate(keep);
        places.sort_unstable();
    }
}

/// The larger number first, NaN last.
fn by_rank(a: f32, b: f32) -> Ordering {
    match b.partial_cmp(&a) {
        Some(order) => order,
        None => a.is_nan().cmp(&b.is_nan()),
    }
}
