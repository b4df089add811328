//! Engines and sessions: the two nouns of Goldcrest.
//!
//! An [`Engine`] is a model ready to run: weights, plan, back end, immutable after it was opened. A [`Session`] is one sequence:
//! the ids fed so far and the state they produced. [`sample`] turns logits into tokens. This crate knows ids, not text.

mod capture;
mod counters;
mod digest;
mod engine;
mod fingerprint;
mod fit;
pub mod perplexity;
mod predict;
mod routers;
pub mod sample;
mod session;
pub mod steering;

pub use capture::{Capture, CaptureError, CaptureRequest, Captured};
pub use counters::{Counters, OpCounters, PhaseCounters};
pub use engine::{Engine, EngineOptions, OpenError};
pub use fit::{Fit, FitError, Mib};
pub use goldcrest_cpu::probe::{PROBE_BYTES, PeakProbe, Peaks};
pub use goldcrest_cpu::profile::Cost;
pub use goldcrest_cpu::{
    BankCounters, Budget, CpuError, Eviction, Sequences, StreamCounters, StreamOptions, Streamed, available_bytes,
    kv_bytes_per_token, most_resident_bytes,
};
pub use goldcrest_kernels::{Isa, KvElement};
pub use goldcrest_model::backend::{Interrupted, OpOutput, Probe, Span};
pub use goldcrest_model::plan::{Activations, Op, OpKind, Plan};
pub use goldcrest_model::spec::ModelSpec;
pub use predict::{ExpertShare, Predictor, Speeds};
pub use routers::{RouterCounters, RouterCounting};
pub use session::{
    BatchError, BatchFeed, Chunk, FeedError, LoadError, LoadProblem, RestoreError, RewindError, SaveError, Session,
    SessionError, Snapshot, SteerError, Want, Watch,
};
pub use steering::Steering;
