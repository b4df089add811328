use std::collections::HashMap;

use proptest::prelude::*;

use super::philox::{Stream, uniform};
use super::*;

const MASKED: f32 = f32::NEG_INFINITY;

fn sampler(params: &SamplingParams, vocab: usize) -> Sampler {
    Sampler::new(params.clone(), vocab).unwrap()
}

fn sampled(params: &SamplingParams, logits: &[f32], index: u64) -> Sampled {
    sampler(params, logits.len()).sample(logits, index).unwrap()
}

/// The ids that occur in 2000 draws.
fn support(params: &SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut sampler = sampler(params, logits.len());
    let mut ids: Vec<u32> = (0..2000)
        .map(|index| sampler.sample(logits, index).unwrap().id)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Logits of these probabilities.
fn logits_of(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|&p| probability::ln(p) as f32).collect()
}

#[test]
fn greedy_takes_the_largest_and_of_equals_the_lowest_id() {
    let greedy = SamplingParams::greedy();
    assert_eq!(sampled(&greedy, &[1.0, 3.0, 2.0], 0).id, 1);
    assert_eq!(sampled(&greedy, &[1.0, 3.0, 3.0, -1.0], 5).id, 1);
    assert_eq!(sampled(&greedy, &[-0.0, 0.0, -1.0], 0).id, 0);
    assert_eq!(sampled(&greedy, &[MASKED, -5.0, MASKED, -5.0], 0).id, 1);
    let mut long = vec![0.0; 1003];
    for at in [1002, 999, 500, 16] {
        long[at] = 1.0;
        assert_eq!(sampled(&greedy, &long, 0).id, at as u32);
    }
}

#[test]
fn rows_that_cannot_be_sampled_are_errors() {
    for params in [SamplingParams::greedy(), SamplingParams::default()] {
        let sample = |logits: &[f32]| sampler(&params, 40).sample(logits, 0);
        assert_eq!(sample(&[0.0; 39]), Err(SampleError::Length { got: 39, vocab: 40 }));
        assert_eq!(sample(&[MASKED; 40]), Err(SampleError::AllMasked));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
            for at in [0, 15, 16, 33, 39] {
                let mut logits = [0.0; 40];
                logits[at] = bad;
                assert_eq!(sample(&logits), Err(SampleError::NotFinite { id: at as u32 }));
                logits[39] = bad;
                assert_eq!(sample(&logits), Err(SampleError::NotFinite { id: at as u32 }));
            }
        }
    }
    let forbidden = SamplingParams {
        logit_bias: vec![(0, MASKED), (1, MASKED)],
        ..SamplingParams::default()
    };
    assert_eq!(
        sampler(&forbidden, 2).sample(&[1.0, 2.0], 0),
        Err(SampleError::AllMasked)
    );
    let overflowing = SamplingParams {
        repetition_penalty: 1e-3,
        ..SamplingParams::greedy()
    };
    let mut overflowed = sampler(&overflowing, 2);
    overflowed.accept(1).unwrap();
    assert_eq!(
        overflowed.sample(&[0.0, 1e37], 0),
        Err(SampleError::NotFinite { id: 1 })
    );
    assert_eq!(
        sampler(&SamplingParams::default(), 0).sample(&[], 0),
        Err(SampleError::AllMasked)
    );
}

#[test]
fn tokens_outside_the_vocabulary_are_errors() {
    let mut sampler = sampler(&SamplingParams::default(), 3);
    assert_eq!(
        sampler.accept(3),
        Err(SampleError::OutsideVocabulary { id: 3, vocab: 3 })
    );
    assert_eq!(
        sampler.accept_prompt(&[0, 7]),
        Err(SampleError::OutsideVocabulary { id: 7, vocab: 3 })
    );
    assert_eq!(sampler.accept_prompt(&[0, 1, 2]), Ok(()));
}

