//! See ARCHITECTURE.md.

pub mod buffer;
pub mod pool;
pub mod threads;
