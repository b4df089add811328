//! Figures of repetitions.

use serde_json::{Value, json};

/// One figure of each repetition, in the order of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    runs: Vec<f64>,
    sorted: Vec<f64>,
}

impl Spread {
    pub fn new(runs: Vec<f64>) -> Spread {
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        Spread { runs, sorted }
    }

    /// The middle one, or the mean of the two in the middle; 0 of none.
    pub fn median(&self) -> f64 {
        let half = self.sorted.len() / 2;
        match (self.sorted.get(half.wrapping_sub(1)), self.sorted.get(half)) {
            (Some(low), Some(high)) if self.sorted.len().is_multiple_of(2) => (low + high) / 2.0,
            (_, Some(middle)) => *middle,
            _ => 0.0,
        }
    }

    pub fn min(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(0.0)
    }

    pub fn max(&self) -> f64 {
        self.sorted.last().copied().unwrap_or(0.0)
    }

    pub fn as_json(&self) -> Value {
        json!({ "median": self.median(), "min": self.min(), "max": self.max(), "runs": self.runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        let median = |runs: &[f64]| Spread::new(runs.to_vec()).median();
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[7.0]), 7.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[9.0, 1.0, 4.0, 2.0]), 3.0);
    }

    #[test]
    fn runs_keep_their_order() {
        let spread = Spread::new(vec![3.0, 1.0, 2.0]);
        assert_eq!((spread.min(), spread.max()), (1.0, 3.0));
        assert_eq!(
            spread.as_json(),
            json!({ "median": 2.0, "min": 1.0, "max": 3.0, "runs": [3.0, 1.0, 2.0] })
        );
    }
}