#[test]
fn filters_keep_what_their_definitions_say() {
    let logits = logits_of(&[0.1, 0.4, 0.05, 0.25, 0.2]);
    let neutral = SamplingParams::default();
    assert_eq!(support(&neutral, &logits), [0, 1, 2, 3, 4]);
    for (top_k, kept) in [
        (1, vec![1]),
        (2, vec![1, 3]),
        (3, vec![1, 3, 4]),
        (9, vec![0, 1, 2, 3, 4]),
    ] {
        let params = SamplingParams {
            top_k,
            ..neutral.clone()
        };
        assert_eq!(support(&params, &logits), kept);
    }
    for (top_p, kept) in [
        (0.0, vec![1]),
        (0.39, vec![1]),
        (0.41, vec![1, 3]),
        (0.64, vec![1, 3]),
        (0.66, vec![1, 3, 4]),
    ] {
        let params = SamplingParams {
            top_p,
            ..neutral.clone()
        };
        assert_eq!(support(&params, &logits), kept);
    }
    for (min_p, kept) in [
        (1.0, vec![1]),
        (0.6, vec![1, 3]),
        (0.45, vec![1, 3, 4]),
        (0.13, vec![0, 1, 3, 4]),
    ] {
        let params = SamplingParams {
            min_p,
            ..neutral.clone()
        };
        assert_eq!(support(&params, &logits), kept);
    }
    // Top-p is a share of what top-k left: 0.4 of 0.65 is 0.615.
    for (top_p, kept) in [(0.61, vec![1]), (0.63, vec![1, 3])] {
        assert_eq!(
            support(
                &SamplingParams {
                    top_k: 2,
                    top_p,
                    ..neutral.clone()
                },
                &logits
            ),
            kept
        );
    }
    // Temperature comes first: at 2 the ratio of second to first is √0.625 = 0.79, at 1/2 it is 0.39.
    for (temperature, kept) in [(2.0, vec![1, 3]), (0.5, vec![1])] {
        assert_eq!(
            support(
                &SamplingParams {
                    temperature,
                    min_p: 0.75,
                    ..neutral.clone()
                },
                &logits
            ),
            kept
        );
    }
}

/// The mean surprise of 0.4, 0.25, 0.2, 0.1, 0.05 is 1.415 nat; theirs are 0.916, 1.386, 1.609, 2.303 and 2.996.
#[test]
fn typical_keeps_what_is_nearest_to_the_mean_surprise() {
    let logits = logits_of(&[0.1, 0.4, 0.05, 0.25, 0.2]);
    let typical = |typical_p, top_k, top_p| SamplingParams {
        typical_p,
        top_k,
        top_p,
        ..SamplingParams::default()
    };
    for (typical_p, kept) in [
        (0.0, vec![3]),
        (0.24, vec![3]),
        (0.26, vec![3, 4]),
        (0.46, vec![1, 3, 4]),
        (0.84, vec![1, 3, 4]),
        (0.86, vec![0, 1, 3, 4]),
        (0.96, vec![0, 1, 2, 3, 4]),
    ] {
        assert_eq!(support(&typical(typical_p, 0, 1.0), &logits), kept, "{typical_p}");
    }
    // Of the two likeliest alone the mean is 0.666, 0.486 and 0.956 their surprises.
    assert_eq!(support(&typical(0.5, 2, 1.0), &logits), [1]);
    // Top-p is a share of what is typical: 0.25 of 0.45 is 0.556.
    assert_eq!(support(&typical(0.3, 0, 0.55), &logits), [3]);
    assert_eq!(support(&typical(0.3, 0, 0.56), &logits), [3, 4]);
    // Min-p compares with the likeliest of them: 0.2 is 0.8 of 0.25.
    for (min_p, kept) in [(0.79, vec![3, 4]), (0.81, vec![3])] {
        let params = SamplingParams {
            min_p,
            ..typical(0.3, 0, 1.0)
        };
        assert_eq!(support(&params, &logits), kept, "{min_p}");
    }
}

