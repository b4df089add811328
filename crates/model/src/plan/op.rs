//! The ops: few, unfused, each with one meaning. Backends may fuse runs of them where the bits stay the same.

use crate::spec::Activation;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub usize);
    )*};
}

ids! {
    /// Index into [`super::Plan::buffers`].
    BufferId,
    /// Index into [`super::Plan::matrices`].
    MatrixId,
    /// Index into [`super::Plan::vectors`].
    VectorId,
    /// Index into [`super::Plan::norms`].
    NormId,
    /// Index into [`super::Plan::ropes`].
    RopeId,
    /// Index into [`super::Plan::kvs`].
    KvId,
    /// Index into [`super::Plan::recurrents`].
    RecurrentId
}

/// Which rows of a call a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    All,
    /// Those whose logits are wanted.
    Wanted,
}

/// How a product sees its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activations {
    /// Quantised to int8 in blocks of 32; block dots are exact integers.
    Q8,
    /// As it is; the weight is decoded to f32.
    F32,
}

/// One step. Shapes: a buffer is `[rows, width]`, a matrix `[outputs, inputs]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// `out = table[id] · scale`.
    Embed { table: MatrixId, scale: f32, out: BufferId },
    /// The residual stream enters layer `layer` here (or, after the last one, the final norm): the place of taps.
    Boundary { layer: usize, stream: BufferId },
    /// `out = norm(input)`, on each of `groups` equal parts of the row.
    Norm {
        norm: NormId,
        groups: usize,
        input: BufferId,
        out: BufferId,
    },
    /// `out = W · input + bias`.
    MatMul {
        weight: MatrixId,
        bias: Option<VectorId>,
        activations: Activations,
        input: BufferId,
        out: BufferId,
    },
    /// Rotates `heads` heads by the row's position, in place.
    Rope {
        rope: RopeId,
        heads: usize,
        buffer: BufferId,
    },
    /// Stores the rows' keys and values at their positions.
    KvWrite { kv: KvId, key: BufferId, value: BufferId },
    /// Softmax attention of `heads` query heads over the stored positions.
    Attend {
        kv: KvId,
        heads: usize,
        scale: f32,
        softcap: Option<f32>,
        query: BufferId,
        out: BufferId,
    },
    /// `gate = activation(gate) · up`.
    Activate {
        activation: Activation,
        gate: BufferId,
        up: BufferId,
    },
    /// `stream += input`.
    Add { stream: BufferId, input: BufferId },
    /// Copies the rows whose logits are wanted.
    Want { input: BufferId, out: BufferId },
    /// `x = cap · tanh(x / cap)`.
    Softcap { cap: f32, buffer: BufferId },
}

/// What an op is, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    Embed,
    Boundary,
    Norm,
    MatMul,
    Rope,
    KvWrite,
    Attend,
    Activate,
    Add,
    Want,
    Softcap,
}

impl OpKind {
    /// Every kind, in the order of their discriminants.
    pub const ALL: [OpKind; 11] = [
        OpKind::Embed,
        OpKind::Boundary,
        OpKind::Norm,
        OpKind::MatMul,
        OpKind::Rope,
        OpKind::KvWrite,
        OpKind::Attend,
        OpKind::Activate,
        OpKind::Add,
        OpKind::Want,
        OpKind::Softcap,
    ];

    pub fn name(self) -> &'static str {
        match self {
            OpKind::Embed => "embed",
            OpKind::Boundary => "boundary",
            OpKind::Norm => "norm",
            OpKind::MatMul => "matmul",
            OpKind::Rope => "rope",
            OpKind::KvWrite => "kv_write",
            OpKind::Attend => "attend",
            OpKind::Activate => "activate",
            OpKind::Add => "add",
            OpKind::Want => "want",
            OpKind::Softcap => "softcap",
        }
    }
}

impl Op {
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Embed { .. } => OpKind::Embed,
            Op::Boundary { .. } => OpKind::Boundary,
            Op::Norm { .. } => OpKind::Norm,
            Op::MatMul { .. } => OpKind::MatMul,
            Op::Rope { .. } => OpKind::Rope,
            Op::KvWrite { .. } => OpKind::KvWrite,
            Op::Attend { .. } => OpKind::Attend,
            Op::Activate { .. } => OpKind::Activate,
            Op::Add { .. } => OpKind::Add,
            Op::Want { .. } => OpKind::Want,
            Op::Softcap { .. } => OpKind::Softcap,
        }
    }
}
