//! What can differ between delta nets. Sizes are those of the tensors, beside the number of key heads.

use crate::families::Name;
use crate::read::Key;
use crate::spec::{Activation, KeySharing};

/// A gated delta net, in layers that have decay rates.
#[derive(Clone, Copy, Debug)]
pub struct DeltaFacts {
    pub names: DeltaNames,
    /// Heads of queries and keys; absent: as many as of values.
    pub key_heads: Key,
    /// β is doubled, so that a state can change its sign, unless the configuration says false here.
    pub double_beta: Option<Key>,
    /// Of the norm of outputs; `None`: that of all norms.
    pub norm_eps: Option<f64>,
    pub gate_activation: Activation,
    /// How GGUF files order the heads of values. Checkpoints have those together that share a key.
    pub gguf_sharing: KeySharing,
}

/// Some projections lie together in one matrix, which is looked for first.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNames {
    /// For each key head its query, its key, and the values and gates that share them.
    pub qkvz: Name,
    /// Query, key and value one after the other.
    pub qkv: Name,
    pub query: Name,
    pub key: Name,
    pub value: Name,
    /// Tensors whose channels, one tensor's after the other's, are those of query, key and value.
    pub convs: &'static [Name],
    /// For each key head β and the decays of the heads that share it.
    pub beta_decay: Name,
    pub beta: Name,
    /// Several: low rank.
    pub decay: &'static [Name],
    /// Added to the decays, with its last part.
    pub offset: Name,
    /// With its last part. Checkpoints hold A of `−exp(A)`, GGUF files the whole.
    pub rate: Name,
    pub norm: Name,
    /// Several: low rank.
    pub gate: &'static [Name],
    pub output: Name,
}