#[test]
fn xtc_leaves_out_the_likely_tokens_but_the_last() {
    let logits = logits_of(&[0.1, 0.4, 0.05, 0.25, 0.2]);
    let excluding = |threshold, probability, top_k| SamplingParams {
        xtc: Some(Xtc { probability, threshold }),
        top_k,
        ..SamplingParams::default()
    };
    for (threshold, kept) in [
        (0.41, vec![0, 1, 2, 3, 4]),
        (0.39, vec![0, 1, 2, 3, 4]),
        (0.24, vec![0, 2, 3, 4]),
        (0.19, vec![0, 2, 4]),
        (0.06, vec![0, 2]),
        (0.0, vec![2]),
    ] {
        assert_eq!(support(&excluding(threshold, 1.0, 0), &logits), kept, "{threshold}");
    }
    // Of what top-k leaves 0.25 is 0.385.
    assert_eq!(support(&excluding(0.38, 1.0, 2), &logits), [3]);
    assert_eq!(support(&excluding(0.39, 1.0, 2), &logits), [1, 3]);
    assert_eq!(support(&excluding(0.0, 0.0, 2), &logits), [1, 3]);
    let params = excluding(0.3, 0.25, 2);
    let want = [0.0, 0.75 * 0.4 / 0.65, 0.0, 0.25 + 0.75 * 0.25 / 0.65, 0.0];
    // 99.9 % of right samplers are below 10.8 with one degree of freedom.
    let chi = chi_square(&params, &logits, &want, 100_000);
    assert!(chi < 10.8, "{chi}");
}

#[test]
fn repetitions_reach_the_draw() {
    let params = SamplingParams {
        dry: Some(Dry::default()),
        ..SamplingParams::greedy()
    };
    let mut sampler = sampler(&params, 4);
    sampler.accept_prompt(&[0, 1, 2, 0]).unwrap();
    let logits = [0.0, 0.5, 1.0, 0.9];
    let next = |sampler: &mut Sampler| sampler.sample(&logits, 0).unwrap().id;
    assert_eq!(next(&mut sampler), 2);
    sampler.accept(1).unwrap();
    // 0 1 is followed by 2, which loses 0.8.
    assert_eq!(next(&mut sampler), 3);
}

#[test]
fn of_equal_logits_filters_keep_the_lowest_ids() {
    let params = SamplingParams {
        top_k: 2,
        ..SamplingParams::default()
    };
    assert_eq!(support(&params, &[0.0, 1.0, 1.0, 1.0]), [1, 2]);
    let params = SamplingParams {
        top_p: 0.5,
        ..SamplingParams::default()
    };
    assert_eq!(support(&params, &[1.0; 4]), [0, 1]);
}

#[test]
fn extreme_temperatures_are_limits() {
    let logits = [1.0, 1.0 + f32::EPSILON, -30.0];
    for temperature in [1e-9, f32::MIN_POSITIVE, f32::from_bits(1)] {
        let params = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        assert_eq!(support(&params, &logits), [1], "{temperature}");
    }
    let hot = SamplingParams {
        temperature: f32::MAX,
        ..SamplingParams::default()
    };
    assert_eq!(support(&hot, &[f32::MAX, f32::MIN / 1e9, MASKED, 0.0]), [0, 1, 3]);
}

#[test]
fn a_draw_depends_on_seed_and_index_only() {
    let logits: Vec<f32> = (0..500).map(|id| (id * 7919 % 1009) as f32 / 300.0).collect();
    let params = SamplingParams {
        seed: 42,
        ..SamplingParams::default()
    };
    let alone = |index| sampled(&params, &logits, index).id;
    let forwards: Vec<u32> = (0..50).map(alone).collect();
    let mut shared = sampler(&params, 500);
    let mut backwards: Vec<u32> = (0..50)
        .rev()
        .map(|index| shared.sample(&logits, index).unwrap().id)
        .collect();
    backwards.reverse();
    assert_eq!(forwards, backwards);
    shared.accept(3).unwrap();
    assert_eq!(shared.sample(&logits, 7).unwrap().id, forwards[7]);
    let other_seed = SamplingParams {
        seed: 43,
        ..params.clone()
    };
    assert_ne!(
        forwards,
        (0..50)
            .map(|index| sampled(&other_seed, &logits, index).id)
            .collect::<Vec<_>>()
    );
    let with_logprobs = SamplingParams {
        logprobs: Some(5),
        ..params.clone()
    };
    assert_eq!(
        forwards,
        (0..50)
            .map(|index| sampled(&with_logprobs, &logits, index).id)
            .collect::<Vec<_>>()
    );
}

