//! The router: against f64, by hand, on every instruction set, and what it refuses.

use goldcrest_kernels::{GroupLimit, GroupScore, Isa, Kernels, Normalise, RouteError, RouteRule, Router, Scoring};
use proptest::prelude::*;

const PLAIN: RouteRule = RouteRule {
    scoring: Scoring::Softmax,
    groups: None,
    normalise: Normalise::None,
    scale: 1.0,
};

const SCORINGS: [Scoring; 5] = [
    Scoring::Softmax,
    Scoring::SoftmaxOfChosen,
    Scoring::Sigmoid,
    Scoring::SigmoidOfChosen,
    Scoring::SqrtSoftplus,
];

fn route_on(isa: Isa, router: &Router, logits: &[f32], chosen: usize) -> Result<(Vec<u32>, Vec<f32>), RouteError> {
    let (mut ids, mut weights) = (vec![0; chosen], vec![0.0; chosen]);
    // Left over from another call.
    let mut scratch = vec![f32::NAN; 5];
    let kernels = Kernels::new(isa).unwrap();
    kernels.route(router, logits, &mut ids, &mut weights, &mut scratch)?;
    Ok((ids, weights))
}

fn route(
    rule: &RouteRule,
    correction: Option<&[f32]>,
    logits: &[f32],
    chosen: usize,
) -> Result<(Vec<u32>, Vec<f32>), RouteError> {
    let router = Router {
        rule,
        correction,
        per_expert: None,
    };
    route_on(Isa::best(), &router, logits, chosen)
}

/// The ids of the `count` largest numbers, best first; of equal ones the lower.
fn best(numbers: &[f64], count: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..numbers.len()).collect();
    ids.sort_by(|&a, &b| numbers[b].total_cmp(&numbers[a]));
    ids.truncate(count);
    ids
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let total: f64 = x.iter().map(|&x| libm::exp(x)).sum();
    x.iter().map(|&x| libm::exp(x) / total).collect()
}

fn exact_scores(scoring: Scoring, logits: &[f64]) -> Vec<f64> {
    let each = |f: fn(f64) -> f64| logits.iter().map(|&x| f(x)).collect();
    match scoring {
        Scoring::Softmax | Scoring::SoftmaxOfChosen => softmax(logits),
        Scoring::Sigmoid | Scoring::SigmoidOfChosen => each(|x| 1.0 / (1.0 + libm::exp(-x))),
        Scoring::SqrtSoftplus => each(|x| libm::log1p(libm::exp(x)).sqrt()),
        Scoring::SparseMixer { .. } => unreachable!("has its own test"),
    }
}

/// What the choice goes by, without the experts of dropped groups.
fn exact_choice(router: &Router, logits: &[f64]) -> Vec<f64> {
    let mut choice = match router.rule.scoring {
        Scoring::SoftmaxOfChosen | Scoring::SigmoidOfChosen => logits.to_vec(),
        scoring => exact_scores(scoring, logits),
    };
    if let Some(correction) = router.correction {
        choice.iter_mut().zip(correction).for_each(|(x, &c)| *x += f64::from(c));
    }
    if let Some(limit) = router.rule.groups {
        let group_len = choice.len() / limit.count;
        let used = match limit.score {
            GroupScore::Max => 1,
            GroupScore::SumOfBestTwo => 2,
        };
        let score = |group: &[f64]| best(group, used).iter().map(|&i| group[i]).sum();
        let scores: Vec<f64> = choice.chunks(group_len).map(score).collect();
        let kept = best(&scores, limit.keep);
        for (i, x) in choice.iter_mut().enumerate() {
            if !kept.contains(&(i / group_len)) {
                *x = f64::NEG_INFINITY;
            }
        }
    }
    choice
}

fn exact_weights(router: &Router, logits: &[f64], ids: &[usize]) -> Vec<f64> {
    let scores = match router.rule.scoring {
        Scoring::SoftmaxOfChosen => softmax(&ids.iter().map(|&id| logits[id]).collect::<Vec<_>>()),
        scoring => ids.iter().map(|&id| exact_scores(scoring, logits)[id]).collect(),
    };
    let total: f64 = scores.iter().sum();
    let divisor = match router.rule.normalise {
        Normalise::None => 1.0,
        Normalise::Sum { eps } => total + f64::from(eps),
        Normalise::AtLeast { min } => total.max(f64::from(min)),
    };
    let scale = f64::from(router.rule.scale);
    let factor = |id: usize| router.per_expert.map_or(1.0, |factors| f64::from(factors[id]));
    ids.iter()
        .zip(scores)
        .map(|(&id, score)| score / divisor * scale * factor(id))
        .collect()
}

