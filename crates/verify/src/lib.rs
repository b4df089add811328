//! Runs a golden case (`tests/goldens/README.md`) and judges the engine by the reference implementation's outputs.

mod case;
mod company;
mod perturb;
mod run;

pub use case::{Case, CaseError, Routes};
pub use company::logits_hash_in_company;
pub use perturb::PerturbError;
pub use run::{Options, Report, ResidualError, VerifyError, verify};
