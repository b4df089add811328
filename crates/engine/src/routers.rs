//! What routers chose, layer by layer, and what became of it where experts are read when they are wanted.

use std::time::Duration;

use goldcrest_cpu::{BankCounters, StreamCounters};
use goldcrest_model::plan::{Op, Plan};

use crate::counters::{Counters, add_all};
use crate::engine::Engine;

/// Counts the choices of routers for a while in which no session is fed but those that are counted.
#[derive(Clone)]
pub struct RouterCounting {
    engine: Engine,
    /// Rows that chose each expert, by layer with experts.
    chosen: Vec<Vec<u64>>,
    /// At the beginning; none where all experts are in memory.
    before: Option<StreamCounters>,
}

/// What there is to tell of a layer with experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterCounters {
    /// Its index.
    pub layer: usize,
    /// Rows that chose each expert.
    pub chosen: Vec<u64>,
    /// Where experts are read when they are wanted.
    pub reads: Option<BankCounters>,
}

impl RouterCounting {
    /// Begins now.
    pub fn new(engine: &Engine) -> RouterCounting {
        RouterCounting {
            engine: engine.clone(),
            chosen: engine.plan().experts.iter().map(|bank| vec![0; bank.count]).collect(),
            before: engine.stream_counters(),
        }
    }

    /// Adds what a session counted.
    pub fn add(&mut self, counters: &Counters) {
        for phase in [&counters.prefill, &counters.decode] {
            add_all(&mut self.chosen, phase.chosen());
        }
    }

    /// What there was until now, layer by layer.
    pub fn counters(&self) -> Vec<RouterCounters> {
        let now = self.engine.stream_counters();
        let reads = |bank: usize| {
            let (before, now) = (self.before.as_ref()?, now.as_ref()?);
            Some(difference(now.banks.get(bank)?, before.banks.get(bank)?))
        };
        let layers = layers(self.engine.plan()).into_iter().zip(&self.chosen);
        let counters = layers.enumerate().map(|(bank, (layer, chosen))| RouterCounters {
            layer,
            chosen: chosen.clone(),
            reads: reads(bank),
        });
        counters.collect()
    }
}

/// The layer of each bank of experts.
fn layers(plan: &Plan) -> Vec<usize> {
    let mut entered = 0;
    let mut layers = vec![0; plan.experts.len()];
    for op in &plan.ops {
        match *op {
            Op::Boundary { layer, .. } => entered = layer,
            Op::Experts { experts, .. } => layers[experts.0] = entered,
            _ => {}
        }
    }
    layers
}

fn difference(now: &BankCounters, before: &BankCounters) -> BankCounters {
    BankCounters {
        hits: now.hits - before.hits,
        misses: now.misses - before.misses,
        bytes_read: now.bytes_read - before.bytes_read,
        waited: now.waited.checked_sub(before.waited).unwrap_or(Duration::ZERO),
    }
}
