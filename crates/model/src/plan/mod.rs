//! A spec lowered to a flat list of ops over named buffers: what one forward call does, for any number of rows and sequences.
//!
//! The plan knows no device and no bytes. Its text ([`Plan`]'s `Display`) is a model's snapshot in tests.

mod attention;
mod build;
mod ffn;
mod op;
mod print;
mod recurrent;

use std::ops::Range;

use goldcrest_format::DType;

use crate::spec::{Gating, Matrix, ModelSpec, Norm, Rope, Vector};

pub use op::{
    Activations, BufferId, Decay, ExpertsId, Factors, KvId, MatrixId, NormId, Op, OpKind, RecurrentId, RopeId, Rows,
    VectorId,
};

/// Numeric choices of the user, fixed for an engine's life.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// How products with quantised weights are computed.
    pub activations: Activations,
    /// Weight types for which the backend has an integer product; others are decoded to f32 under either choice.
    pub integer_types: fn(DType) -> bool,
}

/// One model's forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub vocabulary: usize,
    pub hidden: usize,
    pub layers: usize,
    pub buffers: Vec<Buffer>,
    pub matrices: Vec<Matrix>,
    pub vectors: Vec<Vector>,
    pub norms: Vec<NormUse>,
    pub ropes: Vec<Rope>,
    pub kvs: Vec<Kv>,
    pub recurrents: Vec<Recurrent>,
    pub experts: Vec<ExpertBank>,
    pub ops: Vec<Op>,
    /// Where the logits of the wanted rows are after the last op.
    pub logits: BufferId,
}

/// Scratch for one value of every row of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub name: &'static str,
    /// f32 elements a row.
    pub width: usize,
    pub rows: Rows,
}

/// A norm with its vectors' places in [`Plan::vectors`].
#[derive(Clone, Debug, PartialEq)]
pub struct NormUse {
    pub norm: Norm,
    pub weight: Option<VectorId>,
    pub bias: Option<VectorId>,
}

/// Keys and values of one layer of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kv {
    pub heads: usize,
    pub key_dim: usize,
    /// Trailing dimensions of a key that keep their precision where keys are quantised: the rotated part of latent keys.
    pub plain_key_dims: usize,
    pub value_dim: usize,
    /// Positions that stay visible; `None`: all.
    pub window: Option<usize>,
}

/// Recurrent memory of one layer of a sequence: numbers that every row reads and replaces, zeros at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// f32 elements.
    pub len: usize,
}

/// The experts of a layer: matrices and biases in a row, one an expert.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertBank {
    pub count: usize,
    pub gating: Gating<ExpertLinears>,
    pub up: ExpertLinears,
    pub down: ExpertLinears,
    /// See [`crate::spec::Experts`].
    pub weigh_input: bool,
}

impl ExpertBank {
    /// Gate, up and down.
    pub fn projections(&self) -> impl Iterator<Item = &ExpertLinears> {
        self.gating.gate().into_iter().chain([&self.up, &self.down])
    }
}

/// One projection of every expert of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertLinears {
    /// Indices into [`Plan::matrices`].
    pub matrices: Range<usize>,
    /// Indices into [`Plan::vectors`]; empty without biases.
    pub biases: Range<usize>,
}

impl Plan {
    /// Lowers `spec`.
    pub fn new(spec: &ModelSpec, options: PlanOptions) -> Plan {
        build::build(spec, options)
    }

    /// Most positions of a sequence, where each has a learned row of a table.
    pub fn positions_max(&self) -> Option<usize> {
        let tables = self.ops.iter().filter_map(|op| match op {
            Op::EmbedPosition { table, .. } => Some(self.matrix(*table).outputs()),
            _ => None,
        });
        tables.min()
    }

    pub fn matrix(&self, id: MatrixId) -> &Matrix {
        &self.matrices[id.0]
    }

    pub fn vector(&self, id: VectorId) -> &Vector {
        &self.vectors[id.0]
    }

    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }
}