/// χ² of `draws` samples against the probabilities `want`.
fn chi_square(params: &SamplingParams, logits: &[f32], want: &[f64], draws: u32) -> f64 {
    let mut counts: HashMap<u32, u32> = HashMap::new();
    let mut sampler = sampler(params, logits.len());
    for index in 0..draws.into() {
        *counts.entry(sampler.sample(logits, index).unwrap().id).or_default() += 1;
    }
    assert!(
        counts.keys().all(|&id| want[id as usize] > 0.0),
        "a token without probability was drawn"
    );
    let expected = want.iter().map(|p| p * f64::from(draws));
    (0..)
        .zip(expected)
        .filter(|pair| pair.1 > 0.0)
        .map(|(id, expected)| {
            let got = f64::from(counts.get(&id).copied().unwrap_or(0));
            (got - expected) * (got - expected) / expected
        })
        .sum()
}

#[test]
fn frequencies_follow_the_distribution() {
    let probabilities = [0.05, 0.3, 0.02, 0.2, 0.03, 0.1, 0.15, 0.04, 0.01, 0.1];
    let logits = logits_of(&probabilities);
    // 99.9 % of right samplers are below 27.9 with 9 degrees of freedom, below 13.8 with 2.
    for seed in 1..=3 {
        let params = SamplingParams {
            seed,
            ..SamplingParams::default()
        };
        let chi = chi_square(&params, &logits, &probabilities, 100_000);
        assert!(chi < 27.9, "seed {seed}: {chi}");
        // Another distribution is told apart.
        let hot = SamplingParams {
            temperature: 1.1,
            ..params.clone()
        };
        assert!(chi_square(&hot, &logits, &probabilities, 100_000) > 27.9);
        let top = SamplingParams { top_k: 3, ..params };
        let want = [0.0, 0.3, 0.0, 0.2, 0.0, 0.0, 0.15, 0.0, 0.0, 0.0].map(|p| p / 0.65);
        let chi = chi_square(&top, &logits, &want, 100_000);
        assert!(chi < 13.8, "seed {seed}: {chi}");
    }
}

#[test]
fn log_probabilities_are_natural_and_of_the_raw_logits() {
    let logits: Vec<f32> = (0..3000).map(|id| (id * 7919 % 3001) as f32 / 250.0 - 4.0).collect();
    let params = SamplingParams {
        temperature: 0.3,
        top_k: 5,
        logit_bias: vec![(11, 100.0)],
        logprobs: Some(MAX_TOP_LOGPROBS),
        ..SamplingParams::default()
    };
    let token = sampled(&params, &logits, 0);
    assert_eq!(token.id, 11);
    assert_eq!(token.top.len(), MAX_TOP_LOGPROBS);
    assert!(token.top.is_sorted_by(|a, b| a.1 > b.1 || (a.1 == b.1 && a.0 < b.0)));
    let sum = log_sum_exp(&logits);
    assert_eq!(token.logprob, Some(f64::from(logits[11]) - sum));
    assert!(
        token
            .top
            .iter()
            .all(|&(id, logprob)| logprob == f64::from(logits[id as usize]) - sum)
    );
    let least = token.top.last().unwrap().1;
    assert_eq!(
        logits.iter().filter(|&&logit| f64::from(logit) - sum >= least).count(),
        MAX_TOP_LOGPROBS
    );

    let few = &logits[..500];
    let all = sampled(
        &SamplingParams {
            logprobs: Some(500),
            ..SamplingParams::default()
        },
        few,
        0,
    );
    let total: f64 = all
        .top
        .iter()
        .map(|&(_, logprob)| goldcrest_kernels::exp_f64(logprob))
        .sum();
    assert!((total - 1.0).abs() < 1e-13, "{total}");
    assert_eq!(all.top.len(), 500);
}

