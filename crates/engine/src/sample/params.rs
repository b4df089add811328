//! What a request may ask of sampling, and the check of it.

/// Most alternatives a token that log-probabilities are given for.
pub const MAX_TOP_LOGPROBS: usize = 1024;

/// How tokens are chosen. The default changes nothing: it draws from the model's own distribution.
///
/// Applied in this order: bias, penalties, DRY, temperature, top-k, typical, top-p, min-p, XTC.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; ≥ 0, where 0 always takes the likeliest token (of equals the lowest id). Default 1.
    pub temperature: f32,
    /// Keeps this many likeliest tokens; 0 keeps all (default).
    pub top_k: usize,
    /// Keeps the fewest likeliest tokens that together have at least this share of what top-k kept; 0 to 1, 1 keeps all (default).
    pub top_p: f32,
    /// Keeps tokens at least this many times as probable as the likeliest; 0 to 1, 0 keeps all (default).
    pub min_p: f32,
    /// Keeps the fewest tokens whose surprise is nearest to the mean that together have at least this share of what top-k kept; 0 to 1, 1
    /// keeps all (default). Locally typical sampling of Meister, Pimentel, Wiher and Cotterell (TACL 2023).
    pub typical_p: f32,
    /// Now and then leaves out the likeliest tokens; none (default).
    pub xtc: Option<Xtc>,
    /// Makes tokens that go on with a repetition less likely; none (default).
    pub dry: Option<Dry>,
    /// Divides positive logits of tokens of prompt and output by this and multiplies negative ones; > 0, 1 for none (default).
    pub repetition_penalty: f32,
    /// How many of the last tokens `repetition_penalty` looks at; none for all (default).
    pub repetition_window: Option<usize>,
    /// Subtracted from the logits of tokens in the output; −2 to 2, default 0.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens for every time they are in the output; −2 to 2, default 0.
    pub frequency_penalty: f32,
    /// (id, what is added to its logit): −100 to 100, or −∞ to forbid the token. Each id once.
    pub logit_bias: Vec<(u32, f32)>,
    /// With the output index, all that a draw depends on besides the logits.
    pub seed: u64,
    /// Gives the log-probability of the chosen token and of this many likeliest ones; none computes neither (default).
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            xtc: None,
            dry: None,
            repetition_penalty: 1.0,
            repetition_window: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// "Exclude top choices": of the tokens that are likely enough all are left out but the least likely one, if there are two or more. By the
/// definition of its author (p-e-w, text-generation-webui, pull request 6335, 2024).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// How often that happens; 0 to 1, default 0.5.
    pub probability: f32,
    /// Least probability, among what the filters before left, of tokens that are likely enough; 0 to 1, default 0.1. Two can have more than
    /// half never.
    pub threshold: f32,
}

impl Xtc {
    /// The threshold unless told otherwise.
    pub const DEFAULT_THRESHOLD: f32 = 0.1;
}

impl Default for Xtc {
    fn default() -> Self {
        Self {
            probability: 0.5,
            threshold: Self::DEFAULT_THRESHOLD,
        }
    }
}

/// "Don't repeat yourself": where the last n tokens of prompt and output stand right before an earlier occurrence of a token too, and n is
/// at least `allowed_length`, `multiplier * base^(n - allowed_length)` is subtracted from its logit.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// ≥ 0, default 0.8.
    pub multiplier: f32,
    /// ≥ 1, default 1.75.
    pub base: f32,
    /// Tokens of a repetition that costs `multiplier`; shorter ones cost nothing. Default 2.
    pub allowed_length: usize,
    /// How many of the last tokens are looked at; none for all (default).
    pub window: Option<usize>,
    /// Tokens that no repetition reaches over; none by default.
    pub breakers: Vec<u32>,
}

impl Default for Dry {
    fn default() -> Self {
        Self {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            window: None,
            breakers: Vec::new(),
        }
    }
}

