//! The router of a mixture of experts: which experts a row uses and with what weights.
//!
//! ```text
//! score[e]  = scoring of the logits                  all experts, or the chosen ones after the choice
//! choice[e] = score[e] + correction[e]               the group limit drops experts, then the k best stay
//! w         = the chosen scores, without correction
//! w         ← w / (Σ w + eps)  or  w / max(Σ w, min)
//! w         ← w · scale · per_expert[e]
//! ```
//!
//! Equal scores go to the lower id. The chosen experts stand in rising id, and sums over them are taken in that order. The sum of a
//! softmax over all experts has sixteen chains like that of a norm. The same bits on every instruction set.

use crate::Kernels;
use crate::math::MathFunction;
use crate::scalar::norm::sum;

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// The choice is by logits; softmax over the chosen experts.
    SoftmaxOfChosen,
    /// sigmoid(logit)
    Sigmoid,
    /// The choice is by logits; sigmoid of each chosen one.
    SigmoidOfChosen,
    /// √softplus(logit)
    SqrtSoftplus,
    /// Sparse mixer (arXiv 2409.12136) without its noise: two picks by logits. A pick's weight is its softmax over the logits s near its
    /// own m, (m − s) / max(|s|, m) ≤ 2·jitter, in which the second pick leaves out the first. It takes no correction.
    SparseMixer {
        /// Half the relative distance within which logits count.
        jitter: f32,
    },
}

/// How a group of experts is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// By its best expert.
    Max,
    /// By the sum of its two best experts.
    SumOfBestTwo,
}

/// The experts form `count` equal groups in order of id, of which only the `keep` best take part in the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// Groups.
    pub count: usize,
    /// Groups that stay.
    pub keep: usize,
    /// How they are compared; corrections count.
    pub score: GroupScore,
}

/// How the weights of the chosen experts are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Normalise {
    /// Not at all.
    None,
    /// w / (Σ w + eps)
    Sum {
        /// Added to the sum; may be 0.
        eps: f32,
    },
    /// w / max(Σ w, min)
    AtLeast {
        /// The smallest divisor.
        min: f32,
    },
}

/// The rule of a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteRule {
    /// How logits become scores.
    pub scoring: Scoring,
    /// The group limit, if any.
    pub groups: Option<GroupLimit>,
    /// How weights are normalised.
    pub normalise: Normalise,
    /// Factor of all weights after normalising.
    pub scale: f32,
}

/// Why a row cannot be routed, or a rule cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A logit, score or weight is NaN.
    #[error("the router's score of expert {expert} is not a number")]
    NotANumber {
        /// The expert.
        expert: usize,
    },
    /// More experts chosen than there are, or none.
    #[error("cannot choose {chosen} of {experts} experts")]
    Chosen {
        /// Experts to choose for a row.
        chosen: usize,
        /// All experts.
        experts: usize,
    },
    /// The groups are not equal, too few stay for the choice, or their experts are too few for the group's score.
    #[error("cannot choose {chosen} experts from {} of {} groups of {experts} experts by {:?}", limit.keep, limit.count, limit.score)]
    Groups {
        /// The group limit.
        limit: GroupLimit,
        /// Experts to choose for a row.
        chosen: usize,
        /// All experts.
        experts: usize,
    },
    /// The sparse mixer makes two picks and knows no groups.
    #[error("a sparse mixer chooses 2 experts without groups, not {chosen}")]
    SparseMixer {
        /// Experts to choose for a row.
        chosen: usize,
    },
    /// An id that was given is not that of an expert.
    #[error("expert {id} of {experts} does not exist")]
    UnknownExpert {
        /// The id.
        id: u32,
        /// All experts.
        experts: usize,
    },
}

impl RouteRule {
    /// Whether the rule can choose `chosen` of `experts` experts; to be asked before rows are routed.
    pub fn check(&self, experts: usize, chosen: usize) -> Result<(), RouteError> {
        if chosen == 0 || chosen > experts {
            return Err(RouteError::Chosen { chosen, experts });
        }
        if matches!(self.scoring, Scoring::SparseMixer { .. }) && (chosen != 2 || self.groups.is_some()) {
            return Err(RouteError::SparseMixer { chosen });
        }
        let Some(limit) = self.groups else {
            return Ok(());
        };
        let equal = limit.count > 0 && experts.is_multiple_of(limit.count) && limit.keep <= limit.count;
        let group_len = if equal { experts / limit.count } else { 0 };
        let smallest_group = match limit.score {
            GroupScore::Max => 1,
            GroupScore::SumOfBestTwo => 2,
        };
        if group_len < smallest_group || limit.keep * group_len < chosen {
            return Err(RouteError::Groups { limit, chosen, experts });
        }
        Ok(())
    }
}

