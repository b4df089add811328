//! The ops: few, unfused, each with one meaning. Backends may fuse runs of them where the bits stay the same.

use crate::spec::{Activation, KeySharing, PositionScale, RouteRule, Visible};

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
    RecurrentId,
    /// Index into [`super::Plan::experts`].
    ExpertsId
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

/// Factors of a row's columns: each covers an equal share of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factors {
    One(f32),
    /// The same for every row.
    Vector(VectorId),
    /// Each row's own.
    Buffer(BufferId),
}

/// By what a linear state decays before each row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// Head h of n by `exp(−scale · 2^(−8(h + 1)/n))`, the same for every row.
    Slopes { scale: f32 },
    /// Each row's own: one a head, or one a key dimension of each head.
    Buffer(BufferId),
}

/// One step. Shapes: a buffer is `[rows, width]`, a matrix `[outputs, inputs]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// `out = table[id] · scale`.
    Embed { table: MatrixId, scale: f32, out: BufferId },
    /// `out += table[position]`.
    EmbedPosition { table: MatrixId, out: BufferId },
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
    /// For each of `heads` heads a matrix of its own, `first` and those after it: `out[h] = W[h] · input[h]`.
    HeadMatMul {
        first: MatrixId,
        heads: usize,
        input: BufferId,
        out: BufferId,
    },
    /// Rotates `heads` heads by the row's position, in place.
    Rope {
        rope: RopeId,
        heads: usize,
        buffer: BufferId,
    },
    /// Multiplies the row by a factor of its position.
    ScaleByPosition { scale: PositionScale, buffer: BufferId },
    /// Stores the rows' keys and values at their positions.
    KvWrite {
        kv: KvId,
        key: BufferId,
        /// None where only keys are stored, those of an index.
        value: Option<BufferId>,
    },
    /// Chooses for each row, among the stored positions that it sees, as many as `chosen` has columns: those with the largest scores
    /// `Σ_h weights[h] · max(query[h] · key, 0)`, of equal ones the earlier. They stand there as whole numbers in rising order, with −1
    /// after the last; f32 holds those of every sequence that fits into a memory (up to 2²⁴).
    ChooseKeys {
        kv: KvId,
        visible: Visible,
        query: BufferId,
        weights: BufferId,
        chosen: BufferId,
    },
    /// Softmax attention of `heads` query heads over the stored positions.
    Attend {
        kv: KvId,
        heads: usize,
        visible: Visible,
        scale: f32,
        softcap: Option<f32>,
        sinks: Option<VectorId>,
        alibi: bool,
        /// Of the visible positions those that count, as [`Op::ChooseKeys`] writes them.
        chosen: Option<BufferId>,
        query: BufferId,
        out: BufferId,
    },
    /// Causal depthwise convolution over the last `kernel` rows, in place; `weight` is `[kernel, width]`.
    Conv {
        memory: RecurrentId,
        kernel: usize,
        weight: VectorId,
        bias: Option<VectorId>,
        buffer: BufferId,
    },
    /// For each of `heads` heads a matrix `S`: `S ← diag(decay)·S`, `S += key ⊗ v`, `out = Sᵀ·query`, where v is the value, or with
    /// `beta` the delta rule's `beta·(value − Sᵀ·key)`. A query and a key head serve several heads where there are fewer of them.
    LinearState {
        memory: RecurrentId,
        heads: usize,
        key_heads: usize,
        key_sharing: KeySharing,
        decay: Decay,
        beta: Option<BufferId>,
        query: BufferId,
        key: BufferId,
        value: BufferId,
        out: BufferId,
    },
    /// Mamba's selective scan over the channels of `x`; `rate` is `[state_dim, channels]`, `skip` one a channel.
    Scan {
        memory: RecurrentId,
        rate: VectorId,
        skip: VectorId,
        x: BufferId,
        dt: BufferId,
        b: BufferId,
        c: BufferId,
        out: BufferId,
    },
    /// Chooses some of `experts` for each row: ids (whole numbers) ascending, and their weights.
    Route {
        experts: ExpertsId,
        rule: RouteRule,
        correction: Option<VectorId>,
        expert_scale: Option<VectorId>,
        logits: BufferId,
        ids: BufferId,
        weights: BufferId,
    },
    /// `out = Σ weight · expert(input)` over each row's experts in rising id.
    Experts {
        experts: ExpertsId,
        activations: Activations,
        ids: BufferId,
        weights: BufferId,
        input: BufferId,
        out: BufferId,
    },
    /// `gate = activation(gate) · up`, or `gate = activation(gate)`.
    Activate {
        activation: Activation,
        gate: BufferId,
        up: Option<BufferId>,
    },
    /// `buffer = buffer · factors`.
    Scale { buffer: BufferId, factors: Factors },
    /// `x = min(max(x, low), high)`.
    Clamp { low: f32, high: f32, buffer: BufferId },
    /// `out = input`.
    Copy { input: BufferId, out: BufferId },
    /// The columns of `input` from `first` on, as many as `out` has.
    Columns {
        first: usize,
        input: BufferId,
        out: BufferId,
    },
    /// For each of `heads` heads: `out[h] = first[h] ‖ second[h]`.
    Concat {
        heads: usize,
        first: BufferId,
        second: BufferId,
        out: BufferId,
    },
    /// `out += input · scale`.
    Add { out: BufferId, input: BufferId, scale: f32 },
    /// `buffer += vector`, on every row.
    AddVector { vector: VectorId, buffer: BufferId },
    /// Copies the rows whose logits are wanted.
    Want { input: BufferId, out: BufferId },
    /// `x = cap · tanh(x / cap)`.
    Softcap { cap: f32, buffer: BufferId },
}

macro_rules! kinds {
    ($($kind:ident $name:literal),* $(,)?) => {
        /// What an op is, for counters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum OpKind { $($kind),* }

        impl OpKind {
            /// Every kind, in the order of their discriminants.
            pub const ALL: &[OpKind] = &[$(OpKind::$kind),*];

            pub fn name(self) -> &'static str {
                match self { $(OpKind::$kind => $name),* }
            }
        }

        impl Op {
            pub fn kind(&self) -> OpKind {
                match self { $(Op::$kind { .. } => OpKind::$kind),* }
            }
        }
    };
}

kinds! {
    Embed "embed",
    EmbedPosition "embed_position",
    Boundary "boundary",
    Norm "norm",
    MatMul "matmul",
    HeadMatMul "head_matmul",
    Rope "rope",
    ScaleByPosition "scale_by_position",
    KvWrite "kv_write",
    ChooseKeys "choose_keys",
    Attend "attend",
    Conv "conv",
    LinearState "linear_state",
    Scan "scan",
    Route "route",
    Experts "experts",
    Activate "activate",
    Scale "scale",
    Clamp "clamp",
    Copy "copy",
    Columns "columns",
    Concat "concat",
    Add "add",
    AddVector "add_vector",
    Want "want",
    Softcap "softcap",
}
