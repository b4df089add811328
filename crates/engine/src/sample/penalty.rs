//! Logit bias and the penalties for tokens that have been seen.

use std::collections::{HashMap, VecDeque};

use super::SamplingParams;

/// How often a token has been seen.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    /// In the window of the repetition penalty.
    recent: u32,
    /// In the output.
    output: u32,
}

/// The tokens so far, as far as the penalties need them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    counts: HashMap<u32, Counts>,
    /// The tokens in the window, oldest first; unused if the window is everything.
    recent: VecDeque<u32>,
}

impl Seen {
    /// Adds a token of the prompt or, if `output`, of the output.
    pub(super) fn push(&mut self, id: u32, output: bool, window: Option<usize>) {
        let counts = self.counts.entry(id).or_default();
        counts.recent += 1;
        counts.output += u32::from(output);
        let Some(window) = window else { return };
        self.recent.push_back(id);
        if self.recent.len() > window
            && let Some(oldest) = self.recent.pop_front()
        {
            self.forget(oldest);
        }
    }

    /// Takes one occurrence of a token out of the window.
    fn forget(&mut self, id: u32) {
        if let Some(counts) = self.counts.get_mut(&id) {
            counts.recent -= 1;
            if counts.recent == 0 && counts.output == 0 {
                self.counts.remove(&id);
            }
        }
    }
}

/// Whether any penalty asks for tokens to be remembered.
pub(super) fn has_penalty(params: &SamplingParams) -> bool {
    params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0
}

/// Applies bias, then repetition, frequency and presence penalty. Every token is changed on its own, so their order does not matter.
pub(super) fn adjust(logits: &mut [f32], params: &SamplingParams, seen: &Seen) {
    for &(id, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
    if !has_penalty(params) {
        return;
    }
    for (&id, counts) in &seen.counts {
        let Some(logit) = logits.get_mut(id as usize) else {
            continue;
        };
        if counts.recent > 0 {
            let positive = *logit > 0.0;
            *logit = if positive {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
        }
        if counts.output > 0 {
            *logit -= params.frequency_penalty * counts.output as f32;
            *logit -= params.presence_penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adjusted(params: &SamplingParams, prompt: &[u32], output: &[u32]) -> Vec<f32> {
        let mut seen = Seen::default();
        prompt
            .iter()
            .for_each(|&id| seen.push(id, false, params.repetition_window));
        output
            .iter()
            .for_each(|&id| seen.push(id, true, params.repetition_window));
        let mut logits = vec![4.0, -4.0, 0.0, 1.0, f32::NEG_INFINITY];
        adjust(&mut logits, params, &seen);
        logits
    }

    const MASKED: f32 = f32::NEG_INFINITY;

    #[test]
    fn defaults_change_nothing() {
        assert_eq!(
            adjusted(&SamplingParams::default(), &[0, 1], &[2, 3, 4]),
            [4.0, -4.0, 0.0, 1.0, MASKED]
        );
    }

    #[test]
    fn repetition_counts_prompt_and_output_once() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            ..SamplingParams::default()
        };
        assert_eq!(adjusted(&params, &[0, 0, 4], &[1, 2, 1]), [2.0, -8.0, 0.0, 1.0, MASKED]);
    }

    #[test]
    fn repetition_looks_at_the_window_only() {
        let params = |window| SamplingParams {
            repetition_penalty: 2.0,
            repetition_window: Some(window),
            ..SamplingParams::default()
        };
        let tokens = |window| adjusted(&params(window), &[0, 3], &[1, 0]);
        assert_eq!(tokens(0), [4.0, -4.0, 0.0, 1.0, MASKED]);
        assert_eq!(tokens(1), [2.0, -4.0, 0.0, 1.0, MASKED]);
        assert_eq!(tokens(2), [2.0, -8.0, 0.0, 1.0, MASKED]);
        assert_eq!(tokens(3), [2.0, -8.0, 0.0, 0.5, MASKED]);
        assert_eq!(adjusted(&params(1), &[0, 0, 3], &[]), [4.0, -4.0, 0.0, 0.5, MASKED]);
    }

    #[test]
    fn presence_and_frequency_count_the_output_only() {
        let params = SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplingParams::default()
        };
        assert_eq!(
            adjusted(&params, &[0, 0, 1], &[1, 3, 1, 1]),
            [4.0, -5.25, 0.0, 0.25, MASKED]
        );
        let windowed = SamplingParams {
            repetition_window: Some(1),
            ..params
        };
        assert_eq!(
            adjusted(&windowed, &[0, 0, 1], &[1, 3, 1, 1]),
            [4.0, -5.25, 0.0, 0.25, MASKED]
        );
    }

    #[test]
    fn bias_comes_before_penalties() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 1.0,
            logit_bias: vec![(1, 6.0), (0, f32::NEG_INFINITY), (2, -3.0)],
            ..SamplingParams::default()
        };
        assert_eq!(adjusted(&params, &[2], &[0, 1]), [MASKED, 0.0, -6.0, 1.0, MASKED]);
    }

    #[test]
    fn tokens_that_leave_the_window_take_no_memory() {
        let mut seen = Seen::default();
        (0..1000).for_each(|id| seen.push(id, false, Some(10)));
        assert_eq!((seen.counts.len(), seen.recent.len()), (10, 10));
    }
}
