//! DRY: tokens that would go on with a repetition become less likely the longer it is.
//!
//! By the definition of its author (p-e-w, "DRY: a modern repetition penalty", text-generation-webui, pull request 5677, 2024): let n be
//! the most tokens such that the last n of the sequence also stand right before an earlier occurrence of a token. Where n is at least the
//! allowed length, `multiplier * base^(n - allowed_length)` is subtracted from the token's logit. No repetition reaches over a breaker.

use super::Dry;

/// The tokens so far, as far as DRY needs them.
#[derive(Debug)]
pub(super) struct Repetitions {
    params: Dry,
    /// Oldest first.
    tokens: Vec<u32>,
    /// Memory of [`Self::adjust`]: of each token of the window, the newest first, how many tokens from it on backwards are those from the
    /// newest on backwards.
    matches: Vec<usize>,
    /// Memory of [`Self::adjust`]: tokens that go on with a repetition, and its length.
    lengths: Vec<(u32, usize)>,
}

impl Repetitions {
    pub(super) fn new(mut params: Dry) -> Repetitions {
        params.breakers.sort_unstable();
        Repetitions {
            params,
            tokens: Vec::new(),
            matches: Vec::new(),
            lengths: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, id: u32) {
        self.tokens.push(id);
    }

    /// Subtracts the penalties.
    pub(super) fn adjust(&mut self, logits: &mut [f32]) {
        self.measure();
        for &(id, length) in &self.lengths {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= self.params.penalty(length);
            }
        }
    }

    /// Makes `lengths`: every token once, with its longest repetition, where that is long enough.
    fn measure(&mut self) {
        let window = self.params.window.unwrap_or(usize::MAX).min(self.tokens.len());
        let tokens = &self.tokens[self.tokens.len() - window..];
        let is_breaker = |id: &u32| self.params.breakers.binary_search(id).is_ok();
        let most = tokens.iter().rev().take_while(|id| !is_breaker(id)).count();
        self.lengths.clear();
        if most < self.params.allowed_length.max(1) {
            return;
        }
        match_ends(tokens, &mut self.matches);
        let found = self.matches.iter().enumerate().skip(1).filter_map(|(back, &length)| {
            let length = length.min(most);
            // What follows the earlier occurrence is one newer.
            (length >= self.params.allowed_length.max(1)).then(|| (tokens[tokens.len() - back], length))
        });
        self.lengths.extend(found);
        self.lengths.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        self.lengths.dedup_by_key(|token| token.0);
    }
}

impl Dry {
    /// What is subtracted for a repetition of `length` tokens, at least the allowed length. Finite.
    fn penalty(&self, length: usize) -> f32 {
        let (mut penalty, most) = (f64::from(self.multiplier), f64::from(f32::MAX));
        for _ in self.allowed_length..length {
            penalty *= f64::from(self.base);
            if penalty >= most || self.base == 1.0 {
                break;
            }
        }
        penalty.min(most) as f32
    }
}

