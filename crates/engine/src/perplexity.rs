//! How well a model predicts a text.
//!
//! The text's tokens are cut into windows ([`windows`]), each fed from an empty context. Every token of a window but its first is
//! predicted: its surprise is −ln p, from the raw logits of the row before, in f64. The perplexity is the exponential of the mean.

use std::sync::atomic::AtomicBool;

use crate::sample::log_sum_exp;
use crate::session::{Chunk, FeedError, Session, Want, Watch};

/// Bytes of logits that are computed at once.
const LOGITS_BYTES: usize = 64 << 20;

/// What has been measured so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    tokens: u64,
    /// Mean surprise, nats.
    mean: f64,
    /// Squared deviations from the mean, added up.
    squares: f64,
}

/// Why a window could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerplexityError {
    /// The model could not be run.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// The model computes something that is no number.
    #[error("the logits that predict token {index} of the window are not finite")]
    NotFinite {
        /// Counted from the start of the window.
        index: usize,
    },
}

impl Perplexity {
    /// Feeds a window to a session, which it is emptied for, and adds the surprise of each of its tokens but the first.
    ///
    /// # Errors
    /// [`PerplexityError`]; what was added before stays.
    pub fn add_window(
        &mut self,
        session: &mut Session,
        window: &[u32],
        cancel: Option<&AtomicBool>,
    ) -> Result<(), PerplexityError> {
        session.rewind(0).expect("a session can always become empty");
        let vocabulary = session.engine().spec().vocabulary;
        let chunk_len = chunk_len(vocabulary);
        let mut logits = vec![0.0; chunk_len.min(window.len()) * vocabulary];
        // The last token predicts nothing that is known.
        for start in (0..window.len().saturating_sub(1)).step_by(chunk_len) {
            let end = (start + chunk_len).min(window.len() - 1);
            let chunk = Chunk {
                start,
                ids: &window[start..end],
                want: Want::All,
            };
            let logits = &mut logits[..chunk.ids.len() * vocabulary];
            session.feed_watched(chunk, logits, Watch { cancel, probe: None })?;
            for (index, row) in (start + 1..).zip(logits.chunks_exact(vocabulary)) {
                let surprise = surprise(row, window[index]).ok_or(PerplexityError::NotFinite { index })?;
                self.add(surprise);
            }
        }
        Ok(())
    }

    /// Most bytes of logits that [`Perplexity::add_window`] holds for windows of `len` tokens.
    pub fn logits_bytes(vocabulary: usize, len: usize) -> usize {
        chunk_len(vocabulary).min(len) * vocabulary * size_of::<f32>()
    }

    /// Welford's update: no sum grows large enough to lose digits.
    fn add(&mut self, surprise: f64) {
        self.tokens += 1;
        let deviation = surprise - self.mean;
        self.mean += deviation / self.tokens as f64;
        self.squares += deviation * (surprise - self.mean);
    }

    /// Tokens predicted.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Mean negative log-likelihood of a token, nats.
    pub fn mean_nll(&self) -> f64 {
        self.mean
    }

    /// Standard error of [`Perplexity::mean_nll`], as if tokens were independent. 0 for fewer than two tokens.
    pub fn standard_error_nll(&self) -> f64 {
        let tokens = self.tokens as f64;
        if self.tokens < 2 {
            return 0.0;
        }
        (self.squares / (tokens - 1.0) / tokens).sqrt()
    }

    /// The perplexity: the number of tokens among which the model is as undecided, on average.
    pub fn value(&self) -> f64 {
        libm::exp(self.mean)
    }

    /// Standard error of [`Perplexity::value`], to first order.
    pub fn standard_error(&self) -> f64 {
        self.value() * self.standard_error_nll()
    }
}

/// Tokens whose logits are computed at once.
fn chunk_len(vocabulary: usize) -> usize {
    (LOGITS_BYTES / (vocabulary * size_of::<f32>())).max(1)
}

/// −ln of the probability of `id`; `None` if it is not finite.
fn surprise(logits: &[f32], id: u32) -> Option<f64> {
    let logit = logits.get(id as usize).copied().map(f64::from)?;
    Some(log_sum_exp(logits) - logit).filter(|surprise| surprise.is_finite())
}

/// Cuts a text into windows of `context` tokens, the last of which may be shorter. Each begins with `before`: what the model wants before
/// a text, or nothing.
pub fn windows<'a>(before: &'a [u32], text: &'a [u32], context: usize) -> impl ExactSizeIterator<Item = Vec<u32>> + 'a {
    let room = context.saturating_sub(before.len()).max(1);
    text.chunks(room).map(move |part| [before, part].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_errors_of_known_surprises() {
        let mut measured = Perplexity::default();
        assert_eq!((measured.value(), measured.standard_error()), (1.0, 0.0));
        for surprise in [1.0, 2.0, 6.0] {
            measured.add(surprise);
        }
        // Variance of the sample (4 + 1 + 9) / 2 = 7; of the mean 7 / 3.
        assert_eq!((measured.tokens(), measured.mean_nll()), (3, 3.0));
        assert!((measured.standard_error_nll() - (7f64 / 3.0).sqrt()).abs() < 1e-15);
        assert!((measured.value() - libm::exp(3.0)).abs() < 1e-13);
    }

    #[test]
    fn a_surprise_is_finite_or_none() {
        assert_eq!(surprise(&[0.0, 0.0], 1), Some(std::f64::consts::LN_2));
        assert_eq!(surprise(&[1.0, f32::NEG_INFINITY], 1), None);
        assert_eq!(surprise(&[f32::NAN, 1.0], 1), None);
        assert_eq!(surprise(&[0.0], 1), None);
    }

    #[test]
    fn windows_cover_the_text_once() {
        let cut = |before: &[u32], text: &[u32], context| windows(before, text, context).collect::<Vec<_>>();
        assert_eq!(cut(&[], &[1, 2, 3, 4, 5], 2), [vec![1, 2], vec![3, 4], vec![5]]);
        assert_eq!(cut(&[9], &[1, 2, 3], 3), [vec![9, 1, 2], vec![9, 3]]);
        assert_eq!(cut(&[9], &[1, 2], 1), [vec![9, 1], vec![9, 2]]);
        assert!(cut(&[9], &[], 4).is_empty());
    }
}
