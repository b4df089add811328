//! How a model fits into a given amount of memory: planned before anything is loaded, from sizes alone.

use std::fmt;

use goldcrest_cpu::buffer::HUGE_PAGE_BYTES;
use goldcrest_cpu::{Budget, CpuError, CpuOptions, Sequences, StreamNeed, StreamOptions, Streamed};
use goldcrest_format::Checkpoint;
use goldcrest_model::plan::Plan;
use goldcrest_model::read::{SpecError, read_spec};

use crate::{Engine, EngineOptions};

/// What a process takes beside what its model names: program, threads, names of tensors.
const PROGRAM_BYTES: u64 = 48 << 20;
/// What a word of the vocabulary takes, with all that leads to it: at most 200 in vocabularies of 49,000 to 262,000 words.
const WORD_BYTES: u64 = 256;
/// What a matrix takes beside its elements: names, places, what is known of it. Mixtures have tens of thousands.
const MATRIX_BYTES: u64 = 1 << 10;

/// Rows of a call that are looked at, the largest first.
const ROWS: [usize; 8] = [4096, 2048, 1024, 512, 256, 128, 64, 32];

/// An engine's options, and what it takes of memory with them.
#[derive(Clone, Debug)]
pub struct Fit {
    pub options: EngineOptions,
    pub budget: Budget,
    /// Beside the budget: the program itself and its vocabulary.
    pub program: u64,
}

/// Why there are no options with which a model fits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// The files describe no model that can run here.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The sizes cannot be told.
    #[error(transparent)]
    Backend(#[from] CpuError),
    /// Even the least is more than there may be.
    #[error("{} are needed at least, and {limit} bytes may be taken: {least}", Mib(.least.sum()))]
    TooLittle {
        /// What may be taken.
        limit: u64,
        /// What is needed.
        least: Box<Fit>,
    },
}

/// Bytes as MiB, rounded up: what is told here may be typed in again.
pub struct Mib(pub u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0.div_ceil(1 << 20))
    }
}

impl Fit {
    /// With options as they are.
    ///
    /// # Errors
    /// [`FitError`], but [`FitError::TooLittle`].
    pub fn of(checkpoint: &Checkpoint, options: &EngineOptions, sequences: Sequences) -> Result<Fit, FitError> {
        let model = Model::open(checkpoint, options)?;
        let Some(streaming) = options.streaming else {
            return model.fit(*options, None, sequences);
        };
        let need = StreamNeed::of(&model.plan, checkpoint, streaming.streamed)?.ok_or(CpuError::NoExperts)?;
        need.check(streaming.bytes)?;
        model.fit(*options, Some(&need), sequences)
    }

    /// In at most `limit` bytes. Everything in memory where that fits, if need be with fewer rows a call than `options` say. Else experts
    /// are read when they are wanted, or where that is not enough all weights of products, and calls have more rows, so that a prompt
    /// reads each of them less often; `options` say by whom they are read and how they are kept.
    ///
    /// # Errors
    /// [`FitError`].
    pub fn within(
        limit: u64,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        sequences: Sequences,
    ) -> Result<Fit, FitError> {
        let model = Model::open(checkpoint, options)?;
        let options = EngineOptions {
            // Memory groups count it.
            spares_page_cache: true,
            ..*options
        };
        // A call has room for a row of each sequence.
        let fewest = ROWS[ROWS.len() - 1].min(options.max_rows).max(sequences.count);
        let rows = ROWS.into_iter().filter(|rows| *rows > fewest).chain([fewest]);
        let fewer = rows.clone().filter(|rows| *rows < options.max_rows);
        let with = |streaming, max_rows| EngineOptions {
            streaming,
            max_rows,
            ..options
        };
        let mut least = model.fit(with(None, fewest), None, sequences)?;
        for rows in [options.max_rows].into_iter().chain(fewer) {
            let resident = model.fit(with(None, rows), None, sequences)?;
            if resident.sum() <= limit {
                return Ok(resident);
            }
        }
        // What a token needs little of before what every token needs all of.
        for streamed in [Streamed::Experts, Streamed::All] {
            let Some(need) = StreamNeed::of(&model.plan, checkpoint, streamed)? else {
                continue;
            };
            let streaming = StreamOptions {
                streamed,
                bytes: need.least as usize,
                ..options.streaming.unwrap_or_default()
            };
            for rows in rows.clone() {
                let fit = model.fit(with(Some(streaming), rows), Some(&need), sequences)?;
                // Rows take memory from weights: no more than an eighth, but where there is no other way.
                let room = fit.room_for_weights(limit);
                let suits = rows <= sequences.capacity && fit.budget.scratch <= room / 8;
                if fit.sum() <= limit && (suits || rows == fewest) {
                    return Ok(fit.filled(limit, need));
                }
                if fit.sum() < least.sum() {
                    least = fit;
                }
            }
        }
        Err(FitError::TooLittle {
            limit,
            least: Box::new(least),
        })
    }

    /// What streamed weights may take under a limit: whole huge pages, as they lie in such.
    fn room_for_weights(&self, limit: u64) -> u64 {
        let room = limit.saturating_sub(self.sum() - self.budget.streamed);
        room - room % HUGE_PAGE_BYTES as u64
    }

    /// With streamed weights in all that is left.
    fn filled(mut self, limit: u64, need: StreamNeed) -> Fit {
        let room = self.room_for_weights(limit);
        if let Some(streaming) = &mut self.options.streaming {
            streaming.bytes = usize::try_from(room).unwrap_or(usize::MAX);
            self.budget.streamed = room.min(need.all);
        }
        self
    }

    /// Everything.
    pub fn sum(&self) -> u64 {
        self.budget.sum().saturating_add(self.program)
    }

    /// What takes memory, and how much.
    pub fn parts(&self) -> [(&'static str, u64); 8] {
        [
            ("weights", self.budget.weights),
            ("streamed weights", self.budget.streamed),
            ("their readers", self.budget.readers),
            ("keys, values and states", self.budget.state),
            ("calls", self.budget.scratch),
            ("logits", self.budget.logits),
            ("more while loading", self.budget.loading),
            ("program and vocabulary", self.program),
        ]
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts().into_iter().filter(|(_, bytes)| *bytes > 0);
        for (i, (name, bytes)) in parts.enumerate() {
            write!(f, "{}{} {name}", if i > 0 { " + " } else { "" }, Mib(bytes))?;
        }
        Ok(())
    }
}

/// What is known of a model without its weights.
struct Model<'a> {
    plan: Plan,
    checkpoint: &'a Checkpoint,
}

impl Model<'_> {
    fn open<'a>(checkpoint: &'a Checkpoint, options: &EngineOptions) -> Result<Model<'a>, FitError> {
        let spec = read_spec(checkpoint)?;
        let activations = options.activations.unwrap_or_else(|| Engine::suited_activations(&spec));
        Ok(Model {
            plan: Engine::plan_of(&spec, activations),
            checkpoint,
        })
    }

    /// `need` is that of [`EngineOptions::streaming`].
    fn fit(&self, options: EngineOptions, need: Option<&StreamNeed>, sequences: Sequences) -> Result<Fit, FitError> {
        let model = (&self.plan, &**self.checkpoint);
        let budget = Budget::of(model, &CpuOptions::from(&options), need, sequences)?;
        let [words, matrices] = [self.plan.vocabulary, self.plan.matrices.len()].map(|count| count as u64);
        Ok(Fit {
            options,
            budget,
            program: PROGRAM_BYTES + WORD_BYTES * words + MATRIX_BYTES * matrices,
        })
    }
}
