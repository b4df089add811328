//! Temperature, filters and the draw.

use goldcrest_kernels::{Kernels, exp_f64};

use super::SamplingParams;
use super::rank::{Candidate, Ranking};

/// The token at `u` (in [0, 1)) of the distribution that temperature, top-k, top-p and min-p leave of `logits`.
///
/// `max` is the largest logit, finite; no logit is NaN or +∞. A token's weight is its probability over that of the likeliest; the draw
/// is the first token in order at which the cumulated weight exceeds `u` times the weight of all that are left. All in f64.
pub(super) fn draw(logits: &[f32], max: f32, params: &SamplingParams, u: f64, buffer: &mut Vec<Candidate>) -> u32 {
    let temperature = f64::from(params.temperature);
    let weight = |token: Candidate| exp_f64((f64::from(token.logit()) - f64::from(max)) / temperature);
    let keeps_all = params.top_k == 0 || params.top_k >= logits.len();
    let mut ranking = Ranking::new(logits, if keeps_all { logits.len() } else { params.top_k }, buffer);
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
        true => prefix(ranking.iter().map(weight), nucleus, params.min_p.into()),
        false => (usize::MAX, total(&mut ranking)),
    };
    let target = u * mass;
    let (mut cumulated, mut last) = (0.0, 0);
    for token in ranking.iter().take(kept) {
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
