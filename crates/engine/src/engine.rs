//! A model, opened.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use goldcrest_cpu::probe::{PeakProbe, Peaks};
use goldcrest_cpu::{Cpu, CpuError, CpuOptions, Program, StreamCounters, StreamOptions};
use goldcrest_format::{Checkpoint, FormatError};
use goldcrest_kernels::{Isa, KvElement};
use goldcrest_model::backend::Backend;
use goldcrest_model::plan::{Activations, Op};
use goldcrest_model::spec::{Matrix, Rope};
use goldcrest_model::{ModelSpec, Plan, PlanOptions, SpecError, read_spec};

use crate::digest::Bytes32;
use crate::fingerprint::fingerprint;
use crate::session::{Session, SessionError};

/// How an engine computes. `activations` and `kv` decide results; the rest decides only speed and memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineOptions {
    /// How products with quantised weights see their input. `None`: as suits the model ([`Engine::suited_activations`]).
    pub activations: Option<Activations>,
    /// Element type of stored keys and values.
    pub kv: KvElement,
    /// `None`: as many as the machine has for us.
    pub threads: Option<usize>,
    /// `None`: the fastest instruction set that the machine has.
    pub isa: Option<Isa>,
    /// Most rows of one forward call; a longer chunk becomes several.
    pub max_rows: usize,
    /// `None`: all weights are loaded at once. Otherwise some are read when they are wanted, and kept as far as there is room.
    pub streaming: Option<StreamOptions>,
    /// Weights are read past the system's page cache, whose pages count as the process's where memory is limited. Always so with
    /// `streaming`. The next start of the model is slower.
    pub spares_page_cache: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            activations: None,
            kv: KvElement::F16,
            threads: None,
            isa: None,
            max_rows: 512,
            streaming: None,
            spares_page_cache: false,
        }
    }
}

impl EngineOptions {
    /// The numbers that are compared with a reference: nothing is quantised that the file does not quantise.
    pub fn exact() -> Self {
        EngineOptions {
            activations: Some(Activations::F32),
            kv: KvElement::F32,
            ..EngineOptions::default()
        }
    }
}

impl From<&EngineOptions> for CpuOptions {
    fn from(options: &EngineOptions) -> CpuOptions {
        CpuOptions {
            threads: options.threads,
            isa: options.isa,
            kv: options.kv,
            max_rows: options.max_rows,
            streaming: options.streaming,
            spares_page_cache: options.spares_page_cache,
        }
    }
}

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The files describe no model that can run here.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The back end could not load it.
    #[error(transparent)]
    Backend(#[from] CpuError),
    /// The files cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A forward call needs at least one row.
    #[error("max_rows is 0: a forward call needs at least one row")]
    NoRows,
}

/// A model ready to run. Clones share everything.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    spec: ModelSpec,
    backend: Cpu,
    program: Program,
    options: EngineOptions,
    activations: Activations,
    fingerprint: Bytes32,
    /// Reused: logits of a call for several sessions, before each gets its own.
    gathered_logits: Mutex<Vec<f32>>,
}

/// Models below this see their activations in f32 unless told otherwise.
const SMALL_MODEL_BYTES: u64 = 256 << 20;

impl Engine {
    /// Reads the model in `checkpoint` and loads its weights.
    pub fn open(checkpoint: &Checkpoint, options: EngineOptions) -> Result<Engine, OpenError> {
        if options.max_rows == 0 {
            return Err(OpenError::NoRows);
        }
        let spec = read_spec(checkpoint)?;
        let backend = Cpu::new(CpuOptions::from(&options))?;
        let activations = options.activations.unwrap_or_else(|| Self::suited_activations(&spec));
        let program = backend.compile(Self::plan_of(&spec, activations), checkpoint)?;
        let fingerprint = fingerprint(&spec, checkpoint)?;
        Ok(Engine {
            inner: Arc::new(Inner {
                spec,
                backend,
                program,
                options,
                activations,
                fingerprint,
                gathered_logits: Mutex::default(),
            }),
        })
    }