/// A parameter outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParamsError {
    /// A number outside its range, or none at all.
    #[error("{field} is {value}: it must be {range}")]
    OutOfRange {
        /// Name of the field of [`SamplingParams`].
        field: &'static str,
        /// Its value.
        value: f32,
        /// The values allowed, in words.
        range: &'static str,
    },
    /// Log-probabilities of too many alternatives.
    #[error("logprobs asks for {asked} tokens: at most {MAX_TOP_LOGPROBS} can be had")]
    TooManyLogprobs {
        /// Alternatives asked for.
        asked: usize,
    },
    /// A token that the model does not have.
    #[error("{field} names token {id}: the vocabulary has {vocab} tokens")]
    OutsideVocabulary {
        /// Name of the field of [`SamplingParams`].
        field: &'static str,
        /// The id named.
        id: u32,
        /// Number of tokens.
        vocab: usize,
    },
    /// Two biases for one token.
    #[error("logit_bias names token {id} twice")]
    BiasTwice {
        /// The id named.
        id: u32,
    },
}

impl SamplingParams {
    /// The likeliest token always.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Checks every field for a model of `vocab` tokens.
    ///
    /// # Errors
    /// [`ParamsError`], for the first field that is wrong.
    pub fn validate(&self, vocab: usize) -> Result<(), ParamsError> {
        let check = |field, value: f32, valid: bool, range| {
            let error = ParamsError::OutOfRange { field, value, range };
            // Comparisons with NaN are false, so it is never valid.
            if valid { Ok(()) } else { Err(error) }
        };
        let share = |field, value: f32| check(field, value, (0.0..=1.0).contains(&value), "from 0 to 1");
        let penalty = |field, value: f32| check(field, value, (-2.0..=2.0).contains(&value), "from -2 to 2");
        let Self {
            temperature,
            repetition_penalty,
            ..
        } = *self;
        check(
            "temperature",
            temperature,
            (0.0..=f32::MAX).contains(&temperature),
            "a finite number of at least 0",
        )?;
        share("top_p", self.top_p)?;
        share("min_p", self.min_p)?;
        share("typical_p", self.typical_p)?;
        if let Some(xtc) = self.xtc {
            share("xtc_probability", xtc.probability)?;
            share("xtc_threshold", xtc.threshold)?;
        }
        if let Some(dry) = &self.dry {
            let within = |value: f32, least: f32| (least..=f32::MAX).contains(&value);
            let Dry { multiplier, base, .. } = *dry;
            check(
                "dry_multiplier",
                multiplier,
                within(multiplier, 0.0),
                "a finite number of at least 0",
            )?;
            check("dry_base", base, within(base, 1.0), "a finite number of at least 1")?;
            if let Some(&id) = dry.breakers.iter().find(|&&id| id as usize >= vocab) {
                let field = "dry_breakers";
                return Err(ParamsError::OutsideVocabulary { field, id, vocab });
            }
        }
        let positive = repetition_penalty > 0.0 && repetition_penalty.is_finite();
        check(
            "repetition_penalty",
            repetition_penalty,
            positive,
            "a finite number above 0",
        )?;
        penalty("presence_penalty", self.presence_penalty)?;
        penalty("frequency_penalty", self.frequency_penalty)?;
        self.validate_bias(vocab)?;
        match self.logprobs {
            Some(asked) if asked > MAX_TOP_LOGPROBS => Err(ParamsError::TooManyLogprobs { asked }),
            _ => Ok(()),
        }
    }

