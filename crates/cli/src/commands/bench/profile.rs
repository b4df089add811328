//! Where the time of a run goes.

use std::time::Duration;

use goldcrest_engine::{Activations, Counters, Engine, Op, OpCounters, OpKind, Peaks};

/// The ops of one run, by what they are.
pub struct Profile {
    /// Wall time of the forward calls.
    pub wall: Duration,
    pub calls: u64,
    /// The longest first.
    pub rows: Vec<ProfileRow>,
}

/// Ops of one kind, with matrices of one type and shape.
#[derive(Debug)]
pub struct ProfileRow {
    pub kind: OpKind,
    pub weights: Option<String>,
    pub arithmetic: Arithmetic,
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

    fn of(op: &Op) -> Arithmetic {
        match op {
            Op::MatMul { activations, .. } | Op::Experts { activations, .. } if *activations == Activations::Q8 => {
                Arithmetic::Int8
            }
            _ => Arithmetic::F32,
        }
    }
}

impl Profile {
    pub fn new(engine: &Engine, counters: &Counters) -> Profile {
        let mut rows: Vec<ProfileRow> = Vec::new();
        // A prompt's last call may have one row.
        let phases = [&counters.prefill, &counters.decode];
        for phase in phases {
            for (op, counts) in engine.plan().ops.iter().zip(phase.ops()) {
                let (kind, weights, arithmetic) = (op.kind(), engine.weights_of(op), Arithmetic::of(op));
                let same =
                    |row: &&mut ProfileRow| (row.kind, &row.weights, row.arithmetic) == (kind, &weights, arithmetic);
                match rows.iter_mut().find(same) {
                    Some(row) => row.counts += counts,
                    None => rows.push(ProfileRow {
                        kind,
                        weights,
                        arithmetic,
                        counts,
                    }),
                }
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.counts.time));
        Profile {
            wall: phases.iter().map(|phase| phase.wall).sum(),
            calls: phases.iter().map(|phase| phase.calls).sum(),
            rows,
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