#[test]
fn log_probabilities_come_only_when_asked_for() {
    let token = sampled(&SamplingParams::default(), &[1.0, 2.0], 0);
    assert_eq!((token.logprob, token.top), (None, vec![]));
    let token = sampled(
        &SamplingParams {
            logprobs: Some(0),
            ..SamplingParams::greedy()
        },
        &[0.0, 0.0, MASKED],
        0,
    );
    assert_eq!((token.logprob, token.top), (Some(-std::f64::consts::LN_2), vec![]));
    let token = sampled(
        &SamplingParams {
            logprobs: Some(9),
            ..SamplingParams::greedy()
        },
        &[0.0, 0.0, MASKED],
        0,
    );
    assert_eq!(token.top, [(0, -std::f64::consts::LN_2), (1, -std::f64::consts::LN_2)]);
}

#[test]
fn penalties_reach_the_draw() {
    let params = SamplingParams {
        frequency_penalty: 1.0,
        ..SamplingParams::greedy()
    };
    let mut sampler = sampler(&params, 3);
    let logits = [1.0, 2.5, 2.0];
    let ids: Vec<u32> = (0..6)
        .map(|index| {
            let id = sampler.sample(&logits, index).unwrap().id;
            sampler.accept(id).unwrap();
            id
        })
        .collect();
    // 2.5 2.0 → 1; 1.5 2.0 → 2; 1.5 1.0 → 1; 0.5 1.0 and 1.0 → 0; 0 → 2; then 0, 0.5, 0 → 1.
    assert_eq!(ids, [1, 2, 1, 0, 2, 1]);
}

#[test]
fn buffers_keep_their_size() {
    let params = SamplingParams {
        presence_penalty: 0.1,
        typical_p: 0.9,
        top_p: 0.9,
        logprobs: Some(4),
        ..SamplingParams::default()
    };
    let logits: Vec<f32> = (0..5000).map(|id| (id * 7919 % 5003) as f32 / 1000.0).collect();
    let mut sampler = sampler(&params, 5000);
    sampler.sample(&logits, 0).unwrap();
    let sizes = |sampler: &Sampler| (sampler.scratch.capacities(), sampler.adjusted.capacity());
    let warm = sizes(&sampler);
    for index in 1..200 {
        sampler.sample(&logits, index).unwrap();
        sampler.accept(index as u32 % 3).unwrap();
    }
    assert_eq!(sizes(&sampler), warm);
}