    fn validate_bias(&self, vocab: usize) -> Result<(), ParamsError> {
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocab {
                let field = "logit_bias";
                return Err(ParamsError::OutsideVocabulary { field, id, vocab });
            }
            if !((-100.0..=100.0).contains(&bias) || bias == f32::NEG_INFINITY) {
                let range = "from -100 to 100, or -infinity";
                return Err(ParamsError::OutOfRange {
                    field: "logit_bias",
                    value: bias,
                    range,
                });
            }
        }
        let mut ids: Vec<u32> = self.logit_bias.iter().map(|&(id, _)| id).collect();
        ids.sort_unstable();
        let twice = ids.windows(2).find_map(|pair| (pair[0] == pair[1]).then_some(pair[0]));
        twice.map_or(Ok(()), |id| Err(ParamsError::BiasTwice { id }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl Fn(&mut SamplingParams)) -> String {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate(10).expect_err("accepted").to_string()
    }

    #[test]
    fn every_field_is_checked_and_named() {
        let field = |name: &str, values: &[f32], set: fn(&mut SamplingParams) -> &mut f32| {
            for &value in values {
                let message = refusal(|params| *set(params) = value);
                assert!(
                    message.starts_with(&format!("{name} is {value}: it must be ")),
                    "{message}"
                );
            }
        };
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        field("temperature", &[-0.1, nan, infinity], |params| &mut params.temperature);
        field("top_p", &[-0.1, 1.1, nan, infinity], |params| &mut params.top_p);
        field("min_p", &[-0.1, 1.1, nan, infinity], |params| &mut params.min_p);
        field("typical_p", &[-0.1, 1.1, nan, infinity], |params| &mut params.typical_p);
        field("xtc_probability", &[-0.1, 1.1, nan], |params| {
            &mut params.xtc.get_or_insert_default().probability
        });
        field("xtc_threshold", &[-0.1, 1.1, nan], |params| {
            &mut params.xtc.get_or_insert_default().threshold
        });
        field("dry_multiplier", &[-0.1, nan, infinity], |params| {
            &mut params.dry.get_or_insert_default().multiplier
        });
        field("dry_base", &[0.9, nan, infinity], |params| {
            &mut params.dry.get_or_insert_default().base
        });
        field("repetition_penalty", &[0.0, -1.0, nan, infinity], |params| {
            &mut params.repetition_penalty
        });
        field("presence_penalty", &[-2.1, 2.1, nan], |params| {
            &mut params.presence_penalty
        });
        field("frequency_penalty", &[-2.1, 2.1, nan], |params| {
            &mut params.frequency_penalty
        });
        for bias in [-100.1, 100.1, nan, infinity] {
            assert!(refusal(|params| params.logit_bias = vec![(1, bias)]).starts_with("logit_bias is"));
        }
        assert_eq!(
            refusal(|params| params.logprobs = Some(1025)),
            "logprobs asks for 1025 tokens: at most 1024 can be had"
        );
        let outside = refusal(|params| params.logit_bias = vec![(10, 1.0)]);
        assert_eq!(outside, "logit_bias names token 10: the vocabulary has 10 tokens");
        let breakers = vec![9, 12];
        let dry = Some(Dry {
            breakers,
            ..Dry::default()
        });
        let outside = refusal(|params| params.dry = dry.clone());
        assert_eq!(outside, "dry_breakers names token 12: the vocabulary has 10 tokens");
        let twice = refusal(|params| params.logit_bias = vec![(3, 1.0), (2, 0.0), (3, 1.0)]);
        assert_eq!(twice, "logit_bias names token 3 twice");
    }

    #[test]
    fn limits_are_allowed() {
        let params = SamplingParams {
            temperature: f32::MAX,
            top_k: usize::MAX,
            top_p: 0.0,
            min_p: 1.0,
            typical_p: 0.0,
            xtc: Some(Xtc {
                probability: 1.0,
                threshold: 0.0,
            }),
            dry: Some(Dry {
                multiplier: f32::MAX,
                base: 1.0,
                allowed_length: 0,
                window: Some(0),
                breakers: vec![9, 9],
            }),
            repetition_penalty: f32::MIN_POSITIVE,
            repetition_window: Some(0),
            presence_penalty: -2.0,
            frequency_penalty: 2.0,
            logit_bias: vec![(0, f32::NEG_INFINITY), (9, 100.0), (5, -100.0)],
            seed: u64::MAX,
            logprobs: Some(MAX_TOP_LOGPROBS),
        };
        assert_eq!(params.validate(10), Ok(()));
        assert_eq!(SamplingParams::default().validate(10), Ok(()));
        assert_eq!(SamplingParams::greedy().validate(10), Ok(()));
    }
}
