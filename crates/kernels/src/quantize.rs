//! Activations as the matrix kernels read them: rows interleaved in groups, as 8-bit blocks or as f32.

use std::ops::Range;

use crate::dispatch::{Kernel, Kernels};
use crate::panel::layout::{BLOCK_GROUPS, BLOCK_VALUES};
use crate::vector::Simd;

/// Most rows of a group: what a tile of a product has.
pub const GROUP_ROWS_MAX: usize = 8;

/// Most groups of a run: what meets a panel at once. Measured on Zen 3, prefill of 512 with f32 activations of SmolLM2 against one group at
/// a time: 2 groups 1.2 times as fast, 4 groups 1.3, 8 groups 1.4; with q8 activations of the 1B shape 1.15, 1.2 and 1.2.
const RUN_GROUPS_MAX: usize = 8;

/// Bytes of a run that has more than one group: it stays in the second cache from one panel to the next.
const RUN_BYTES: usize = 384 << 10;

/// Most rows of a run.
pub const RUN_ROWS_MAX: usize = RUN_GROUPS_MAX * GROUP_ROWS_MAX;

/// Words per row of a block of 32 quantised activations. A block of a group is `[12][interleaved]` words: 8 of four
/// quants each, and those below.
pub(crate) const BLOCK_WORDS: usize = 12;
/// Index of the scale (f32).
pub(crate) const SCALE: usize = 8;
/// Index of the scale times the sum of the quants (f32, rounded once).
pub(crate) const SCALED_SUM: usize = 9;
/// Index of minus the sum of the quants (i32).
pub(crate) const MINUS_SUM: usize = 10;
/// Index of minus the sum of the first 16 quants (i32).
pub(crate) const MINUS_FIRST_SUM: usize = 11;

/// The rows that a group of `rows` interleaves: a power of two, so that kernels are made for few strides. What is more than the rows
/// stays unread.
pub(crate) const fn interleaved(rows: usize) -> usize {
    rows.next_power_of_two()
}

/// The numbers that weights are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationType {
    /// Blocks of 32 8-bit integers with an f32 scale, for quantised weights.
    Q8,
    /// f32 as they are, for every type of weights.
    F32,
}

impl ActivationType {
    /// Words that a row of `k` values takes. `usize::MAX` if they are not countable.
    pub(crate) fn row_words(self, k: usize) -> usize {
        match self {
            ActivationType::Q8 => (k / BLOCK_VALUES).saturating_mul(BLOCK_WORDS),
            ActivationType::F32 => k,
        }
    }
}

/// Rows of activations, packed for the matrix kernels. The buffer is kept from one use to the next.
#[derive(Debug)]
pub struct Activations {
    activation_type: ActivationType,
    rows: usize,
    k: usize,
    /// In the order of their rows.
    groups: Vec<GroupPlace>,
    /// The groups one after the other; f32 values as their bits.
    words: Vec<u32>,
}

/// Where a group lies.
#[derive(Debug)]
struct GroupPlace {
    rows: Range<usize>,
    words: Range<usize>,
}

/// Neighbouring groups of some [`Activations`], which meet a panel together.
#[derive(Clone, Copy, Debug)]
pub struct GroupRun<'a> {
    activation_type: ActivationType,
    k: usize,
    groups: &'a [GroupPlace],
    /// Those of all groups of the activations.
    words: &'a [u32],
}

/// A group as the kernels read it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationGroup<'a> {
    pub first_row: usize,
    pub rows: usize,
    /// `[blocks][12][interleaved]` for 8-bit blocks, `[k][interleaved]` for f32.
    pub words: &'a [u32],
}

/// A group to be packed; groups of one [`Activations`] may be packed by different threads.
#[derive(Debug)]
pub struct ActivationGroupMut<'a> {
    activation_type: ActivationType,
    first_row: usize,
    rows: usize,
    k: usize,
    words: &'a mut [u32],
}

impl Default for Activations {
    fn default() -> Activations {
        Activations {
            activation_type: ActivationType::F32,
            rows: 0,
            k: 0,
            groups: Vec::new(),
            words: Vec::new(),
        }
    }
}

