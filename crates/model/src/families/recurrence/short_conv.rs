//! What can differ between gated short convolutions.

use crate::families::{Bias, Name};

/// A gated short convolution, in layers that have its kernel.
#[derive(Clone, Copy, Debug)]
pub struct ShortConvFacts {
    /// B, C and x, one after the other.
    pub input: Name,
    pub conv: Name,
    pub output: Name,
    /// Of all three.
    pub bias: Bias,
}