/// Section "Sampling" of the arithmetic, word for word: order everything, filter one after another, draw. `u` chooses the token, `u_xtc`
/// whether the likely ones are left out.
fn reference(logits: &[f32], params: &SamplingParams, u: f64, u_xtc: f64) -> u32 {
    let mut tokens: Vec<(u32, f32)> = (0..)
        .zip(logits.iter().copied())
        .filter(|token| token.1 != MASKED)
        .collect();
    tokens.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    let best = f64::from(tokens[0].1);
    let probabilities = |tokens: &[(u32, f32)]| {
        let weight = |token: &(u32, f32)| {
            goldcrest_kernels::exp_f64((f64::from(token.1) - best) / f64::from(params.temperature))
        };
        let sum: f64 = tokens.iter().map(weight).sum();
        tokens.iter().map(|token| weight(token) / sum).collect::<Vec<f64>>()
    };
    if params.top_k > 0 {
        tokens.truncate(params.top_k);
    }
    if params.typical_p < 1.0 {
        tokens.retain(|token| f64::from(token.1) - best > -700.0 * f64::from(params.temperature));
        let p = probabilities(&tokens);
        let surprise = |i: usize| -probability::ln(p[i]);
        let mean: f64 = (0..p.len()).map(|i| p[i] * surprise(i)).sum();
        let mut order: Vec<usize> = (0..p.len()).collect();
        // Equal logits are equally far.
        order.sort_by(|&a, &b| match tokens[a].1 == tokens[b].1 {
            true => a.cmp(&b),
            false => (surprise(a) - mean).abs().total_cmp(&(surprise(b) - mean).abs()),
        });
        let mut sum = 0.0;
        let before: Vec<f64> = order.iter().map(|&i| (sum, sum += p[i]).0).collect();
        let kept = before
            .iter()
            .skip(1)
            .take_while(|&&sum| sum < f64::from(params.typical_p))
            .count()
            + 1;
        let mut kept = order[..kept].to_vec();
        kept.sort_unstable();
        tokens = kept.into_iter().map(|i| tokens[i]).collect();
    }
    if params.top_p < 1.0 {
        let mut sum = 0.0;
        let before: Vec<f64> = probabilities(&tokens).iter().map(|p| (sum, sum += p).0).collect();
        let kept = before
            .iter()
            .skip(1)
            .take_while(|&&sum| sum < f64::from(params.top_p))
            .count()
            + 1;
        tokens.truncate(kept);
    }
    let all = probabilities(&tokens);
    let kept = all
        .iter()
        .take_while(|&&p| p >= f64::from(params.min_p) * all[0])
        .count();
    tokens.truncate(kept);
    if let Some(xtc) = params.xtc.filter(|xtc| u_xtc < f64::from(xtc.probability)) {
        let p = probabilities(&tokens);
        let likely = p.iter().filter(|&&p| p > 0.0 && p >= f64::from(xtc.threshold)).count();
        tokens.drain(..likely.saturating_sub(1));
    }
    let mut sum = 0.0;
    let drawn = probabilities(&tokens).iter().position(|p| (sum += p, sum > u).1);
    tokens[drawn.unwrap_or(tokens.len() - 1)].0
}

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![4 => -8.0_f32..8.0, 2 => (-3..4).prop_map(|x| x as f32), 1 => Just(MASKED), 1 => -1e4_f32..1e4]
}

prop_compose! {
    fn filters()(
        temperature in prop_oneof![Just(1.0_f32), 0.05_f32..3.0],
        top_k in prop_oneof![Just(0_usize), 1..20_usize, 1..500_usize],
        top_p in prop_oneof![Just(1.0_f32), 0.01_f32..1.0],
        min_p in prop_oneof![Just(0.0_f32), 0.001_f32..1.0],
        typical_p in prop_oneof![2 => Just(1.0_f32), 1 => 0.01_f32..1.0],
        xtc in prop::option::of((0.0_f32..1.0, 0.001_f32..0.6)),
        seed: u64,
    ) -> SamplingParams {
        let xtc = xtc.map(|(probability, threshold)| Xtc { probability, threshold });
        SamplingParams { temperature, top_k, top_p, min_p, typical_p, xtc, seed, ..SamplingParams::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn draws_equal_the_reference(logits in prop::collection::vec(logit(), 1..400), params in filters(), index: u64) {
        prop_assume!(logits.iter().any(|&logit| logit != MASKED));
        let u = |stream| uniform(params.seed, index, stream);
        let want = reference(&logits, &params, u(Stream::Token), u(Stream::Xtc));
        prop_assert_eq!(sampled(&params, &logits, index).id, want);
        let likeliest = reference(&logits, &SamplingParams { top_k: 1, ..SamplingParams::default() }, 0.0, 0.0);
        let greedy = SamplingParams { temperature: 0.0, ..params };
        prop_assert_eq!(sampled(&greedy, &logits, index).id, likeliest);
    }
}