/// A rule with the tensors that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Router<'a> {
    /// The rule.
    pub rule: &'a RouteRule,
    /// Added to the scores for the choice only: [experts].
    pub correction: Option<&'a [f32]>,
    /// Factor of each expert's weight, applied last: [experts].
    pub per_expert: Option<&'a [f32]>,
}

impl Kernels {
    /// Chooses `ids.len()` experts for a row with these `logits` [experts]; `ids` rise, `weights` belong to them. `scratch` is reused
    /// between calls.
    ///
    /// # Errors
    /// A number that is not one.
    ///
    /// # Panics
    /// If `ids` and `weights`, or `logits` and the tensors of `router`, differ in length, or a sparse mixer has a correction: a caller's
    /// bug. So is a rule that [`RouteRule::check`] refuses, which a build with debug assertions tells.
    pub fn route(
        self,
        router: &Router,
        logits: &[f32],
        ids: &mut [u32],
        weights: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), RouteError> {
        check_lengths(router, logits, ids, weights);
        debug_assert_eq!(
            router.rule.check(logits.len(), ids.len()),
            Ok(()),
            "the rule of a router"
        );
        if let Scoring::SparseMixer { jitter } = router.rule.scoring {
            assert!(router.correction.is_none(), "a correction for a sparse mixer");
            check_numbers(logits.iter().copied().enumerate())?;
            sparse_mixer(jitter, logits, ids, weights);
            return finish(router, ids, weights);
        }
        scratch.clear();
        for _ in 0..3 {
            scratch.extend_from_slice(logits);
        }
        let (scores, rest) = scratch.split_at_mut(logits.len());
        let (choice, group_scores) = rest.split_at_mut(logits.len());
        self.score_all(router.rule.scoring, scores);
        choice.copy_from_slice(scores);
        if let Some(correction) = router.correction {
            choice.iter_mut().zip(correction).for_each(|(x, c)| *x += c);
        }
        check_numbers(choice.iter().copied().enumerate())?;
        if let Some(limit) = router.rule.groups {
            drop_groups(limit, choice, &mut group_scores[..limit.count]);
        }
        choose(choice, ids);
        ids.sort_unstable();
        weigh(router.rule.scoring, scores, ids, weights);
        finish(router, ids, weights)
    }

    /// The weights of experts that are already chosen, as by a table of token ids: [`Kernels::route`] without the choice. Sorts `ids`.
    ///
    /// # Errors
    /// A number that is not one, or an id that is not below `logits.len()`.
    ///
    /// # Panics
    /// If lengths differ as for [`Kernels::route`], or for a sparse mixer, which has no weights for the choice of others: a caller's bug.
    pub fn weigh_chosen(
        self,
        router: &Router,
        logits: &[f32],
        ids: &mut [u32],
        weights: &mut [f32],
        scratch: &mut Vec<f32>,
    ) -> Result<(), RouteError> {
        check_lengths(router, logits, ids, weights);
        let is_mixer = matches!(router.rule.scoring, Scoring::SparseMixer { .. });
        assert!(!is_mixer, "a sparse mixer for experts already chosen");
        let experts = logits.len();
        if let Some(&id) = ids.iter().find(|id| **id as usize >= experts) {
            return Err(RouteError::UnknownExpert { id, experts });
        }
        check_numbers(logits.iter().copied().enumerate())?;
        ids.sort_unstable();
        scratch.clear();
        scratch.extend_from_slice(logits);
        self.score_all(router.rule.scoring, scratch);
        weigh(router.rule.scoring, scratch, ids, weights);
        finish(router, ids, weights)
    }

    /// Logits → scores, where the scoring does not wait for the choice.
    fn score_all(self, scoring: Scoring, scores: &mut [f32]) {
        match scoring {
            Scoring::Softmax => {
                let largest = largest(scores.iter().copied());
                scores.iter_mut().for_each(|x| *x -= largest);
                self.apply(MathFunction::Exp, scores);
                let total = sum(scores.iter().copied());
                scores.iter_mut().for_each(|x| *x /= total);
            }
            Scoring::Sigmoid => self.apply(MathFunction::Sigmoid, scores),
            Scoring::SqrtSoftplus => {
                self.apply(MathFunction::Softplus, scores);
                scores.iter_mut().for_each(|x| *x = x.sqrt());
            }
            Scoring::SoftmaxOfChosen | Scoring::SigmoidOfChosen | Scoring::SparseMixer { .. } => {}
        }
    }
}

fn check_lengths(router: &Router, logits: &[f32], ids: &[u32], weights: &[f32]) {
    assert_eq!(ids.len(), weights.len(), "ids and weights of a router");
    for tensor in [router.correction, router.per_expert].into_iter().flatten() {
        assert_eq!(tensor.len(), logits.len(), "a router's tensor of one number an expert");
    }
}