fn normalise() -> impl Strategy<Value = Normalise> {
    prop_oneof![
        Just(Normalise::None),
        Just(Normalise::Sum { eps: 0.0 }),
        Just(Normalise::Sum { eps: 0.25 }),
        Just(Normalise::AtLeast { min: 0.5 }),
    ]
}

/// (rule for 4·n experts, logits with equal ones among them, corrections of both signs, factors, experts to choose)
fn cases() -> impl Strategy<Value = (RouteRule, Vec<f32>, Vec<f32>, Vec<f32>, usize)> {
    let rule =
        (prop::sample::select(&SCORINGS[..]), normalise(), 0.5f32..3.0).prop_map(|(scoring, normalise, scale)| {
            RouteRule {
                scoring,
                groups: None,
                normalise,
                scale,
            }
        });
    let groups = prop::option::of((1usize..=4, prop::bool::ANY).prop_map(|(keep, max)| GroupLimit {
        count: 4,
        keep,
        score: if max { GroupScore::Max } else { GroupScore::SumOfBestTwo },
    }));
    (rule, groups, 2usize..12).prop_flat_map(|(rule, groups, group_len)| {
        let experts = 4 * group_len;
        let most = groups.map_or(experts, |groups| groups.keep * group_len);
        let rule = RouteRule { groups, ..rule };
        let logits = prop::collection::vec((-16i32..16).prop_map(|x| x as f32 * 0.25), experts);
        let numbers = |range| prop::collection::vec(range, experts);
        (
            Just(rule),
            logits,
            numbers(-1f32..1.0),
            numbers(0.1f32..2.0),
            1..=most.min(8),
        )
    })
}

