//! Logarithms of probabilities in f64, the same bits on every platform.

use goldcrest_kernels::Kernels;

/// The natural logarithm of x.
pub(super) fn ln(x: f64) -> f64 {
    libm::log(x)
}

/// ln Σ exp(logit): a token's natural log-probability is its logit less this. Summed by rising id from the largest logit, in f64.
///
/// −∞ (a token that is masked) adds nothing; −∞ for all gives −∞. A NaN gives NaN.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max.is_infinite() {
        return max.into();
    }
    f64::from(max) + ln(Kernels::best().sum_exp(logits, max, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_sum_exp_of_known_sums() {
        const LN_2: f64 = std::f64::consts::LN_2;
        assert_eq!(log_sum_exp(&[0.0, 0.0]), LN_2);
        assert_eq!(log_sum_exp(&[1000.0, 1000.0]), 1000.0 + LN_2);
        assert_eq!(log_sum_exp(&[-1000.0, -1000.0, f32::NEG_INFINITY]), LN_2 - 1000.0);
        assert_eq!(log_sum_exp(&[5.0, f32::NEG_INFINITY]), 5.0);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 3]), f64::NEG_INFINITY);
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
        assert!(log_sum_exp(&[0.0, f32::NAN]).is_nan());
    }
}