fn check_numbers(mut numbers: impl Iterator<Item = (usize, f32)>) -> Result<(), RouteError> {
    match numbers.find(|(_, x)| x.is_nan()) {
        Some((expert, _)) => Err(RouteError::NotANumber { expert }),
        None => Ok(()),
    }
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max })
}

/// Lowers the choice of all experts outside the best groups to −∞. Where a reference fills with 0 instead, its scores are softmaxes
/// without correction: the same choice, as these are not negative.
fn drop_groups(limit: GroupLimit, choice: &mut [f32], scores: &mut [f32]) {
    let group_len = choice.len() / limit.count;
    let score = |group: &[f32]| {
        let (best, second) = group
            .iter()
            .fold((f32::NEG_INFINITY, f32::NEG_INFINITY), |(best, second), &x| {
                if x > best {
                    (x, best)
                } else {
                    (best, if x > second { x } else { second })
                }
            });
        match limit.score {
            GroupScore::Max => best,
            GroupScore::SumOfBestTwo => best + second,
        }
    };
    // A group stays if fewer than `keep` are better; there are few groups.
    for (to, group) in scores.iter_mut().zip(choice.chunks_exact(group_len)) {
        *to = score(group);
    }
    for (i, group) in choice.chunks_exact_mut(group_len).enumerate() {
        let better = |j: usize| scores[j] > scores[i] || (scores[j] == scores[i] && j < i);
        if (0..scores.len()).filter(|&j| better(j)).count() >= limit.keep {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// The experts with the largest `choice`, best first; of equal ones the lower id.
fn choose(choice: &[f32], ids: &mut [u32]) {
    let mut found = 0;
    for (id, &x) in choice.iter().enumerate() {
        let mut place = found;
        while place > 0 && x > choice[ids[place - 1] as usize] {
            place -= 1;
        }
        if place == ids.len() {
            continue;
        }
        found = (found + 1).min(ids.len());
        ids[place..found].rotate_right(1);
        ids[place] = id as u32;
    }
}

/// The weights of the chosen experts from their scores.
fn weigh(scoring: Scoring, scores: &[f32], ids: &[u32], weights: &mut [f32]) {
    for (weight, &id) in weights.iter_mut().zip(ids) {
        *weight = scores[id as usize];
    }
    match scoring {
        Scoring::SoftmaxOfChosen => {
            let largest = largest(weights.iter().copied());
            weights.iter_mut().for_each(|x| *x = MathFunction::Exp.of(*x - largest));
            let total = weights.iter().sum::<f32>();
            weights.iter_mut().for_each(|x| *x /= total);
        }
        Scoring::SigmoidOfChosen => weights.iter_mut().for_each(|x| *x = MathFunction::Sigmoid.of(*x)),
        Scoring::Softmax | Scoring::Sigmoid | Scoring::SqrtSoftplus | Scoring::SparseMixer { .. } => {}
    }
}

/// See [`Scoring::SparseMixer`].
fn sparse_mixer(jitter: f32, logits: &[f32], ids: &mut [u32], weights: &mut [f32]) {
    choose(logits, ids);
    let [first, second] = [ids[0] as usize, ids[1] as usize];
    let weigh = |pick: usize, left_out: Option<usize>| {
        let m = logits[pick];
        let near = |s: f32| {
            let magnitude = if s.abs() < m { m } else { s.abs() };
            let distance = (m - s) / magnitude;
            // 0/0, equal logits of 0, is near.
            distance.is_nan() || distance <= 2.0 * jitter
        };
        let others = logits
            .iter()
            .enumerate()
            .filter(|(id, s)| Some(*id) != left_out && near(**s));
        1.0 / others.map(|(_, s)| MathFunction::Exp.of(s - m)).sum::<f32>()
    };
    weights.copy_from_slice(&[weigh(first, None), weigh(second, Some(first))]);
    if first > second {
        ids.reverse();
        weights.reverse();
    }
}

/// Normalises and scales.
fn finish(router: &Router, ids: &[u32], weights: &mut [f32]) -> Result<(), RouteError> {
    let total = weights.iter().sum::<f32>();
    let divisor = match router.rule.normalise {
        Normalise::None => None,
        Normalise::Sum { eps } => Some(total + eps),
        Normalise::AtLeast { min } => Some(if total < min { min } else { total }),
    };
    for (weight, &id) in weights.iter_mut().zip(ids) {
        if let Some(divisor) = divisor {
            *weight /= divisor;
        }
        *weight *= router.rule.scale;
        if let Some(per_expert) = router.per_expert {
            *weight *= per_expert[id as usize];
        }
    }
    check_numbers(ids.iter().map(|id| *id as usize).zip(weights.iter().copied()))
}
