//! The CPU back end: runs a plan on threads, with weights in panels and keys and values in pages.
//!
//! [`Cpu`] implements [`Backend`]. [`weights`] loads a checkpoint into panels, [`state`] holds what a sequence leaves behind, [`exec`] runs
//! the ops. Results depend on none of the choices made here: threads, instruction set, rows of a call (ARCHITECTURE.md, "Numbers").

mod budget;
pub mod buffer;
mod cgroup;
mod exec;
mod memory;
pub mod pool;
pub mod probe;
pub mod profile;
mod state;
mod streamed;
pub mod threads;
mod weights;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use goldcrest_format::{Checkpoint, DType, FormatError};
use goldcrest_kernels::{Isa, IsaError, Kernels, KvElement, RouteError};
use goldcrest_model::backend::{Backend, Batch, Interrupted, Probe, SavedSize};
use goldcrest_model::plan::{MatrixId, Plan};

pub use budget::{Budget, Sequences};
use buffer::{AllocError, SlabPool};
use exec::{Scratch, Step, TableRows, ahead_limits, steps};
pub use memory::{available_bytes, most_resident_bytes};
use pool::{Pool, PoolError};
pub use state::{State, kv_bytes_per_token};
pub use streamed::{BankCounters, Eviction, StreamCounters, StreamNeed, StreamOptions, Streamed};
use streamed::{WeightStore, streamed_matrices};
use weights::{CachedPages, Weights};

/// Choices of the CPU back end. Only `kv` changes results.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// `None`: as many as the machine has for us ([`threads::default_threads`]).
    pub threads: Option<usize>,
    /// `None`: the fastest that the machine has.
    pub isa: Option<Isa>,
    /// Element type of stored keys and values.
    pub kv: KvElement,
    /// Most rows of one forward call; scratch memory grows with it.
    pub max_rows: usize,
    /// `None`: all weights are loaded at once. Otherwise some are read when they are wanted.
    pub streaming: Option<StreamOptions>,
    /// Weights are read past the system's page cache. Always so with `streaming`.
    pub spares_page_cache: bool,
}

impl Default for CpuOptions {
    fn default() -> Self {
        CpuOptions {
            threads: None,
            isa: None,
            kv: KvElement::F16,
            max_rows: 512,
            streaming: None,
            spares_page_cache: false,
        }
    }
}

/// Why the back end could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    #[error(transparent)]
    Isa(#[from] IsaError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error("reading the tensor '{tensor}': {source}")]
    Weights { tensor: String, source: Box<FormatError> },
    #[error("the tensor '{tensor}' is missing")]
    MissingTensor { tensor: String },
    /// A router saw what has no order.
    #[error("row {row} of the call: {source}")]
    Route { row: usize, source: RouteError },
    /// A router that can serve no row.
    #[error("a router of the plan: {0}")]
    RouteRule(#[source] RouteError),
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// A dense model.
    #[error("the model has no experts: it is loaded whole, and memory for experts cannot be set")]
    NoExperts,
    /// Less memory for streamed weights than one expert takes, or whatever else is read at once.
    #[error(
        "{bytes} bytes are too little for weights that are read when they are wanted: the largest alone takes {least_bytes} bytes"
    )]
    StreamMemory { bytes: usize, least_bytes: usize },
    /// The system refused a thread.
    #[error("cannot start a thread that reads weights: {0}")]
    Reader(#[source] std::io::Error),
    /// A bug of this library.
    #[error("a thread that reads weights panicked")]
    ReaderPanicked,
}

/// The CPU as a [`Backend`].
pub struct Cpu {
    pool: Pool,
    kernels: Kernels,
    options: CpuOptions,
    /// Memory of the keys and values of all sequences.
    kv_memory: Arc<SlabPool>,
}

/// A plan with its weights, ready to run.
pub struct Program {
    plan: Arc<Plan>,
    /// How the plan's ops are run.
    steps: Vec<Step>,
    /// Of steps whose matrices are read when they are wanted: how far one may look ahead.
    ahead_limits: Option<Vec<usize>>,
    weights: Weights,
    /// Of a plan whose matrices are not all in `weights`.
    store: Option<WeightStore>,
    kv_element: KvElement,
    /// Reused by every call; calls of one program follow each other.
    scratch: Mutex<Scratch>,
}

