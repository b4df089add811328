//! From a row of logits to a token.
//!
//! The draw is a function of the logits, the parameters, the tokens seen, the seed and the output index: rows may be sampled in any
//! order, again, or beside others, with the same result. Tokens are ordered by (logit falling, id rising), and filters keep a
//! stretch of that order, so that it is made only as far as the draw goes; typical sampling alone looks at all tokens.

mod draw;
mod dry;
mod params;
mod penalty;
mod philox;
mod probability;
mod rank;

use self::draw::{Scratch, draw};
use self::dry::Repetitions;
use self::penalty::{Seen, adjust, has_penalty};
use self::rank::Ranking;

pub use self::params::{Dry, MAX_TOP_LOGPROBS, ParamsError, SamplingParams, Xtc};
pub use self::probability::log_sum_exp;

/// Why no token could be sampled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The row is not one logit a token.
    #[error("{got} logits for a vocabulary of {vocab} tokens")]
    Length {
        /// Logits given.
        got: usize,
        /// Tokens of the model.
        vocab: usize,
    },
    /// A logit is NaN or +∞, or bias and penalties made it so: the model's numbers overflowed or its file is damaged.
    #[error("the logit of token {id} is not a number or infinite: check the model file with `goldcrest verify`")]
    NotFinite {
        /// The lowest such id.
        id: u32,
    },
    /// Every token is masked or forbidden by its bias.
    #[error("every token is masked: nothing can be sampled")]
    AllMasked,
    /// A token that the model does not have.
    #[error("token {id} is outside the vocabulary of {vocab} tokens")]
    OutsideVocabulary {
        /// The id given.
        id: u32,
        /// Tokens of the model.
        vocab: usize,
    },
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Its natural log-probability under the model's own logits, if asked for.
    pub logprob: Option<f64>,
    /// The likeliest tokens under the model's own logits and their log-probabilities, falling; as many as asked for.
    pub top: Vec<(u32, f64)>,
}

/// Samples the tokens of one sequence.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab: usize,
    seen: Seen,
    /// Where the parameters ask for it.
    repetitions: Option<Repetitions>,
    /// The logits after bias and penalties.
    adjusted: Vec<f32>,
    /// Memory of draws and rankings.
    scratch: Scratch,
}

impl Sampler {
    /// A sampler for a model of `vocab` tokens that has seen none yet.
    ///
    /// # Errors
    /// [`ParamsError`] if a parameter is outside its range.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self, ParamsError> {
        params.validate(vocab)?;
        Ok(Self {
            repetitions: params.dry.clone().map(Repetitions::new),
            params,
            vocab,
            seen: Seen::default(),
            adjusted: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// The parameters, for the response that echoes them.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Remembers the prompt for the penalties; before any output.
    ///
    /// # Errors
    /// [`SampleError::OutsideVocabulary`], in which case nothing is remembered.
    pub fn accept_prompt(&mut self, ids: &[u32]) -> Result<(), SampleError> {
        self.remember(ids, false)
    }

    /// Remembers a token of the output for the penalties. Sampling alone does not, because a speculated row may be dropped.
    ///
    /// # Errors
    /// [`SampleError::OutsideVocabulary`].
    pub fn accept(&mut self, id: u32) -> Result<(), SampleError> {
        self.remember(&[id], true)
    }

    fn remember(&mut self, ids: &[u32], output: bool) -> Result<(), SampleError> {
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= self.vocab) {
            return Err(SampleError::OutsideVocabulary { id, vocab: self.vocab });
        }
        if has_penalty(&self.params) {
            ids.iter()
                .for_each(|&id| self.seen.push(id, output, self.params.repetition_window));
        }
        if let Some(repetitions) = &mut self.repetitions {
            ids.iter().for_each(|&id| repetitions.push(id));
        }
        Ok(())
    }

    /// The token for output `index` (0 for the first after the prompt) from the model's `logits`, one a token of the vocabulary.
    ///
    /// Allocates nothing once buffers have their size, but for the list of log-probabilities if that is asked for.
    ///
    /// # Errors
    /// [`SampleError`].
    pub fn sample(&mut self, logits: &[f32], index: u64) -> Result<Sampled, SampleError> {
        if logits.len() != self.vocab {
            return Err(SampleError::Length {
                got: logits.len(),
                vocab: self.vocab,
            });
        }
        let mut max = largest(logits)?;
        let mut weighed = logits;
        if !self.params.logit_bias.is_empty() || has_penalty(&self.params) || self.repetitions.is_some() {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            adjust(&mut self.adjusted, &self.params, &self.seen);
            if let Some(repetitions) = &mut self.repetitions {
                repetitions.adjust(&mut self.adjusted);
            }
            max = largest(&self.adjusted)?;
            weighed = &self.adjusted;
        }
        if max == f32::NEG_INFINITY {
            return Err(SampleError::AllMasked);
        }
        let id = if self.params.temperature == 0.0 {
            first_at(weighed, max)
        } else {
            draw(weighed, max, &self.params, index, &mut self.scratch)
        };
        let (logprob, top) = self.log_probabilities(logits, id);
        Ok(Sampled { id, logprob, top })
    }

    fn log_probabilities(&mut self, logits: &[f32], id: u32) -> (Option<f64>, Vec<(u32, f64)>) {
        let Some(count) = self.params.logprobs else {
            return (None, Vec::new());
        };
        let log_sum = log_sum_exp(logits);
        let mut ranking = Ranking::new(logits, count, &mut self.scratch.candidates);
        let top = ranking
            .iter()
            .map(|token| (token.id(), f64::from(token.logit()) - log_sum))
            .collect();
        (logits.get(id as usize).map(|&logit| f64::from(logit) - log_sum), top)
    }
}

/// The largest logit; an error if one is NaN or +∞.
fn largest(logits: &[f32]) -> Result<f32, SampleError> {
    // Lanes of their own let the compiler use vectors; the larger of two is exact, so their order does not matter.
    const LANES: usize = 16;
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut all_below_infinity = true;
    let mut look = |block: &[f32]| {
        for (max, &logit) in max.iter_mut().zip(block) {
            *max = if logit > *max { logit } else { *max };
            all_below_infinity &= logit < f32::INFINITY;
        }
    };
    let (blocks, rest) = logits.as_chunks::<LANES>();
    blocks.iter().for_each(|block| look(block));
    look(rest);
    if all_below_infinity {
        return Ok(max.into_iter().fold(f32::NEG_INFINITY, f32::max));
    }
    let bad = (0..)
        .zip(logits)
        .find(|&(_, &logit)| logit.is_nan() || logit == f32::INFINITY);
    Err(SampleError::NotFinite {
        id: bad.map_or(0, |(id, _)| id),
    })
}

/// The lowest id whose logit is `max`.
fn first_at(logits: &[f32], max: f32) -> u32 {
    (0..)
        .zip(logits)
        .find(|&(_, &logit)| logit == max)
        .map_or(0, |(id, _)| id)
}

#[cfg(test)]
mod tests;
