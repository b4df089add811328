//! What can differ between lightning attentions.

use crate::families::Name;

/// Lightning attention, in layers that have its projection.
#[derive(Clone, Copy, Debug)]
pub struct LightningFacts {
    pub names: LightningNames,
    /// Of the norm of outputs.
    pub norm_eps: f64,
}

#[derive(Clone, Copy, Debug)]
pub struct LightningNames {
    /// For each head its query, key and value.
    pub qkv: Name,
    pub norm: Name,
    pub gate: Name,
    pub output: Name,
}
