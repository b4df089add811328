//! Rotary position embedding: the frequencies of a layer, as the reference computes them.
//!
//! Formulas: RoFormer (Su et al. 2021) for the base, YaRN (Peng et al. 2023) for `yarn`, and `modeling_rope_utils` of Hugging Face
//! transformers, which is the reference, for the rest.

use std::f64::consts::PI;

use super::Vector;

/// The rotation of one layer's queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pub theta: f64,
    /// Leading dimensions of each head that rotate (even); first half against second half.
    pub rotary: usize,
    pub scaling: RopeScaling,
}

/// How the frequencies of the base are stretched for longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Bands by wavelength: long ones divided by `factor`, short ones kept, a blend between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_context: f64,
    },
    /// A ramp between interpolated and original frequencies; cos and sin are multiplied by `attention_factor`.
    Yarn {
        factor: f64,
        original_context: f64,
        beta_fast: f64,
        beta_slow: f64,
        truncate: bool,
        attention_factor: f64,
    },
    /// Each frequency divided by an element of a tensor that the file ships (`rope_freqs.weight` of GGUF).
    Divisors(Vector),
    /// Each frequency divided by an element of one of two lists: `long` in sequences of more than `original_context` positions. cos and sin
    /// are multiplied by the list's attention factor (LongRoPE, Ding et al. 2024).
    LongRope {
        original_context: f64,
        short: LongRopeList,
        long: LongRopeList,
    },
    /// In sequences longer than `context` the base grows with the length ("dynamic NTK").
    Dynamic {
        factor: f64,
        context: f64,
    },
    /// Only the first `angles` pairs rotate; exponents are those of all pairs.
    Proportional {
        angles: usize,
    },
}

/// What divides the frequencies in one regime of LongRoPE.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRopeList {
    pub divisors: Divisors,
    pub attention_factor: f64,
}

/// One divisor a frequency, from the configuration or from a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Divisors {
    Listed(Vec<f64>),
    Stored(Vector),
}

