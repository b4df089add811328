//! Softmax attention of one query row, written from its definition: the oracle of [`crate::attention`].

use std::cmp::Ordering;
use std::ops::Range;

use super::math;
use super::norm::{LANES, tree_sum};
use crate::attention::{SEGMENT_POSITIONS, ScoreRule};

/// Running softmax of one query row: the largest score so far, Σ exp(score − max) and Σ exp(score − max)·v.
struct Partial {
    max: f32,
    sum: f32,
    output: Vec<f32>,
}

/// One head of one token.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// `k_dim` numbers.
    pub q: &'a [f32],
    pub position: usize,
    /// The absolute positions whose keys it sees.
    pub visible: Range<usize>,
    /// Those of them that count, if not all do.
    pub chosen: Option<&'a [usize]>,
    /// Of ALiBi.
    pub slope: Option<f32>,
}

/// Attention of one query.
///
/// `keys` and `values` hold one row per position from 0, of `q.len()` and `v_dim` numbers, as they read back from the cache. Without a
/// visible key the output is 0.
pub fn attend(
    query: &Query<'_>,
    (keys, values, v_dim): (&[f32], &[f32], usize),
    rule: &ScoreRule,
    sink: Option<f32>,
) -> Vec<f32> {
    let mut state: Option<Partial> = None;
    let visible = &query.visible;
    let first_segment = visible.start / SEGMENT_POSITIONS;
    for segment in first_segment..visible.end.div_ceil(SEGMENT_POSITIONS) {
        let start = visible.start.max(segment * SEGMENT_POSITIONS);
        let end = visible.end.min((segment + 1) * SEGMENT_POSITIONS);
        let is_chosen = |position: &usize| query.chosen.is_none_or(|chosen| chosen.contains(position));
        let seen: Vec<usize> = (start..end).filter(is_chosen).collect();
        if !seen.is_empty() {
            let partial = attend_segment(query, (keys, values, v_dim), &seen, rule);
            state = Some(match state {
                None => partial,
                Some(state) => merge(state, &partial),
            });
        }
    }
    let Some(mut state) = state else {
        return vec![0.0; v_dim];
    };
    if let Some(logit) = sink {
        let sink = Partial {
            max: logit,
            sum: 1.0,
            output: vec![0.0; v_dim],
        };
        state = merge(state, &sink);
    }
    state.output.iter().map(|o| o / state.sum).collect()
}

fn attend_segment(
    query: &Query<'_>,
    (keys, values, v_dim): (&[f32], &[f32], usize),
    seen: &[usize],
    rule: &ScoreRule,
) -> Partial {
    let k_dim = query.q.len();
    let score = |position: usize| {
        let key = &keys[position * k_dim..][..k_dim];
        let dot = key.iter().zip(query.q).fold(0f32, |sum, (k, q)| k.mul_add(*q, sum));
        let scaled = dot * rule.scale;
        let distance = position as i64 - query.position as i64;
        let biased = query
            .slope
            .map_or(scaled, |slope| slope.mul_add(distance as f32, scaled));
        rule.softcap.map_or(biased, |cap| cap * math::tanh(biased / cap))
    };
    let max = seen
        .iter()
        .map(|&position| score(position))
        .fold(f32::NEG_INFINITY, |max, s| if s > max { s } else { max });
    let mut lanes = [0f32; LANES];
    let mut output = vec![0f32; v_dim];
    for &position in seen {
        let p = math::exp(score(position) - max);
        lanes[position % LANES] += p;
        let value = &values[position * v_dim..][..v_dim];
        for (o, v) in output.iter_mut().zip(value) {
            *o = v.mul_add(p, *o);
        }
    }
    Partial {
        max,
        sum: tree_sum(lanes),
        output,
    }
}

/// The index scores of `keys`, one row a position, of which each query head has as many numbers; see [`crate::attention::index`].
pub fn index_scores(q: &[f32], weights: &[f32], keys: &[f32]) -> Vec<f32> {
    let k_dim = q.len() / weights.len();
    let score = |key: &[f32]| {
        let heads = q.chunks_exact(k_dim).zip(weights);
        heads.fold(0f32, |score, (q, weight)| {
            let dot = key.iter().zip(q).fold(0f32, |sum, (k, q)| k.mul_add(*q, sum));
            let positive = if dot > 0.0 { dot } else { 0.0 };
            positive.mul_add(*weight, score)
        })
    };
    keys.chunks_exact(k_dim).map(score).collect()
}

/// The places of the `keep` largest scores, rising; of equal ones the earlier, NaN last.
pub fn choose_largest(scores: &[f32], keep: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    places.sort_by(|&a, &b| match (scores[a].is_nan(), scores[b].is_nan()) {
        (false, false) => scores[b].partial_cmp(&scores[a]).unwrap_or(Ordering::Equal),
        (a_is_nan, b_is_nan) => a_is_nan.cmp(&b_is_nan),
    });
    places.truncate(keep);
    places.sort_unstable();
    places
}

fn merge(state: Partial, next: &Partial) -> Partial {
    let max = if next.max > state.max { next.max } else { state.max };
    let (keep, add) = (math::exp(state.max - max), math::exp(next.max - max));
    let output = state.output.iter().zip(&next.output);
    Partial {
        max,
        sum: state.sum.mul_add(keep, next.sum * add),
        output: output.map(|(o, n)| o.mul_add(keep, n * add)).collect(),
    }
}
