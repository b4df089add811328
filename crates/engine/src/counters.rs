//! Where time and bytes go: counted for each kind of op, apart for prefill and decode.

use std::time::{Duration, Instant};

use goldcrest_cpu::kv_bytes_per_token;
use goldcrest_kernels::KvElement;
use goldcrest_model::backend::{Interrupted, OpOutput, Probe, Span};
use goldcrest_model::plan::{Op, OpKind, Plan, Rows};

use crate::engine::Engine;

/// Counts of a session. Time and bytes of a call that it shared with others are those of the whole call.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Calls of several rows of the session.
    pub prefill: PhaseCounters,
    /// Calls of one row of it.
    pub decode: PhaseCounters,
}

/// Counts of one phase.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhaseCounters {
    /// Forward calls.
    pub calls: u64,
    /// Rows of the session.
    pub tokens: u64,
    /// By the discriminant of [`OpKind`].
    ops: [OpCounters; OpKind::ALL.len()],
}

/// Counts of one kind of op.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounters {
    /// Ops run.
    pub runs: u64,
    /// Wall time.
    pub time: Duration,
    /// Bytes of weights and of stored keys and values that were read or written, as stored.
    pub bytes: u64,
}

impl PhaseCounters {
    /// Counts of one kind of op.
    pub fn op(&self, kind: OpKind) -> OpCounters {
        self.ops[kind as usize]
    }

    /// Wall time of all ops.
    pub fn time(&self) -> Duration {
        self.ops.iter().map(|op| op.time).sum()
    }
}

impl Counters {
    /// Adds a call to which the session gave `rows`.
    pub(crate) fn add(&mut self, call: &CountingProbe, rows: usize) {
        let phase = match rows {
            1 => &mut self.decode,
            _ => &mut self.prefill,
        };
        phase.calls += 1;
        phase.tokens += rows as u64;
        for (sum, op) in phase.ops.iter_mut().zip(&call.ops) {
            sum.runs += op.runs;
            sum.time += op.time;
            sum.bytes += op.bytes;
        }
    }
}

/// Counts one forward call, and passes on to another probe.
pub(crate) struct CountingProbe<'a, 'p> {
    plan: &'a Plan,
    kv_element: KvElement,
    spans: &'a [Span],
    /// Of all sequences.
    rows: usize,
    wanted: usize,
    last: Instant,
    ops: [OpCounters; OpKind::ALL.len()],
    next: &'a mut Option<&'p mut dyn Probe>,
}

impl<'a, 'p> CountingProbe<'a, 'p> {
    pub fn new(engine: &'a Engine, spans: &'a [Span], wanted: usize, next: &'a mut Option<&'p mut dyn Probe>) -> Self {
        CountingProbe {
            plan: engine.plan(),
            kv_element: engine.options().kv,
            rows: spans.iter().map(|span| span.rows).sum(),
            spans,
            wanted,
            last: Instant::now(),
            ops: Default::default(),
            next,
        }
    }

    /// Bytes that an op moves: weights once, keys and values as each row sees them.
    fn bytes(&self, op: &Op) -> u64 {
        match *op {
            Op::Embed { table, .. } | Op::EmbedPosition { table, .. } => self.weight_bytes(table.0, self.rows),
            Op::MatMul { weight, out, .. } => {
                let idle = self.plan.buffer(out).rows == Rows::Wanted && self.wanted == 0;
                if idle {
                    0
                } else {
                    self.weight_bytes(weight.0, self.plan.matrix(weight).outputs())
                }
            }
            Op::HeadMatMul { first, heads, .. } => {
                let bytes = |matrix: usize| self.weight_bytes(matrix, self.plan.matrices[matrix].outputs());
                (first.0..first.0 + heads).map(bytes).sum()
            }
            Op::Experts { experts, ids, .. } => self.expert_bytes(experts.0, self.plan.buffer(ids).width),
            Op::LinearState { memory, .. } | Op::Scan { memory, .. } | Op::Conv { memory, .. } => {
                // Read and written once a row.
                (2 * self.rows * self.plan.recurrents[memory.0].len * size_of::<f32>()) as u64
            }
            Op::KvWrite { kv, .. } => self.position_bytes(kv.0) * self.rows as u64,
            Op::Attend { kv, .. } | Op::ChooseKeys { kv, .. } => {
                let window = self.plan.kvs[kv.0].window.unwrap_or(usize::MAX);
                let positions = self.spans.iter().flat_map(|span| span.start..span.start + span.rows);
                let seen: usize = positions.map(|position| window.min(position + 1)).sum();
                self.position_bytes(kv.0) * seen as u64
            }
            _ => 0,
        }
    }

    fn weight_bytes(&self, matrix: usize, rows: usize) -> u64 {
        let matrix = &self.plan.matrices[matrix];
        matrix.dtype.bytes(matrix.cols as u64).unwrap_or(0) * rows as u64
    }

    /// What the chosen experts of all rows weigh, if no two rows chose the same, and all experts if that is less.
    fn expert_bytes(&self, bank: usize, top_k: usize) -> u64 {
        let bank = &self.plan.experts[bank];
        let linears = bank.gating.gate().into_iter().chain([&bank.up, &bank.down]);
        let one: u64 = linears
            .map(|linears| {
                let matrix = linears.matrices.start;
                self.weight_bytes(matrix, self.plan.matrices[matrix].outputs())
            })
            .sum();
        one * bank.count.min(self.rows * top_k) as u64
    }

    fn position_bytes(&self, kv: usize) -> u64 {
        kv_bytes_per_token(&self.plan.kvs[kv], self.kv_element) as u64
    }
}

impl Probe for CountingProbe<'_, '_> {
    fn after_op(&mut self, index: usize, op: &Op, output: OpOutput) -> Result<(), Interrupted> {
        let now = Instant::now();
        let bytes = self.bytes(op);
        let counters = &mut self.ops[op.kind() as usize];
        counters.runs += 1;
        counters.time += now - self.last;
        counters.bytes += bytes;
        let passed_on = match &mut *self.next {
            None => Ok(()),
            Some(next) => next.after_op(index, op, output),
        };
        // What the other probe does is not the op's time.
        self.last = Instant::now();
        passed_on
    }
}
