//! How a model fits into a given amount of memory: planned before anything is loaded, from sizes alone.

use std::fmt;

use goldcrest_cpu::{Budget, CpuError, CpuOptions, ExpertNeed, ExpertOptions, Sequences};
use goldcrest_format::Checkpoint;
use goldcrest_model::plan::Plan;
use goldcrest_model::read::{SpecError, read_spec};

use crate::{Engine, EngineOptions};

/// What a process takes beside what its model names: program, threads, names of tensors.
const PROGRAM_BYTES: u64 = 48 << 20;
/// What a word of the vocabulary takes, with all that leads to it: at most 200 in vocabularies of 49,000 to 262,000 words.
const WORD_BYTES: u64 = 256;

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
struct Mib(u64);

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
        Model::open(checkpoint, options)?.fit(*options, sequences)
    }

    /// In at most `limit` bytes. Everything in memory where that fits, if need be with fewer rows a call than `options` say. Else experts
    /// are read when they are wanted, and calls have more rows, so that a prompt reads each of them less often; `options` say by whom
    /// they are read and how they are kept.
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
        let with = |experts, max_rows| {
            let options = EngineOptions {
                max_rows,
                experts,
                // Memory groups count it.
                spares_page_cache: true,
                ..*options
            };
            model.fit(options, sequences)
        };
        // A call has room for a row of each sequence.
        let rows = ROWS.map(|rows| rows.max(sequences.count));
        let fewest = rows[rows.len() - 1];
        let fewer = rows.into_iter().filter(|rows| *rows < options.max_rows);
        for rows in [options.max_rows].into_iter().chain(fewer) {
            let resident = with(None, rows)?;
            if resident.sum() <= limit {
                return Ok(resident);
            }
        }
        let mut least = with(None, fewest)?;
        if let Some(need) = ExpertNeed::of(&model.plan, checkpoint)? {
            let experts = ExpertOptions {
                bytes: need.least as usize,
                ..options.experts.unwrap_or_default()
            };
            for rows in rows {
                let streamed = with(Some(experts), rows)?;
                // Rows take memory from experts: no more than an eighth, but where there is no other way.
                let room = streamed.room_for_experts(limit);
                let suits = rows <= sequences.capacity && streamed.budget.scratch <= room / 8;
                if streamed.sum() <= limit && (suits || rows == fewest) {
                    return Ok(streamed.filled(limit, need));
                }
                if streamed.sum() < least.sum() {
                    least = streamed;
                }
            }
        }
        Err(FitError::TooLittle {
            limit,
            least: Box::new(least),
        })
    }

    /// What experts may take under a limit.
    fn room_for_experts(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.sum() - self.budget.experts)
    }

    /// With experts in all that is left.
    fn filled(mut self, limit: u64, need: ExpertNeed) -> Fit {
        let room = self.room_for_experts(limit);
        if let Some(experts) = &mut self.options.experts {
            experts.bytes = usize::try_from(room).unwrap_or(usize::MAX);
            self.budget.experts = room.min(need.all);
        }
        self
    }

    /// Everything.
    pub fn sum(&self) -> u64 {
        self.budget.sum().saturating_add(self.program)
    }

    /// What takes memory, and how much.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("weights", self.budget.weights),
            ("experts", self.budget.experts),
            ("readers of experts", self.budget.readers),
            ("keys, values and states", self.budget.state),
            ("calls", self.budget.scratch),
            ("logits", self.budget.logits),
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

    fn fit(&self, options: EngineOptions, sequences: Sequences) -> Result<Fit, FitError> {
        let budget = Budget::of(&self.plan, self.checkpoint, &CpuOptions::from(&options), sequences)?;
        Ok(Fit {
            options,
            budget,
            program: PROGRAM_BYTES + WORD_BYTES * self.plan.vocabulary as u64,
        })
    }
}
