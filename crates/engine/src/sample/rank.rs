//! Tokens by falling logit, ordered only as far as somebody looks.

/// A token and its logit, ordered: the likelier first, of equals the lower id.
///
/// One integer: the logit's bits, mapped so that a larger logit is a smaller number, above the id. Ordering is one comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate(u64);

const SIGN: u32 = 1 << 31;

impl Candidate {
    /// `logit` is not NaN.
    pub(super) fn new(id: u32, logit: f32) -> Self {
        // Adding 0 makes −0 and +0, which are equal, the same bits.
        let bits = (logit + 0.0).to_bits();
        let falling = if bits & SIGN == 0 { !(bits | SIGN) } else { bits };
        Self(u64::from(falling) << 32 | u64::from(id))
    }

    pub(super) fn id(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn logit(self) -> f32 {
        let falling = (self.0 >> 32) as u32;
        f32::from_bits(if falling & SIGN == 0 { !falling & !SIGN } else { falling })
    }
}

/// How many are looked for at first; enough for most draws.
const FIRST: usize = 256;
/// How many times as many when those were not enough: few steps, so that ordering everything costs little more than one sort.
const GROWTH: usize = 16;

/// The tokens of one row by rank, found as far as they are asked for.
pub(super) struct Ranking<'a> {
    /// No NaN.
    logits: &'a [f32],
    /// The likeliest tokens in order.
    ranked: &'a mut Vec<Candidate>,
    /// How many were looked for; fewer in `ranked` are all there are.
    looked_for: usize,
    limit: usize,
}

impl<'a> Ranking<'a> {
    /// The `limit` likeliest tokens but those at −∞. `buffer` is memory to use.
    pub(super) fn new(logits: &'a [f32], limit: usize, buffer: &'a mut Vec<Candidate>) -> Self {
        buffer.clear();
        Self {
            logits,
            ranked: buffer,
            looked_for: 0,
            limit,
        }
    }

    /// The candidates, the likeliest first.
    pub(super) fn iter(&mut self) -> impl Iterator<Item = Candidate> {
        (0..self.limit).map_while(|rank| self.get(rank))
    }

    /// Leaves those of some ranks, which rise; they are the first ranks afterwards.
    pub(super) fn keep(&mut self, ranks: impl Iterator<Item = usize>) {
        let mut kept = 0;
        for rank in ranks {
            if let Some(candidate) = self.get(rank) {
                // Not behind `rank`, so nothing is lost that is still to come.
                self.ranked[kept] = candidate;
                kept += 1;
            }
        }
        self.ranked.truncate(kept);
        (self.looked_for, self.limit) = (kept, kept);
    }

    /// The candidate of a rank, if there are so many.
    pub(super) fn get(&mut self, rank: usize) -> Option<Candidate> {
        while rank >= self.ranked.len() && self.ranked.len() == self.looked_for && self.looked_for < self.limit {
            self.looked_for = self.looked_for.saturating_mul(GROWTH).max(FIRST).min(self.limit);
            likeliest(self.logits, self.looked_for, self.ranked);
        }
        self.ranked.get(rank).copied()
    }
}

/// Puts the `keep` (not 0) likeliest tokens into `found`, in order.
fn likeliest(logits: &[f32], keep: usize, found: &mut Vec<Candidate>) {
    const BLOCK: usize = 16;
    let room = keep.saturating_mul(2);
    found.clear();
    // Equal logits that come later have a higher id, so what is not above the bound is never among the likeliest.
    let mut bound = f32::NEG_INFINITY;
    for (first, block) in (0..).step_by(BLOCK).zip(logits.chunks(BLOCK)) {
        // Without an early exit this is one vector comparison, and most blocks end here.
        if !block.iter().fold(false, |any, &logit| any | (logit > bound)) {
            continue;
        }
        let above = (first..).zip(block).filter(|&(_, &logit)| logit > bound);
        found.extend(above.map(|(id, &logit)| Candidate::new(id, logit)));
        if found.len() >= room {
            let (_, last, _) = found.select_nth_unstable(keep - 1);
            bound = last.logit();
            found.truncate(keep);
        }
    }
    if found.len() > keep {
        found.select_nth_unstable(keep - 1);
        found.truncate(keep);
    }
    found.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(logits: &[f32]) -> Vec<(u32, f32)> {
        let mut all: Vec<(u32, f32)> = (0..)
            .zip(logits.iter().copied())
            .filter(|pair| pair.1 != f32::NEG_INFINITY)
            .collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all
    }

    #[test]
    fn candidates_keep_their_logit() {
        for logit in [
            0.0,
            1.5,
            -1.5,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            -1e-45,
            f32::NEG_INFINITY,
        ] {
            let candidate = Candidate::new(7, logit);
            assert_eq!((candidate.id(), candidate.logit().to_bits()), (7, logit.to_bits()));
        }
        assert_eq!(Candidate::new(1, -0.0), Candidate::new(1, 0.0));
        assert_eq!(Candidate::new(u32::MAX, 1.0).id(), u32::MAX);
    }

    proptest! {
        #[test]
        fn order_equals_a_full_sort(
            logits in prop::collection::vec(
                prop_oneof![4 => -3.0_f32..3.0, 2 => (-2..3).prop_map(|x| x as f32), 1 => Just(f32::NEG_INFINITY), 1 => Just(-0.0)],
                0..6000,
            ),
            limit in prop_oneof![0..8_usize, 0..700_usize, Just(usize::MAX)],
        ) {
            let mut want = naive(&logits);
            want.truncate(limit);
            let mut buffer = vec![Candidate::new(1, 2.0)];
            let mut ranking = Ranking::new(&logits, limit, &mut buffer);
            for _ in 0..2 {
                let got: Vec<_> = ranking.iter().map(|candidate| (candidate.id(), candidate.logit())).collect();
                prop_assert_eq!(&got, &want);
            }
        }
    }
}
