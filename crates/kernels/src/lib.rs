//! The only SIMD crate of Goldcrest: every operation that decides a bit of a result on the CPU.
//!
//! - `scalar`: the oracle. One plain function per operation, without blocking or lanes.
//! - `vector`: a small trait over SIMD registers and its instances (plain Rust, AVX2, AVX-512, NEON).
//! - Every other module writes its algorithm once over that trait; [`Kernels`] runs it on the chosen [`Isa`].
//!
//! All instruction sets and the oracle give the same bits (NaNs count as one value); the tests compare them by
//! equality.

mod activation;
mod attention;
#[cfg(test)]
mod counts;
mod dispatch;
mod elementwise;
mod float16;
mod isa;
mod math;
mod matmul;
mod norm;
mod panel;
mod probe;
mod quantize;
mod recurrent;
mod rope;
mod rotation;
mod route;
pub mod scalar;
#[cfg(test)]
mod stamped;
mod sum_exp;
mod vector;

pub use activation::{Activation, GatedActivation, Xielu};
pub use attention::{
    Alibi, IndexQuery, KvElement, KvLayout, QueryRow, SEGMENT_POSITIONS, ScoreRule, SeenSlots, SlotSet, Visible,
    attention_state_len, choose_largest, clear_attention_states, visible_segments, visible_slots,
};
pub use dispatch::Kernels;
pub use elementwise::ScaledRows;
pub use isa::{Isa, IsaError};
pub use math::MathFunction;
pub use panel::{PANEL_ROWS, PanelType};
pub use quantize::{ActivationGroupMut, ActivationType, Activations, GROUP_ROWS_MAX, GroupRun, RUN_ROWS_MAX};
pub use recurrent::{CausalConv, Columns, ColumnsMut, Decay, LinearStep, ScanStep};
pub use route::{GroupLimit, GroupScore, Normalise, RouteError, RouteRule, Router, Scoring};
pub use sum_exp::exp_f64;
#[cfg(any(test, feature = "counting"))]
pub use vector::counted::count as count_operations;
pub use vector::prefetch;