impl Activations {
    /// No rows.
    pub fn new() -> Activations {
        Activations::default()
    }

    /// Most bytes that `rows` rows of `k` values take. `usize::MAX` if they are not countable.
    pub fn most_bytes(activation_type: ActivationType, rows: usize, k: usize) -> usize {
        let interleaved = rows.checked_next_multiple_of(GROUP_ROWS_MAX).unwrap_or(usize::MAX);
        activation_type
            .row_words(k)
            .saturating_mul(interleaved)
            .saturating_mul(size_of::<u32>())
    }

    /// Makes room for `rows` rows of `k` values, to be packed through [`Self::groups_mut`]. Allocates only to grow.
    ///
    /// # Panics
    /// If `k` is no multiple of 32 for [`ActivationType::Q8`]: a mistake of the caller.
    pub fn reset(&mut self, activation_type: ActivationType, rows: usize, k: usize) {
        self.reset_cut(activation_type, &[0, rows], k);
    }

    /// As [`Self::reset`], for rows up to the last of `cuts`, which rise from 0: no group lies on both sides of one.
    ///
    /// # Panics
    /// As [`Self::reset`], or if there are no such cuts.
    pub fn reset_cut(&mut self, activation_type: ActivationType, cuts: &[usize], k: usize) {
        assert!(
            activation_type == ActivationType::F32 || k.is_multiple_of(BLOCK_VALUES),
            "{k} activations are no whole number of blocks"
        );
        let (Some(0), Some(&rows), true) = (cuts.first(), cuts.last(), cuts.is_sorted()) else {
            panic!("rows cut at {cuts:?}");
        };
        self.groups.clear();
        let mut words = 0_usize;
        for (start, end) in cuts.iter().zip(&cuts[1..]) {
            let count = (end - start).div_ceil(GROUP_ROWS_MAX);
            for i in 0..count {
                let (first_row, rows) = split_evenly(end - start, count, i);
                let start = start + first_row;
                let taken = activation_type.row_words(k).saturating_mul(interleaved(rows));
                let end = words.saturating_add(taken);
                self.groups.push(GroupPlace {
                    rows: start..start + rows,
                    words: words..end,
                });
                words = end;
            }
        }
        self.resize(words);
        (self.activation_type, self.rows, self.k) = (activation_type, rows, k);
    }

    /// Makes room for no more than is needed: the memory is planned for.
    fn resize(&mut self, words: usize) {
        self.words.reserve_exact(words.saturating_sub(self.words.len()));
        self.words.resize(words, 0);
    }

    /// As [`Self::reset`], each row a group of its own, from which [`ActivationGroupMut::copy`] takes it.
    ///
    /// # Panics
    /// As [`Self::reset`].
    pub fn reset_apart(&mut self, activation_type: ActivationType, rows: usize, k: usize) {
        self.reset(activation_type, 0, k);
        let row_words = activation_type.row_words(k);
        self.groups.reserve_exact(rows);
        self.groups.extend((0..rows).map(|row| GroupPlace {
            rows: row..row + 1,
            words: row.saturating_mul(row_words)..(row + 1).saturating_mul(row_words),
        }));
        self.resize(rows.saturating_mul(row_words));
        self.rows = rows;
    }

    /// Packs `x`, rows of `k` values one after the other.
    ///
    /// # Panics
    /// As [`Self::reset`], or if `x` is not whole rows.
    pub fn pack(&mut self, kernels: Kernels, activation_type: ActivationType, x: &[f32], k: usize) {
        let rows = x.len().checked_div(k).unwrap_or(0);
        self.reset(activation_type, rows, k);
        for group in self.groups_mut() {
            let (first_row, rows) = (group.first_row(), group.rows());
            group.pack(kernels, &x[first_row * k..][..rows * k]);
        }
    }