impl Rope {
    /// Whether sequences of different declared lengths have different frequencies.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::LongRope { .. } | RopeScaling::Dynamic { .. })
    }

    /// The vector of divisors that [`Rope::frequencies`] wants for sequences of at most `length` positions.
    pub fn divisors(&self, length: usize) -> Option<&Vector> {
        match &self.scaling {
            RopeScaling::Divisors(vector) => Some(vector),
            RopeScaling::LongRope { .. } => match &self.long_rope_list(length)?.divisors {
                Divisors::Stored(vector) => Some(vector),
                Divisors::Listed(_) => None,
            },
            _ => None,
        }
    }

    fn long_rope_list(&self, length: usize) -> Option<&LongRopeList> {
        match &self.scaling {
            RopeScaling::LongRope {
                original_context,
                short,
                long,
            } => Some(if length as f64 > *original_context { long } else { short }),
            _ => None,
        }
    }

    /// inv_freq, `rotary / 2` values in f32, and the factor of cos and sin, in a sequence of at most `length` positions. `divisors` are
    /// the values of [`Rope::divisors`], ignored where that is `None`.
    pub fn frequencies(&self, length: usize, divisors: &[f32]) -> (Vec<f32>, f32) {
        let theta = self.theta_at(length);
        let base: Vec<f64> = (0..self.rotary / 2)
            .map(|i| 1.0 / libm::pow(theta, (2 * i) as f64 / self.rotary as f64))
            .collect();
        // A file's divisors belong to the f32 frequencies.
        let divided_by_stored = || {
            base.iter()
                .zip(divisors)
                .map(|(f, &d)| f64::from(*f as f32 / d))
                .collect()
        };
        let mut factor_of_cos = 1.0;
        let scaled: Vec<f64> = match &self.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } => base,
            RopeScaling::Linear { factor } => base.iter().map(|f| f / factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => base
                .iter()
                .map(|&f| llama3(f, *factor, [*low_freq_factor, *high_freq_factor], *original_context))
                .collect(),
            RopeScaling::Yarn {
                factor,
                attention_factor,
                ..
            } => {
                factor_of_cos = *attention_factor;
                let keep = self.yarn_ramp();
                base.iter()
                    .zip(keep)
                    .map(|(f, keep)| f / factor * (1.0 - keep) + f * keep)
                    .collect()
            }
            RopeScaling::Divisors(_) => divided_by_stored(),
            RopeScaling::LongRope { .. } => match self.long_rope_list(length) {
                Some(list) => {
                    factor_of_cos = list.attention_factor;
                    match &list.divisors {
                        Divisors::Stored(_) => divided_by_stored(),
                        Divisors::Listed(list) => base.iter().zip(list).map(|(f, d)| f / d).collect(),
                    }
                }
                None => base,
            },
            RopeScaling::Proportional { angles } => base
                .iter()
                .enumerate()
                .map(|(i, &f)| if i < *angles { f } else { 0.0 })
                .collect(),
        };
        (scaled.iter().map(|&f| f as f32).collect(), factor_of_cos as f32)
    }

    /// The base in a sequence of at most `length` positions.
    fn theta_at(&self, length: usize) -> f64 {
        match self.scaling {
            RopeScaling::Dynamic { factor, context } if length as f64 > context => {
                let stretch = factor * length as f64 / context - (factor - 1.0);
                let dims = self.rotary as f64;
                self.theta * libm::pow(stretch, dims / (dims - 2.0))
            }
            _ => self.theta,
        }
    }

    /// For each frequency the share of the unscaled one: 1 above `beta_fast` turns in the original context, 0 below `beta_slow`.
    fn yarn_ramp(&self) -> Vec<f64> {
        let RopeScaling::Yarn {
            original_context,
            beta_fast,
            beta_slow,
            truncate,
            ..
        } = &self.scaling
        else {
            return Vec::new();
        };
        let dim_of_turns = |turns: f64| {
            self.rotary as f64 * libm::log(original_context / (turns * 2.0 * PI)) / (2.0 * libm::log(self.theta))
        };
        let (mut low, mut high) = (dim_of_turns(*beta_fast), dim_of_turns(*beta_slow));
        if *truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min((self.rotary - 1) as f64));
        if low == high {
            high += 0.001; // the reference's guard against a division by zero
        }
        (0..self.rotary / 2)
            .map(|i| 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0))
            .collect()
    }
}

fn llama3(frequency: f64, factor: f64, [low, high]: [f64; 2], original_context: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength < original_context / high {
        frequency
    } else if wavelength > original_context / low {
        frequency / factor
    } else {
        let smooth = (original_context / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_frequencies_fall_from_one() {
        let rope = Rope {
            theta: 10_000.0,
            rotary: 8,
            scaling: RopeScaling::None,
        };
        assert_eq!(rope.frequencies(64, &[]), (vec![1.0, 0.1, 0.01, 0.001], 1.0));
    }

    #[test]
    fn llama3_keeps_fast_and_stretches_slow_frequencies() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64.0,
        };
        let (f, _) = Rope {
            theta: 10_000.0,
            rotary: 8,
            scaling,
        }
        .frequencies(64, &[]);
        assert_eq!(f[0], 1.0);
        assert_eq!(f[3], 0.001 / 8.0);
        assert!(f[1] < 0.1 && f[1] > 0.1 / 8.0);
    }

    #[test]
    fn yarn_lies_between_base_and_interpolation() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 64.0,
            beta_fast: 2.0,
            beta_slow: 0.5,
            truncate: true,
            attention_factor: 1.5,
        };
        let (f, factor) = Rope {
            theta: 10_000.0,
            rotary: 16,
            scaling,
        }
        .frequencies(64, &[]);
        assert_eq!((f[0], factor), (1.0, 1.5));
        assert!((f[7] - (1.0 / libm::pow(10_000.0, 14.0 / 16.0)) as f32 / 4.0).abs() < 1e-9);
    }
}
