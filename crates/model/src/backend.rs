//! What runs a plan. One engine has one backend; the CPU is one, a GPU another.

use std::ops::Range;
use std::sync::Arc;

use goldcrest_format::Checkpoint;

use crate::plan::{Op, Plan};

/// Rows of one call: consecutive parts, each for one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// In the order of the states passed beside it.
    pub parts: &'a [Part<'a>],
}

/// Consecutive tokens of one sequence, which follow its committed length.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Token ids, each below the plan's vocabulary.
    pub ids: &'a [u32],
    /// Ascending indices into `ids` of the rows whose logits are wanted.
    pub wanted: &'a [usize],
    /// What is done to its residual stream.
    pub steering: Option<&'a StreamSteps>,
}

/// Steps for each boundary of the residual stream, [`Op::Boundary`]'s `layer` being the index; boundaries beyond the last have none.
pub type StreamSteps = [Vec<StreamStep>];

/// One step on a row x `[hidden]` of the residual stream, in f32. Units are vectors of length 1.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamStep {
    /// x ← fma(scale, vector, x)
    Add { vector: Arc<[f32]>, scale: f32 },
    /// x ← fma(−(scale · c), unit, x) where c = x · unit: at scale 1 nothing of the direction is left.
    Ablate { unit: Arc<[f32]>, scale: f32 },
    /// x ← fma(clamp(c, min, max) − c, unit, x) where c = x · unit, if c is not between the two.
    Clamp { unit: Arc<[f32]>, min: f32, max: f32 },
    /// x ← x · (before / after), the lengths of the row before the first step of this boundary and now, if that is finite and they differ.
    Renorm,
}

impl<'a> Batch<'a> {
    /// The parts, each with its rows of the call.
    pub fn part_rows(self) -> impl Iterator<Item = (Range<usize>, &'a Part<'a>)> {
        let mut first = 0;
        self.parts.iter().map(move |part| {
            let rows = first..first + part.ids.len();
            first = rows.end;
            (rows, part)
        })
    }

    pub fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.ids.len()).sum()
    }

    pub fn wanted(&self) -> usize {
        self.parts.iter().map(|part| part.wanted.len()).sum()
    }
}

/// Consecutive rows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the sequence among those that are fed together.
    pub feed: usize,
    /// Position of the first row in its sequence.
    pub start: usize,
    pub rows: usize,
}

/// Looks on while a call runs, after each op: counters, capture, injected failures. A call without one pays nothing.
pub trait Probe {
    /// Told before each call whose rows it has, in the order of the rows; sequences without a row may be left out.
    fn before_call(&mut self, _spans: &[Span]) {}

    /// Told when the rows are laid out, right before the first op.
    fn before_ops(&mut self) {}

    /// `output` is what the op left, where it is of interest. An error ends the call, and nothing of it stays.
    fn after_op(&mut self, index: usize, op: &Op, output: OpOutput) -> Result<(), Interrupted>;
}

/// What an op left, for all rows of the call.
#[derive(Clone, Copy, Debug)]
pub enum OpOutput<'a> {
    /// Of no interest.
    Nothing,
    /// After [`Op::Boundary`]: the residual stream, `[rows, hidden]`, steered where it is.
    Stream(&'a [f32]),
    /// After [`Op::Route`]: the chosen experts, ids rising, and their weights, `[rows, top_k]` each.
    Routes { ids: &'a [f32], weights: &'a [f32] },
}

/// A probe ended the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the forward call was interrupted after op {op}")]
pub struct Interrupted {
    pub op: usize,
}

/// The records of a saved state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedSize {
    pub records: u64,
    /// Of all records together.
    pub bytes: u64,
}

/// Runs plans. A program is immutable and shared; a state belongs to one sequence.
pub trait Backend {
    type Program;
    type State;
    type Error: std::error::Error + Send + Sync + 'static;

    /// Loads the plan's weights and prepares everything that does not depend on a sequence.
    fn compile(&self, plan: Plan, checkpoint: &Checkpoint) -> Result<Self::Program, Self::Error>;

    /// The empty state of a sequence of at most `capacity` positions.
    fn state(&self, program: &Self::Program, capacity: usize) -> Result<Self::State, Self::Error>;

    /// Most rows of one call.
    fn max_rows(&self, program: &Self::Program) -> usize;

    /// Feeds the batch and commits it: `logits` receives `[wanted rows, vocabulary]`, and each state grows by its part. On an error no
    /// state has changed. The caller has checked ids, capacities and lengths.
    fn forward(
        &self,
        program: &Self::Program,
        batch: Batch,
        states: &mut [&mut Self::State],
        logits: &mut [f32],
        probe: Option<&mut dyn Probe>,
    ) -> Result<(), Self::Error>;

    /// Positions committed.
    fn length(&self, state: &Self::State) -> usize;

    /// Takes the state back to `length` committed positions, at most as many as it has. 0 is always possible. Returns the shortest length
    /// but 0 that it can still go back to if that is more, and changes nothing then.
    fn rewind(&self, state: &mut Self::State, length: usize) -> Result<(), usize>;

    /// A second state at the same length, of a sequence of at most `capacity` positions. Both go their own ways from there on, and share
    /// memory as far as they can.
    fn fork(&self, state: &Self::State, capacity: usize) -> Self::State;

    /// Hands `write` the records that [`Backend::load`] makes the state from.
    fn save<E>(&self, state: &Self::State, write: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E>;

    /// The state of `length` of at most `capacity` positions whose records, the same ones in the same order, `read` fills in. The caller
    /// has found them whole.
    fn load<E: From<Self::Error>>(
        &self,
        program: &Self::Program,
        length: usize,
        capacity: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self::State, E>;

    /// The records of a state of `length` positions, a number that nobody has vouched for. `None`: more than can be.
    fn saved_size(&self, program: &Self::Program, length: usize) -> Option<SavedSize>;

    /// Numbers of keys and values that were too large for the element type and were stored as its largest.
    fn saturated(&self, state: &Self::State) -> u64;

    /// Bytes of memory the state holds, those that it shares with others included.
    fn state_bytes(&self, state: &Self::State) -> usize;

    /// Appends everything that future tokens can see, in an order that does not depend on how the state came about.
    fn visible(&self, state: &Self::State, out: &mut Vec<u8>);
}