    /// Rows held.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes that the packed rows take.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Bytes held, for the most rows so far.
    pub fn held_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u32>()
    }

    /// How many groups there are: between two cuts as few as [`GROUP_ROWS_MAX`] allows, their sizes equal or one apart.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The first row of each group, in rising order.
    pub fn group_starts(&self) -> impl ExactSizeIterator<Item = usize> + Clone {
        self.groups.iter().map(|group| group.rows.start)
    }

    /// The groups in the order of their rows, in as few runs as caches and [`RUN_ROWS_MAX`] allow.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = GroupRun<'_>> + Clone {
        self.runs_of(0..self.rows)
    }

    /// As [`Self::runs`], those whose first row is one of `rows`.
    pub fn runs_of(&self, rows: Range<usize>) -> impl ExactSizeIterator<Item = GroupRun<'_>> + Clone {
        let index = |row: usize| self.groups.partition_point(|group| group.rows.start < row);
        let groups = &self.groups[index(rows.start)..index(rows.end)];
        let group_bytes = self
            .activation_type
            .row_words(self.k)
            .saturating_mul(GROUP_ROWS_MAX * size_of::<u32>());
        let most = (RUN_BYTES / group_bytes.max(1)).clamp(1, RUN_GROUPS_MAX);
        let count = groups.len().div_ceil(most);
        (0..count).map(move |i| {
            let (first, count) = split_evenly(groups.len(), count, i);
            GroupRun {
                activation_type: self.activation_type,
                k: self.k,
                groups: &groups[first..first + count],
                words: &self.words,
            }
        })
    }

    /// The groups in the order of their rows, to be packed.
    pub fn groups_mut(&mut self) -> impl ExactSizeIterator<Item = ActivationGroupMut<'_>> {
        let (activation_type, k) = (self.activation_type, self.k);
        let mut rest = self.words.as_mut_slice();
        self.groups.iter().map(move |group| {
            let (words, after) = std::mem::take(&mut rest).split_at_mut(group.words.len());
            rest = after;
            ActivationGroupMut {
                activation_type,
                first_row: group.rows.start,
                rows: group.rows.len(),
                k,
                words,
            }
        })
    }
}

/// Start and length of part `i` when `count` things are split into `parts` parts of equal sizes, or one apart.
pub(crate) fn split_evenly(count: usize, parts: usize, i: usize) -> (usize, usize) {
    let (size, larger) = (count / parts, count % parts);
    (i * size + i.min(larger), size + usize::from(i < larger))
}

impl<'a> GroupRun<'a> {
    /// What the values are.
    pub fn activation_type(self) -> ActivationType {
        self.activation_type
    }

    /// The rows of the groups. A run without groups has none.
    pub fn row_range(self) -> Range<usize> {
        match self.groups {
            [] => 0..0,
            [first, .., last] => first.rows.start..last.rows.end,
            [only] => only.rows.clone(),
        }
    }

    /// How many rows, at most [`RUN_ROWS_MAX`].
    pub fn rows(self) -> usize {
        self.row_range().len()
    }

    /// Values of a row.
    pub fn k(self) -> usize {
        self.k
    }

    /// The groups in the order of their rows.
    pub(crate) fn groups(self) -> impl ExactSizeIterator<Item = ActivationGroup<'a>> {
        self.groups.iter().map(move |group| ActivationGroup {
            first_row: group.rows.start,
            rows: group.rows.len(),
            words: &self.words[group.words.clone()],
        })
    }
}

impl ActivationGroupMut<'_> {
    /// Index of the first row.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// Rows of the group.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Packs `x`, the rows of this group one after the other.
    ///
    /// # Panics
    /// If `x` does not hold exactly them: a mistake of the caller.
    pub fn pack(self, kernels: Kernels, x: &[f32]) {
        assert_eq!(
            x.len(),
            self.rows * self.k,
            "activations of {} rows of {}",
            self.rows,
            self.k
        );
        match self.activation_type {
            ActivationType::Q8 => kernels.run(Quantize {
                x,
                rows: self.rows,
                k: self.k,
                words: self.words,
            }),
            ActivationType::F32 => interleave(x, self.rows, self.k, self.words),
        }
    }

    /// Copies rows that are packed already, as many as the group has.
    ///
    /// # Panics
    /// If `from` was not made by [`Activations::reset_apart`] with the same type and `k`, or does not have the rows: a caller's bug.
    pub fn copy(self, from: &Activations, rows: impl Iterator<Item = usize>) {
        let same = (from.activation_type, from.k) == (self.activation_type, self.k);
        assert!(
            same && from.groups.len() == from.rows,
            "rows of another kind, or in groups"
        );
        let row_words = from.activation_type.row_words(from.k);
        let stride = interleaved(self.rows);
        for (i, row) in rows.take(self.rows).enumerate() {
            let words = &from.words[row * row_words..][..row_words];
            for (to, word) in self.words.chunks_exact_mut(stride).zip(words) {
                to[i] = *word;
            }
        }
    }
}