/// For each token, the newest first, how many tokens from it on backwards equal those from the newest on backwards: Gusfield's Z-array of
/// the reversed sequence, in linear time ("Algorithms on strings, trees, and sequences", 1997, section 1.4).
fn match_ends(tokens: &[u32], matches: &mut Vec<usize>) {
    let count = tokens.len();
    let at = |back: usize| tokens[count - 1 - back];
    matches.clear();
    matches.resize(count, count);
    // The stretch that is known to match reaches furthest back: from `start` to before `end`.
    let (mut start, mut end) = (0, 0);
    for back in 1..count {
        let mut length = if back < end {
            matches[back - start].min(end - back)
        } else {
            0
        };
        while back + length < count && at(back + length) == at(length) {
            length += 1;
        }
        matches[back] = length;
        if back + length > end {
            (start, end) = (back, back + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dry() -> Dry {
        Dry {
            multiplier: 0.5,
            base: 2.0,
            ..Dry::default()
        }
    }

    fn penalties(params: Dry, tokens: &[u32]) -> Vec<f32> {
        let mut repetitions = Repetitions::new(params);
        tokens.iter().for_each(|&id| repetitions.push(id));
        let mut logits = vec![0.0; 10];
        repetitions.adjust(&mut logits);
        logits.into_iter().map(|logit| -logit + 0.0).collect()
    }

    /// The tokens that are penalised, and by how much.
    fn penalised(params: Dry, tokens: &[u32]) -> Vec<(usize, f32)> {
        let all = penalties(params, tokens).into_iter().enumerate();
        all.filter(|token| token.1 != 0.0).collect()
    }

    #[test]
    fn what_goes_on_with_a_repetition_is_penalised_by_its_length() {
        assert_eq!(penalised(dry(), &[]), []);
        assert_eq!(penalised(dry(), &[1]), []);
        assert_eq!(penalised(dry(), &[1, 2, 3, 1]), [], "one token is allowed");
        assert_eq!(penalised(dry(), &[1, 2, 3, 1, 2]), [(3, 0.5)]);
        assert_eq!(penalised(dry(), &[5, 1, 2, 3, 5, 1, 2]), [(3, 1.0)]);
        assert_eq!(penalised(dry(), &[1, 2, 3, 9, 1, 2, 4, 8, 1, 2]), [(3, 0.5), (4, 0.5)]);
        let longest = [7, 1, 2, 3, 0, 1, 2, 3, 0, 7, 1, 2];
        assert_eq!(penalised(dry(), &longest), [(3, 1.0)], "of two the longer");
        assert_eq!(penalised(dry(), &[4, 4, 4, 4]), [(4, 1.0)], "repetitions overlap");
    }

    #[test]
    fn no_repetition_reaches_over_a_breaker_or_the_window() {
        let breakers = |breakers: &[u32]| Dry {
            breakers: breakers.to_vec(),
            ..dry()
        };
        let tokens = [5, 1, 2, 3, 5, 1, 2];
        assert_eq!(penalised(breakers(&[9, 5]), &tokens), [(3, 0.5)]);
        assert_eq!(penalised(breakers(&[1]), &tokens), []);
        assert_eq!(penalised(breakers(&[2]), &tokens), []);
        let window = |window| Dry {
            window: Some(window),
            ..dry()
        };
        assert_eq!(penalised(window(7), &tokens), [(3, 1.0)]);
        assert_eq!(penalised(window(6), &tokens), [(3, 0.5)]);
        assert_eq!(penalised(window(5), &tokens), []);
        assert_eq!(penalised(window(0), &tokens), []);
    }

    #[test]
    fn penalties_stay_finite() {
        let long = [3; 5000];
        assert_eq!(penalised(dry(), &long), [(3, f32::MAX)]);
        let flat = Dry { base: 1.0, ..dry() };
        assert_eq!(penalised(flat, &long), [(3, 0.5)]);
    }

    /// The definition, word for word, for a base of 2.
    fn reference(params: &Dry, tokens: &[u32], id: u32) -> f32 {
        let window = &tokens[tokens.len().saturating_sub(params.window.unwrap_or(usize::MAX))..];
        let common = |end: usize| {
            let pairs = window[..end].iter().rev().zip(window.iter().rev());
            pairs
                .take_while(|(a, b)| a == b && !params.breakers.contains(b))
                .count()
        };
        let occurrences = (0..window.len()).filter(|&at| window[at] == id);
        match occurrences.map(common).max() {
            Some(length) if length >= params.allowed_length.max(1) => {
                params.multiplier * (1_u64 << (length - params.allowed_length)) as f32
            }
            _ => 0.0,
        }
    }

    proptest! {
        #[test]
        fn penalties_equal_the_definition(
            tokens in prop::collection::vec(0..4_u32, 0..60),
            allowed_length in 0..5_usize,
            window in prop::option::of(0..40_usize),
            breakers in prop::collection::vec(0..6_u32, 0..2),
        ) {
            let params = Dry { allowed_length, window, breakers, ..dry() };
            let found = penalties(params.clone(), &tokens);
            let wanted: Vec<f32> = (0..10).map(|id| reference(&params, &tokens, id)).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
