//! What a program takes of memory, known before anything is loaded.

use goldcrest_format::TensorFiles;
use goldcrest_model::plan::{MatrixId, Plan};

use crate::exec::{Calls, TableRows, most_scratch_bytes};
use crate::pool::{MAX_THREADS, PoolError};
use crate::state::State;
use crate::streamed::{StreamNeed, streamed_matrices};
use crate::threads::default_threads;
use crate::weights::{CachedPages, Weights, load};
use crate::{CpuError, CpuOptions};

/// Most bytes of each kind that a program and its sequences take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Matrices and vectors that are in memory from the start to the end.
    pub weights: u64,
    /// Weights that are in memory at a time, of those that are read when they are wanted.
    pub streamed: u64,
    /// What these are read into.
    pub readers: u64,
    /// Keys and values, and recurrent memories.
    pub state: u64,
    /// What a call computes on the way to its logits.
    pub scratch: u64,
    /// Those of the last token of each sequence.
    pub logits: u64,
    /// What weights are read into while they are loaded, beyond all that is not there yet then.
    pub loading: u64,
}

/// Sequences that live at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequences {
    pub count: usize,
    /// Most positions of each.
    pub capacity: usize,
}

impl Budget {
    /// All of them.
    pub fn sum(&self) -> u64 {
        let Budget {
            weights,
            streamed,
            readers,
            state,
            scratch,
            logits,
            loading,
        } = *self;
        [weights, streamed, readers, state, scratch, logits, loading]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// What a program of `plan` takes with these options; `need` is that of [`CpuOptions::streaming`]. Reads no weights.
    ///
    /// # Errors
    /// [`CpuError::Pool`]: there cannot be so many threads; [`CpuError::MissingTensor`].
    pub fn of(
        (plan, files): (&Plan, &TensorFiles),
        options: &CpuOptions,
        need: Option<&StreamNeed>,
        Sequences { count, capacity }: Sequences,
    ) -> Result<Budget, CpuError> {
        let threads = options.threads.unwrap_or_else(default_threads);
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(PoolError::ThreadCount { threads }.into());
        }
        let streamed = streamed_matrices(plan, options.streaming.map(|options| options.streamed));
        let is_streamed = |id: MatrixId| streamed[id.0];
        let calls = Calls {
            max_rows: options.max_rows,
            threads,
            capacity,
            kv: options.kv,
        };
        // A row of each sequence; of several once more, before each gets its own.
        let rows = if count > 1 { count.saturating_mul(2) } else { 1 };
        let logits = rows.saturating_mul(plan.vocabulary).saturating_mul(size_of::<f32>());
        let mut budget = Budget {
            weights: Weights::bytes_of(plan, &is_streamed) as u64,
            state: State::most_bytes(plan, options.kv, capacity, options.max_rows).saturating_mul(count) as u64,
            scratch: most_scratch_bytes(plan, calls) as u64,
            logits: logits as u64,
            ..Budget::default()
        };
        if let (Some(options), Some(need)) = (options.streaming, need) {
            budget.streamed = need.all.min(options.bytes as u64);
            budget.readers = need.reader.saturating_mul(options.readers.max(1) as u64);
            budget.readers += TableRows::most_bytes(plan, &is_streamed) as u64;
        }
        let cached = CachedPages::of(options);
        let loading = load::most_bytes((plan, files), &is_streamed, cached)?.saturating_mul(threads);
        budget.loading = (loading as u64).saturating_sub(budget.sum() - budget.weights);
        Ok(budget)
    }
}