/// `[rows][k]` to `[k][interleaved]`.
fn interleave(x: &[f32], rows: usize, k: usize, words: &mut [u32]) {
    for (row, x) in x.chunks_exact(k.max(1)).enumerate() {
        for (to, value) in words.chunks_exact_mut(interleaved(rows)).zip(x) {
            to[row] = value.to_bits();
        }
    }
}

/// Quantises rows into the blocks of a group.
struct Quantize<'a> {
    /// `[rows][k]`.
    x: &'a [f32],
    rows: usize,
    k: usize,
    /// `[k / 32][12][interleaved]`.
    words: &'a mut [u32],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Quantize { x, rows, k, words } = self;
        let stride = interleaved(rows);
        for (row, x) in x.chunks_exact(k.max(1)).enumerate() {
            let (blocks, _) = x.as_chunks::<BLOCK_VALUES>();
            for (block, to) in blocks.iter().zip(words.chunks_exact_mut(BLOCK_WORDS * stride)) {
                // SAFETY: the caller says that the machine has the instruction set.
                let block = unsafe { quantize_block::<S>(block) };
                for (i, word) in block.into_iter().enumerate() {
                    to[i * stride + row] = word;
                }
            }
        }
    }
}

/// The bits of +infinity: a value whose bits without sign are no less is not finite.
const INFINITY_BITS: i32 = 0x7f80_0000;

