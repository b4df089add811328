//! The only SIMD crate of Goldcrest: every operation that decides a bit of a result on the CPU.
//!
//! - `scalar`: the oracle. One plain function per operation, without blocking or lanes.
//! - `vector`: a small trait over SIMD registers and its instances (plain Rust, AVX2, AVX-512).
//! - Every other module writes its algorithm once over that trait; [`Kernels`] runs it on the chosen [`Isa`].
//!
//! All instruction sets and the oracle give the same bits (NaNs count as one value); the tests compare them by equality.

mod dispatch;
mod float16;
mod isa;
mod matmul;
mod panel;
mod quantize;
mod vector;

pub use dispatch::Kernels;
pub use isa::{Isa, IsaError};
pub use panel::{PANEL_ROWS, PanelType};
pub use quantize::{ActivationGroup, ActivationGroupMut, ActivationType, Activations, GROUP_ROWS_MAX};