/// Whether rounding could change the order: two numbers that are close and not equal.
fn is_doubtful(numbers: &[f64]) -> bool {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
        .windows(2)
        .any(|pair| pair[0] != pair[1] && pair[1] - pair[0] < 1e-6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn routes_are_those_of_f64((rule, logits, correction, factors, chosen) in cases(), corrected: bool, scaled: bool) {
        let router = Router {
            rule: &rule,
            correction: corrected.then_some(&correction[..]),
            per_expert: scaled.then_some(&factors[..]),
        };
        let wide: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
        let choice = exact_choice(&router, &wide);
        prop_assume!(!is_doubtful(&choice));
        let mut expected = best(&choice, chosen);
        expected.sort_unstable();
        let (ids, weights) = route_on(Isa::Scalar, &router, &logits, chosen).unwrap();
        prop_assert_eq!(ids.iter().map(|&id| id as usize).collect::<Vec<_>>(), expected.clone());
        for (weight, exact) in weights.iter().zip(exact_weights(&router, &wide, &expected)) {
            prop_assert!((f64::from(*weight) - exact).abs() <= exact * 4e-6, "{weight} for {exact}");
        }
        for isa in Isa::available() {
            prop_assert_eq!(&route_on(isa, &router, &logits, chosen).unwrap(), &(ids.clone(), weights.clone()), "{}", isa);
        }
    }

    #[test]
    fn weights_of_given_experts_are_those_of_the_chosen((rule, logits, _, factors, chosen) in cases()) {
        let router = Router { rule: &rule, correction: None, per_expert: Some(&factors) };
        let (expected_ids, expected) = route_on(Isa::best(), &router, &logits, chosen).unwrap();
        let mut ids: Vec<u32> = expected_ids.iter().rev().copied().collect();
        let mut weights = vec![0.0; chosen];
        Kernels::best().weigh_chosen(&router, &logits, &mut ids, &mut weights, &mut Vec::new()).unwrap();
        prop_assert_eq!((ids, weights), (expected_ids, expected));
    }
}

#[test]
fn corrections_choose_but_do_not_weigh() {
    let rule = RouteRule {
        scoring: Scoring::Sigmoid,
        ..PLAIN
    };
    let (ids, weights) = route(&rule, Some(&[0.0, 2.0, 0.0, -2.0]), &[0.0, -1e3, 0.0, 50.0], 2).unwrap();
    assert_eq!((ids, weights), (vec![0, 1], vec![0.5, 0.0]));
}

#[test]
fn equal_scores_go_to_the_lower_id() {
    for scoring in SCORINGS {
        let rule = RouteRule { scoring, ..PLAIN };
        let (ids, _) = route(&rule, None, &[1.0, 2.0, 1.0, 2.0, 1.0], 3).unwrap();
        assert_eq!(ids, [0, 1, 3], "{scoring:?}");
    }
}

#[test]
fn dropped_groups_are_not_chosen_whatever_the_correction() {
    // Group 1 has the best expert, group 0 the better pair; all corrected scores are negative.
    let rule = RouteRule {
        scoring: Scoring::Sigmoid,
        groups: Some(GroupLimit {
            count: 2,
            keep: 1,
            score: GroupScore::SumOfBestTwo,
        }),
        ..PLAIN
    };
    let logits = [1.0, 1.0, 2.0, -8.0];
    let (ids, _) = route(&rule, Some(&[-3.0; 4]), &logits, 2).unwrap();
    assert_eq!(ids, [0, 1]);
    let groups = Some(GroupLimit {
        count: 2,
        keep: 1,
        score: GroupScore::Max,
    });
    let (ids, _) = route(&RouteRule { groups, ..rule }, Some(&[-3.0; 4]), &logits, 2).unwrap();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn sparse_mixer_weighs_each_pick_among_its_near_logits() {
    let rule = RouteRule {
        scoring: Scoring::SparseMixer { jitter: 0.01 },
        ..PLAIN
    };
    // Within 2 % of 2.0: 1.97 (1.5 %), not 1.95 (2.5 %). Within 2 % of 1.97, without 2.0: 1.95 (1.02 %).
    let (ids, weights) = route(&rule, None, &[1.95, 0.0, 1.97, -3.0, 2.0], 2).unwrap();
    assert_eq!(ids, [2, 4]);
    let second = 1.0 / (1.0 + libm::exp(-0.02));
    let first = 1.0 / (1.0 + libm::exp(-0.03));
    assert!(
        (f64::from(weights[0]) - second).abs() < 1e-6,
        "{} for {second}",
        weights[0]
    );
    assert!(
        (f64::from(weights[1]) - first).abs() < 1e-6,
        "{} for {first}",
        weights[1]
    );
    // The best logits are equal and 0: near each other, though their relative distance is 0/0.
    let (ids, weights) = route(&rule, None, &[-1.0, 0.0, 0.0], 2).unwrap();
    assert_eq!((ids, weights), (vec![1, 2], vec![0.5, 1.0]));
}

#[test]
fn what_is_not_a_number_is_refused() {
    let chosen_of = |scoring| {
        if matches!(scoring, Scoring::SparseMixer { .. }) {
            2
        } else {
            1
        }
    };
    for scoring in SCORINGS.into_iter().chain([Scoring::SparseMixer { jitter: 0.01 }]) {
        let rule = RouteRule { scoring, ..PLAIN };
        let error = route(&rule, None, &[1.0, 2.0, f32::NAN], chosen_of(scoring)).unwrap_err();
        assert!(matches!(error, RouteError::NotANumber { .. }), "{scoring:?}: {error}");
    }
    // All weights are 0 and nothing is added to their sum.
    let rule = RouteRule {
        scoring: Scoring::Sigmoid,
        normalise: Normalise::Sum { eps: 0.0 },
        ..PLAIN
    };
    assert_eq!(
        route(&rule, None, &[-1e3; 4], 2),
        Err(RouteError::NotANumber { expert: 0 })
    );
}

#[test]
fn rules_that_cannot_be_kept_are_refused() {
    let limited = |count, keep, score| RouteRule {
        groups: Some(GroupLimit { count, keep, score }),
        ..PLAIN
    };
    assert_eq!(PLAIN.check(0, 1), Err(RouteError::Chosen { chosen: 1, experts: 0 }));
    assert_eq!(PLAIN.check(4, 0), Err(RouteError::Chosen { chosen: 0, experts: 4 }));
    assert_eq!(PLAIN.check(4, 5), Err(RouteError::Chosen { chosen: 5, experts: 4 }));
    let refused = [
        (limited(0, 0, GroupScore::Max), 8, 2),
        (limited(3, 2, GroupScore::Max), 8, 2),
        (limited(4, 5, GroupScore::Max), 8, 2),
        (limited(4, 1, GroupScore::Max), 8, 3),
        (limited(8, 4, GroupScore::SumOfBestTwo), 8, 2),
    ];
    for (rule, experts, chosen) in refused {
        assert!(
            matches!(rule.check(experts, chosen), Err(RouteError::Groups { .. })),
            "{rule:?}"
        );
    }
    assert_eq!(limited(4, 2, GroupScore::SumOfBestTwo).check(8, 4), Ok(()));
    let mixer = RouteRule {
        scoring: Scoring::SparseMixer { jitter: 0.01 },
        ..PLAIN
    };
    assert_eq!(mixer.check(8, 3), Err(RouteError::SparseMixer { chosen: 3 }));
    let router = Router {
        rule: &PLAIN,
        correction: None,
        per_expert: None,
    };
    let result = Kernels::best().weigh_chosen(&router, &[0.0; 4], &mut [4], &mut [0.0], &mut Vec::new());
    assert_eq!(result, Err(RouteError::UnknownExpert { id: 4, experts: 4 }));
}