/// The 12 words of a block of activations.
///
/// # Safety
/// The machine has the instruction set of `S`.
#[inline(always)]
unsafe fn quantize_block<S: Simd>(x: &[f32; BLOCK_VALUES]) -> [u32; BLOCK_WORDS] {
    let mut quants = [0i8; BLOCK_VALUES];
    let (mut first_sum, mut sum, mut scale) = (0, 0, 0.0);
    // SAFETY: the caller says that the machine has the instruction set; `i` steps through 32 values by `LANES`, a power
    // of two below 32, so that each load and store lies within `x` and `quants`.
    unsafe {
        // Floats without sign are ordered as their bits, with infinity and then NaN above all others.
        let mut largest = S::splat_i32(0);
        for i in (0..BLOCK_VALUES).step_by(S::LANES) {
            largest = S::max_i32(largest, S::to_bits(S::abs(S::load(x.as_ptr().add(i)))));
        }
        let largest = S::largest_i32(largest);
        let inverse = 127.0 / f32::from_bits(largest as u32);
        if largest >= INFINITY_BITS {
            scale = f32::NAN;
        } else if inverse.is_finite() {
            scale = f32::from_bits(largest as u32) / 127.0;
            for i in (0..BLOCK_VALUES).step_by(S::LANES) {
                let rounded = S::to_i32(S::mul(S::load(x.as_ptr().add(i)), S::splat(inverse)));
                S::store_i8(quants.as_mut_ptr().add(i), rounded);
                let lanes = S::sum_i32(rounded);
                sum += lanes;
                first_sum += if i < BLOCK_VALUES / 2 { lanes } else { 0 };
            }
        }
    }
    let mut words = [0; BLOCK_WORDS];
    for (word, four) in words[..BLOCK_GROUPS].iter_mut().zip(quants.as_chunks().0) {
        *word = u32::from_le_bytes(four.map(|q: i8| q as u8));
    }
    words[SCALE] = scale.to_bits();
    words[SCALED_SUM] = (scale * sum as f32).to_bits();
    words[MINUS_SUM] = -sum as u32;
    words[MINUS_FIRST_SUM] = -first_sum as u32;
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_cover_the_rows_in_order_and_evenly() {
        let mut activations = Activations::new();
        for rows in 0..40 {
            activations.reset(ActivationType::F32, rows, 3);
            let mut next = 0;
            for run in activations.runs() {
                assert_eq!(run.row_range(), next..next + run.rows());
                assert!((1..=RUN_ROWS_MAX).contains(&run.rows()));
                assert!(run.rows() >= rows / activations.runs().len() / 2);
                for group in run.groups() {
                    assert_eq!(group.first_row, next);
                    assert!((1..=GROUP_ROWS_MAX).contains(&group.rows));
                    assert!(group.rows >= rows / activations.group_count());
                    next += group.rows;
                }
            }
            assert_eq!(next, rows);
        }
    }

    #[test]
    fn no_group_lies_on_both_sides_of_a_cut() {
        let mut activations = Activations::new();
        activations.reset_cut(ActivationType::F32, &[0, 3, 3, 20, 21], 2);
        let groups = |activations: &Activations, rows| -> Vec<_> {
            let runs = activations.runs_of(rows);
            runs.flat_map(|run| {
                run.groups()
                    .map(|group| (group.first_row, group.rows))
                    .collect::<Vec<_>>()
            })
            .collect()
        };
        assert_eq!(groups(&activations, 0..21), [(0, 3), (3, 6), (9, 6), (15, 5), (20, 1)]);
        assert_eq!(groups(&activations, 3..20), [(3, 6), (9, 6), (15, 5)]);
        assert_eq!(activations.group_starts().collect::<Vec<_>>(), [0, 3, 9, 15, 20]);
        let values: Vec<f32> = (0..42).map(|i| i as f32).collect();
        for group in activations.groups_mut() {
            let (first_row, rows) = (group.first_row(), group.rows());
            group.pack(Kernels::best(), &values[first_row * 2..][..rows * 2]);
        }
        let second = activations.runs_of(3..9).next().unwrap().groups().next().unwrap();
        let second: Vec<f32> = second
            .words
            .chunks_exact(interleaved(second.rows))
            .flat_map(|of_rows| &of_rows[..second.rows])
            .map(|x| f32::from_bits(*x))
            .collect();
        assert_eq!(
            second,
            [6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 7.0, 9.0, 11.0, 13.0, 15.0, 17.0]
        );
    }

    #[test]
    fn a_group_copied_from_packed_rows_is_the_group_packed() {
        let (k, kernels) = (64, Kernels::best());
        let values: Vec<f32> = (0..20 * k).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
        for activation_type in [ActivationType::Q8, ActivationType::F32] {
            let mut apart = Activations::new();
            apart.reset_apart(activation_type, 20, k);
            for group in apart.groups_mut() {
                let row = group.first_row();
                group.pack(kernels, &values[row * k..][..k]);
            }
            for rows in 1..=GROUP_ROWS_MAX {
                let chosen = |i: usize| (i * 7 + rows) % 20;
                let gathered: Vec<f32> = (0..rows).flat_map(|i| &values[chosen(i) * k..][..k]).copied().collect();
                let mut packed = Activations::new();
                packed.pack(kernels, activation_type, &gathered, k);
                let mut copied = Activations::new();
                copied.reset(activation_type, rows, k);
                for group in copied.groups_mut() {
                    group.copy(&apart, (0..rows).map(chosen));
                }
                assert_eq!(copied.words, packed.words, "{rows} rows");
            }
        }
    }

    #[test]
    fn a_used_buffer_is_not_allocated_again() {
        let mut activations = Activations::new();
        activations.pack(Kernels::best(), ActivationType::Q8, &[1.0; 256], 64);
        let before = activations.words.as_ptr();
        activations.pack(Kernels::best(), ActivationType::F32, &[1.0; 64], 32);
        assert_eq!(activations.words.as_ptr(), before);
    }
}
