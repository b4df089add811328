//! Where the time of a run goes.

use std::time::Duration;

use goldcrest_engine::{Activations, Counters, Engine, Op, OpCounters, OpKind, Peaks, RouterCounters};

/// The steps of one run, by what they are. A step is an op, or several that run as one.
pub struct Profile {
    /// Wall time of the forward calls.
    pub wall: Duration,
    pub calls: u64,
    /// The longest first.
    pub rows: Vec<ProfileRow>,
    /// Of each layer with experts.
    pub routers: Vec<RouterCounters>,
}

/// Steps of the same ops, with matrices of the same types and shapes.
#[derive(Debug)]
pub struct ProfileRow {
    /// Such as `matmul Q4_K 512x2048 (2) + activate`.
    pub name: String,
    /// Of one step.
    pub ops: Vec<OpKind>,
    pub arithmetic: Arithmetic,
    /// Steps run.
    pub runs: u64,
    /// Of all their ops.
    pub counts: OpCounters,
}

/// What an op's operations are limited by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    Int8,
    F32,
}

impl Arithmetic {
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::Int8 => "int8",
            Arithmetic::F32 => "f32",
        }
    }

    pub fn peak(self, peaks: &Peaks) -> f64 {
        match self {
            Arithmetic::Int8 => peaks.int8_ops_per_s,
            Arithmetic::F32 => peaks.f32_ops_per_s,
        }
    }

    /// Products that run as one have the same.
    fn of(step: &[Op]) -> Arithmetic {
        let int8 = step.iter().any(|op| match op {
            Op::MatMul { activations, .. } | Op::Experts { activations, .. } => *activations == Activations::Q8,
            _ => false,
        });
        if int8 { Arithmetic::Int8 } else { Arithmetic::F32 }
    }
}

/// The ops of a step with their matrices; the same ones in a row are counted.
fn step_name(engine: &Engine, ops: &[Op]) -> String {
    let name = |op: &Op| match engine.weights_of(op) {
        Some(weights) => format!("{} {weights}", op.kind().name()),
        None => op.kind().name().to_owned(),
    };
    let names: Vec<String> = ops.iter().map(name).collect();
    let counted = names.chunk_by(|a, b| a == b).map(|same| match same {
        [one] => one.clone(),
        many => format!("{} ({})", many[0], many.len()),
    });
    counted.collect::<Vec<_>>().join(" + ")
}

impl Profile {
    pub fn new(engine: &Engine, counters: &Counters) -> Profile {
        let plan = engine.plan();
        let mut rows: Vec<ProfileRow> = Vec::new();
        // A prompt's last call may have one row.
        let phases = [&counters.prefill, &counters.decode];
        for phase in phases.into_iter().filter(|phase| phase.calls > 0) {
            let counts: Vec<OpCounters> = phase.ops().collect();
            for step in engine.steps() {
                let (ops, counts) = (&plan.ops[step.clone()], &counts[step]);
                let name = step_name(engine, ops);
                let place = rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
                    rows.push(ProfileRow {
                        name,
                        ops: ops.iter().map(Op::kind).collect(),
                        arithmetic: Arithmetic::of(ops),
                        runs: 0,
                        counts: OpCounters::default(),
                    });
                    rows.len() - 1
                });
                let row = &mut rows[place];
                row.runs += counts.first().map_or(0, |first| first.runs);
                counts.iter().for_each(|op| row.counts += *op);
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.counts.time));
        Profile {
            wall: phases.iter().map(|phase| phase.wall).sum(),
            calls: phases.iter().map(|phase| phase.calls).sum(),
            rows,
            routers: Vec::new(),
        }
    }

    /// All ops.
    pub fn total(&self) -> OpCounters {
        self.rows.iter().fold(OpCounters::default(), |mut total, row| {
            total += row.counts;
            total
        })
    }

    /// The part of the wall time that a row took.
    pub fn share(&self, counts: &OpCounters) -> f64 {
        let wall = self.wall.as_secs_f64();
        if wall > 0.0 {
            counts.time.as_secs_f64() / wall
        } else {
            0.0
        }
    }
}

impl ProfileRow {
    pub fn bytes_per_s(&self) -> f64 {
        per_s(self.counts.cost.bytes(), self.counts.time)
    }

    pub fn operations_per_s(&self) -> f64 {
        per_s(self.counts.cost.operations, self.counts.time)
    }
}

fn per_s(things: u64, time: Duration) -> f64 {
    crate::output::rate(things, time)
}
