//! See ARCHITECTURE.md.

pub mod sample;
