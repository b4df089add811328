//! The oracle: one plain function per operation, one value or row at a time, without lanes or blocking.
//!
//! These functions fix the bits; the tests compare every instruction set with them by equality, and them with f64.

pub mod activation;
pub mod attention;
pub mod math;
pub mod matmul;
pub mod norm;
pub mod recurrent;
pub mod rope;
pub mod rotation;
