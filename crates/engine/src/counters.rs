//! Where time, bytes and operations go: counted for each op, apart for prefill and decode.

use std::time::{Duration, Instant};

use goldcrest_cpu::Program;
use goldcrest_cpu::profile::{CallShape, Chosen, Cost};
use goldcrest_model::backend::{Interrupted, OpOutput, Probe, Span};
use goldcrest_model::plan::{ExpertsId, Op, OpKind, Plan};

/// Counts of a session. Time and cost of a call that it shared with others are those of the whole call.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Calls of several rows of the session.
    pub prefill: PhaseCounters,
    /// Calls of one row of it.
    pub decode: PhaseCounters,
}

/// Counts of one phase.
#[derive(Clone, Debug, Default)]
pub struct PhaseCounters {
    /// Forward calls.
    pub calls: u64,
    /// Rows of the session.
    pub tokens: u64,
    /// Wall time of the calls: that of the ops, and what is done before, between and after them.
    pub wall: Duration,
    /// For each op of the plan; empty before the first call.
    ops: Vec<(OpKind, OpCounters)>,
    /// See [`PhaseCounters::chosen`].
    chosen: Vec<Vec<u64>>,
}

/// Counts of one op, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounters {
    /// Ops run.
    pub runs: u64,
    /// Wall time.
    pub time: Duration,
    /// What they moved and did.
    pub cost: Cost,
}

impl std::ops::AddAssign for OpCounters {
    fn add_assign(&mut self, other: OpCounters) {
        self.runs += other.runs;
        self.time += other.time;
        self.cost += other.cost;
    }
}

impl PhaseCounters {
    /// Counts of all ops of one kind.
    pub fn op(&self, kind: OpKind) -> OpCounters {
        sum(self.ops.iter().filter(|(of, _)| *of == kind))
    }

    /// Counts of all ops.
    pub fn all(&self) -> OpCounters {
        sum(self.ops.iter())
    }

    /// Rows of the calls that chose each expert, by layer with experts; none before the first call.
    pub fn chosen(&self) -> &[Vec<u64>] {
        &self.chosen
    }

    /// Counts of each op of the plan, in its order; none before the first call.
    pub fn ops(&self) -> impl Iterator<Item = OpCounters> {
        self.ops.iter().map(|(_, op)| *op)
    }
}

fn sum<'a>(ops: impl Iterator<Item = &'a (OpKind, OpCounters)>) -> OpCounters {
    ops.fold(OpCounters::default(), |mut sum, (_, op)| {
        sum += *op;
        sum
    })
}

impl Counters {
    /// Adds a call that is over, to which the session gave `rows`.
    pub(crate) fn add(&mut self, call: &CountedCall, rows: usize) {
        let phase = match rows {
            1 => &mut self.decode,
            _ => &mut self.prefill,
        };
        phase.calls += 1;
        phase.tokens += rows as u64;
        phase.wall += call.wall;
        if phase.ops.is_empty() {
            phase.ops = call
                .ops
                .iter()
                .map(|(kind, _)| (*kind, OpCounters::default()))
                .collect();
            phase.chosen = call.chosen.iter().map(|rows| vec![0; rows.len()]).collect();
        }
        for ((_, sum), (_, op)) in phase.ops.iter_mut().zip(&call.ops) {
            *sum += *op;
        }
        add_all(&mut phase.chosen, &call.chosen);
    }
}

/// Adds rows that chose each expert, by layer.
pub(crate) fn add_all(sums: &mut [Vec<u64>], chosen: &[Vec<u64>]) {
    let pairs = sums.iter_mut().flatten().zip(chosen.iter().flatten());
    pairs.for_each(|(sum, rows)| *sum += rows);
}

/// A call that is over.
pub(crate) struct CountedCall {
    wall: Duration,
    ops: Vec<(OpKind, OpCounters)>,
    chosen: Vec<Vec<u64>>,
}

/// Times the ops of one forward call, and passes on to another probe. What they cost is found when the call is over.
pub(crate) struct CountingProbe<'a, 'p> {
    plan: &'a Plan,
    /// Of each op.
    times: Vec<Duration>,
    /// Of each router, in the order of the plan.
    choices: Vec<Chosen>,
    /// Rows that chose each expert, by layer with experts.
    chosen: Vec<Vec<u64>>,
    started: Instant,
    last: Instant,
    /// Time of the other probe, which is not the call's.
    elsewhere: Duration,
    next: &'a mut Option<&'p mut dyn Probe>,
}

impl<'a, 'p> CountingProbe<'a, 'p> {
    /// The call is taken to start now.
    pub fn new(plan: &'a Plan, next: &'a mut Option<&'p mut dyn Probe>) -> Self {
        let times = vec![Duration::ZERO; plan.ops.len()];
        let choices = Vec::with_capacity(plan.experts.len());
        let chosen = plan.experts.iter().map(|bank| vec![0; bank.count]).collect();
        let started = Instant::now();
        CountingProbe {
            plan,
            times,
            choices,
            chosen,
            started,
            last: started,
            elsewhere: Duration::ZERO,
            next,
        }
    }

    /// To be called when the call has succeeded. `wanted`: rows whose logits were wanted.
    pub fn finish(self, program: &Program, spans: &[Span], wanted: usize) -> CountedCall {
        let wall = self.started.elapsed().saturating_sub(self.elsewhere);
        let mut choices = self.choices.into_iter();
        let mut shape = CallShape {
            spans,
            wanted,
            chosen: Chosen::default(),
        };
        let ops = self.plan.ops.iter().zip(self.times).map(|(op, time)| {
            if let Op::Route { .. } = op {
                shape.chosen = choices.next().unwrap_or_default();
            }
            let cost = program.cost(op, &shape);
            (op.kind(), OpCounters { runs: 1, time, cost })
        });
        CountedCall {
            wall,
            ops: ops.collect(),
            chosen: self.chosen,
        }
    }

    /// The choices of a router among `experts`.
    fn count_chosen(&mut self, experts: ExpertsId, ids: &[f32]) -> Chosen {
        let rows = &mut self.chosen[experts.0];
        for id in ids {
            if let Some(rows) = rows.get_mut(*id as usize) {
                *rows += 1;
            }
        }
        Chosen {
            experts: rows.iter().filter(|rows| **rows > 0).count(),
            pairs: rows.iter().sum::<u64>() as usize,
        }
    }
}

impl Probe for CountingProbe<'_, '_> {
    fn before_ops(&mut self) {
        self.last = Instant::now();
        if let Some(next) = &mut *self.next {
            next.before_ops();
            let now = Instant::now();
            self.elsewhere += now - self.last;
            self.last = now;
        }
    }

    fn after_op(&mut self, index: usize, op: &Op, output: OpOutput) -> Result<(), Interrupted> {
        let now = Instant::now();
        self.times[index] = now - self.last;
        self.last = now;
        if let (Op::Route { experts, .. }, OpOutput::Routes { ids, .. }) = (op, output) {
            let chosen = self.count_chosen(*experts, ids);
            self.choices.push(chosen);
        }
        let passed_on = match &mut *self.next {
            None => Ok(()),
            Some(next) => next.after_op(index, op, output),
        };
        if self.next.is_some() || matches!(op, Op::Route { .. }) {
            // Neither the looking on of others nor the counting here is the next op's time.
            let now = Instant::now();
            self.elsewhere += now - self.last;
            self.last = now;
        }
        passed_on
    }
}