impl Cpu {
    /// Starts the threads.
    pub fn new(options: CpuOptions) -> Result<Cpu, CpuError> {
        let kernels = match options.isa {
            Some(isa) => Kernels::new(isa)?,
            None => Kernels::best(),
        };
        let pool = Pool::new(options.threads.unwrap_or_else(threads::default_threads))?;
        Ok(Cpu {
            pool,
            kernels,
            options,
            kv_memory: Arc::default(),
        })
    }

    /// Weight types with an integer product; see [`goldcrest_model::PlanOptions::integer_types`].
    pub fn integer_types(dtype: DType) -> bool {
        weights::panel_type(dtype).is_some_and(|panel| panel.is_quantized())
    }

    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    pub fn isa(&self) -> Isa {
        self.kernels.isa()
    }
}

impl Program {
    /// Bytes of weights in memory, without those that are read when they are wanted.
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    /// Bytes in which calls have computed so far; at most [`Budget::scratch`].
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).bytes()
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What happened to weights that are read when they are wanted; none where all are loaded.
    pub fn stream_counters(&self) -> Option<StreamCounters> {
        self.store.as_ref().map(WeightStore::counters)
    }

    /// The ops that run as one, in order: the time of such a run is told after its first op. Before products, a norm and the packing of its
    /// rows are told by themselves.
    pub fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        // All but the last part of a step that was cut may have none.
        self.steps.iter().map(Step::ops).filter(|ops| !ops.is_empty())
    }
}

impl Backend for Cpu {
    type Program = Program;
    type State = State;
    type Error = CpuError;

    fn compile(&self, plan: Plan, checkpoint: &Checkpoint) -> Result<Program, CpuError> {
        let streamed = self.options.streaming.map(|options| options.streamed);
        let plan = Arc::new(plan);
        let steps = steps(&plan, StreamOptions::most_step_bytes(streamed));
        // First, as it reads nothing and says what cannot be.
        let store = self.options.streaming;
        let store = store.map(|options| WeightStore::new(&plan, &steps, checkpoint, options));
        let store = store.transpose()?;
        let streamed_ids = streamed_matrices(&plan, streamed);
        let is_streamed = |id: MatrixId| streamed_ids[id.0];
        let cached = CachedPages::of(&self.options);
        let weights = Weights::load(&plan, checkpoint, (&self.pool, cached), &is_streamed)?;
        let tables = TableRows::new(&plan, &is_streamed)?;
        let scratch = Scratch::new(&plan, self.options.max_rows, self.pool.threads(), tables)?;
        Ok(Program {
            ahead_limits: (streamed == Some(Streamed::All)).then(|| ahead_limits(&plan, &steps)),
            steps,
            plan,
            weights,
            store,
            kv_element: self.options.kv,
            scratch: Mutex::new(scratch),
        })
    }

    fn state(&self, program: &Program, capacity: usize) -> Result<State, CpuError> {
        Ok(State::new(&program.plan, self.options.kv, capacity, &self.kv_memory))
    }

    fn max_rows(&self, _program: &Program) -> usize {
        self.options.max_rows
    }

    fn forward(
        &self,
        program: &Program,
        batch: Batch,
        states: &mut [&mut State],
        logits: &mut [f32],
        probe: Option<&mut dyn Probe>,
    ) -> Result<(), CpuError> {
        exec::forward(self, program, batch, states, logits, probe)
    }

    fn length(&self, state: &State) -> usize {
        state.length()
    }

    fn rewind(&self, state: &mut State, length: usize) -> Result<(), usize> {
        state.rewind(length)
    }

    fn fork(&self, state: &State, capacity: usize) -> State {
        state.fork(capacity)
    }

    fn save<E>(&self, state: &State, write: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        state.save(write)
    }

    fn load<E: From<CpuError>>(
        &self,
        program: &Program,
        length: usize,
        capacity: usize,
        read: &mut dyn FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<State, E> {
        let mut state = self.state(program, capacity)?;
        state.load(length, read)?;
        Ok(state)
    }

    fn saved_size(&self, program: &Program, length: usize) -> Option<SavedSize> {
        State::saved_size(&program.plan, self.options.kv, length)
    }

    fn saturated(&self, state: &State) -> u64 {
        state.saturated()
    }

    fn state_bytes(&self, state: &State) -> usize {
        state.bytes()
    }

    fn visible(&self, state: &State, out: &mut Vec<u8>) {
        state.visible(out);
    }
}