    /// What [`EngineOptions::activations`] is where nobody says: int8, but f32 in models of less than 256 MiB of weights.
    ///
    /// Small models are the ones whose answers 8 bits change: over 640 tokens the mean divergence from f32 and the share of equal best
    /// tokens are 2.7e-3 and 96.4 % for SmolLM2 135M, 1.9e-3 and 97.0 % for Gemma 3 270M, 2.3e-4 and 99.7 % for Qwen 2.5 0.5B. The price
    /// on AVX2: 10 to 20 % of decode, 60 % of prefill.
    pub fn suited_activations(spec: &ModelSpec) -> Activations {
        let plan = Self::plan_of(spec, Activations::Q8);
        let bytes = |matrix: &Matrix| {
            matrix
                .dtype
                .bytes((matrix.outputs() * matrix.cols) as u64)
                .unwrap_or(u64::MAX)
        };
        let weight_bytes = plan.matrices.iter().map(bytes).fold(0, u64::saturating_add);
        if weight_bytes < SMALL_MODEL_BYTES {
            Activations::F32
        } else {
            Activations::Q8
        }
    }

    /// The plan that [`Engine::open`] would run, without loading anything.
    pub fn plan_of(spec: &ModelSpec, activations: Activations) -> Plan {
        Plan::new(
            spec,
            PlanOptions {
                activations,
                integer_types: Cpu::integer_types,
            },
        )
    }

    /// An empty sequence of at most `capacity` positions.
    pub fn session(&self, capacity: usize) -> Result<Session, SessionError> {
        Session::new(self.clone(), capacity)
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.inner.spec
    }

    /// What it runs.
    pub fn plan(&self) -> &Plan {
        self.inner.program.plan()
    }

    /// As it was opened.
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// How products with quantised weights see their input.
    pub fn activations(&self) -> Activations {
        self.inner.activations
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.inner.backend.threads()
    }

    /// The instruction set that computes.
    pub fn isa(&self) -> Isa {
        self.inner.backend.isa()
    }

    /// Bytes of weights in memory.
    pub fn weight_bytes(&self) -> usize {
        self.inner.program.weight_bytes()
    }

    /// Bytes in which calls have computed so far.
    pub fn scratch_bytes(&self) -> usize {
        self.inner.program.scratch_bytes()
    }

    /// What happened to weights that are read when they are wanted; none where all are loaded.
    pub fn stream_counters(&self) -> Option<StreamCounters> {
        self.inner.program.stream_counters()
    }

    /// Type and shape of the matrices of an op of the plan, in words; none for an op without.
    pub fn weights_of(&self, op: &Op) -> Option<String> {
        self.program().weights_of(op)
    }

    /// The ops of the plan that run as one, in order. Counters have the time of such a run at its first op; where that is a norm, the time
    /// of the products at the first of these.
    pub fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        self.program().steps()
    }

    /// A probe of what the machine can do on the threads of this engine, to be used with no other.
    ///
    /// # Errors
    /// [`CpuError::Alloc`]: there is no memory for it.
    pub fn peak_probe(&self) -> Result<PeakProbe, CpuError> {
        PeakProbe::new(self.backend())
    }

    /// What the machine can do right now; no session may be fed meanwhile.
    ///
    /// # Errors
    /// [`CpuError::Pool`]: a session is being fed.
    pub fn measure_peaks(&self, probe: &mut PeakProbe) -> Result<Peaks, CpuError> {
        probe.measure(self.backend())
    }

    /// Whether both are clones of one engine.
    pub(crate) fn is(&self, other: &Engine) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether sessions of other capacities give other numbers: rotations of some models depend on how long a sequence may become.
    pub(crate) fn capacity_decides_bits(&self) -> bool {
        self.plan().ropes.iter().any(Rope::depends_on_length)
    }

    /// Which model it is.
    pub(crate) fn fingerprint(&self) -> &Bytes32 {
        &self.inner.fingerprint
    }

    /// Whatever it holds is of no use: a call that panicked may have left anything.
    pub(crate) fn gathered_logits(&self) -> MutexGuard<'_, Vec<f32>> {
        let gathered = self.inner.gathered_logits.lock();
        gathered.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn backend(&self) -> &Cpu {
        &self.inner.backend
    }

    pub(crate) fn program(&self) -> &Program {
        &self.inner.program
    }
}
