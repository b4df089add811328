//! Temperature, filters and the draw.

use goldcrest_kernels::{Kernels, exp_f64};

use super::philox::{Stream, uniform};
use super::rank::{Candidate, Ranking};
use super::{SamplingParams, Xtc};

/// Memory of [`draw`].
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub candidates: Vec<Candidate>,
    /// How far the surprise of the token of a rank is from the mean, and its rank.
    deviations: Vec<(f64, usize)>,
}

#[cfg(test)]
impl Scratch {
    pub(super) fn capacities(&self) -> [usize; 2] {
        [self.candidates.capacity(), self.deviations.capacity()]
    }
}

/// The token for output `index` of the distribution that temperature and the filters leave of `logits`.
///
/// `max` is the largest logit, finite; no logit is NaN or +∞. A token's weight is its probability over that of the likeliest; the draw
/// is the first token in order at which the cumulated weight exceeds `u` times the weight of all that are left. All in f64.
pub(super) fn draw(logits: &[f32], max: f32, params: &SamplingParams, index: u64, scratch: &mut Scratch) -> u32 {
    let temperature = f64::from(params.temperature);
    let exponent = |token: Candidate| (f64::from(token.logit()) - f64::from(max)) / temperature;
    let weight = |token: Candidate| exp_f64(exponent(token));
    let mut keeps_all = params.top_k == 0 || params.top_k >= logits.len();
    let limit = if keeps_all { logits.len() } else { params.top_k };
    let mut ranking = Ranking::new(logits, limit, &mut scratch.candidates);
    if params.typical_p < 1.0 {
        keep_typical(&mut ranking, exponent, params.typical_p.into(), &mut scratch.deviations);
        keeps_all = false;
    }
    // By rank if top-k has found the order; a whole vocabulary by id, so that it need not be ordered.
    let total = |ranking: &mut Ranking| match keeps_all {
        true => Kernels::best().sum_exp(logits, max, params.temperature),
        false => ranking.iter().map(weight).fold(0.0, |sum, weight| sum + weight),
    };
    let nucleus = if params.top_p < 1.0 {
        f64::from(params.top_p) * total(&mut ranking)
    } else {
        f64::INFINITY
    };
    let (kept, mass) = match params.top_p < 1.0 || params.min_p > 0.0 {
        true => {
            // 1, unless typical sampling left out the likeliest token.
            let largest = ranking.get(0).map_or(1.0, weight);
            prefix(ranking.iter().map(weight), nucleus, f64::from(params.min_p) * largest)
        }
        false => (usize::MAX, total(&mut ranking)),
    };
    let excluded = match params.xtc {
        Some(xtc) if uniform(params.seed, index, Stream::Xtc) < f64::from(xtc.probability) => {
            top_choices(ranking.iter().map(weight).take(kept), mass, xtc)
        }
        _ => 0,
    };
    let mass = ranking
        .iter()
        .map(weight)
        .take(excluded)
        .fold(mass, |mass, weight| mass - weight);
    let target = uniform(params.seed, index, Stream::Token) * mass;
    let (mut cumulated, mut last) = (0.0, 0);
    for token in ranking.iter().take(kept).skip(excluded) {
        let weight = weight(token);
        if weight == 0.0 {
            break;
        }
        cumulated += weight;
        last = token.id();
        if cumulated > target {
            break;
        }
    }
    // If none exceeded it, `mass` was rounded above what this order sums to, and the last token is meant.
    last
}

/// Keeps the fewest tokens whose surprise is nearest to the mean (of equals the likelier) that have a `share` of all weight.
///
/// A token's surprise is −ln p = ln Σ exp(exponent) − its exponent, so that its distance from the mean is that of the exponents.
fn keep_typical(
    ranking: &mut Ranking,
    exponent: impl Fn(Candidate) -> f64,
    share: f64,
    deviations: &mut Vec<(f64, usize)>,
) {
    let (mut total, mut sum) = (0.0, 0.0);
    deviations.clear();
    for (rank, token) in ranking.iter().enumerate() {
        let exponent = exponent(token);
        let weight = exp_f64(exponent);
        if weight == 0.0 {
            break;
        }
        total += weight;
        sum += weight * exponent;
        deviations.push((exponent, rank));
    }
    let mean = sum / total;
    for (exponent, _) in &mut *deviations {
        *exponent = (*exponent - mean).abs();
    }
    deviations.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut kept, mut mass) = (0, 0.0);
    for &(_, rank) in &*deviations {
        kept += 1;
        mass += ranking.get(rank).map_or(0.0, |token| exp_f64(exponent(token)));
        if mass >= share * total {
            break;
        }
    }
    deviations.truncate(kept);
    deviations.sort_unstable_by_key(|&(_, rank)| rank);
    ranking.keep(deviations.iter().map(|&(_, rank)| rank));
}

/// How many of the falling `weights`, which sum to `mass`, are left out: those that are likely enough but the last.
fn top_choices(weights: impl Iterator<Item = f64>, mass: f64, xtc: Xtc) -> usize {
    let least = f64::from(xtc.threshold) * mass;
    weights
        .take_while(|&weight| weight > 0.0 && weight >= least)
        .count()
        .saturating_sub(1)
}

/// How many of the falling `weights` are kept, and their sum: those of at least `least`, up to the first that brings the sum to
/// `nucleus`.
fn prefix(weights: impl Iterator<Item = f64>, nucleus: f64, least: f64) -> (usize, f64) {
    let (mut kept, mut mass) = (0, 0.0);
    for weight in weights.take_while(|&weight| weight >= least) {
        kept += 1;
        mass += weight;
        if mass >= nucleus {
            break;
        }
    }
    (kept, mass)
}
