//! What speed to expect of a model on this machine, before anything is loaded.
//!
//! An op takes as long as its weights and states take to be read from memory, or as its operations take, whichever is longer. Weights that
//! are not in memory are read from the file first. Rows are taken to choose experts evenly: the worst case, as real routers prefer some and
//! repeat themselves, so that more of what they choose is in memory.

use std::collections::BTreeSet;

use goldcrest_cpu::probe::{PeakProbe, Peaks, disk_bytes_per_s};
use goldcrest_cpu::profile::{CallShape, Chosen, Cost, Costs};
use goldcrest_cpu::{Cpu, CpuError, CpuOptions, StreamOptions, Streamed};
use goldcrest_format::{Checkpoint, TensorFiles};
use goldcrest_model::backend::Span;
use goldcrest_model::plan::{Activations, ExpertBank, Op, Plan};
use goldcrest_model::read::{SpecError, read_spec};

use crate::{Engine, EngineOptions};

/// Of the speed at which the probe reads memory, what calls of one row reach.
const READ_SHARE: f64 = 0.85;
/// Of the speed at which the probe multiplies in registers, what products of many rows reach.
const PRODUCT_SHARE: f64 = 0.35;
/// Where in a sequence the token lies whose decoding is predicted.
const DECODE_POSITION: usize = 64;
/// Bytes of one read, at most.
const STRETCH_BYTES: u64 = 1 << 20;

/// What the machine can do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    pub peaks: Peaks,
    /// Of the threads that read experts; none where all are in memory.
    pub disk_bytes_per_s: Option<f64>,
}

/// Experts that are read when they are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertShare {
    /// Of all layers.
    pub count: usize,
    /// That stay in memory.
    pub kept: usize,
    /// Of one in the file; the mean.
    pub bytes: u64,
}

impl ExpertShare {
    /// The part that is not in memory.
    fn missing(&self) -> f64 {
        1.0 - self.kept as f64 / self.count.max(1) as f64
    }
}

/// Predicts the speed of a model with some options.
pub struct Predictor {
    plan: Plan,
    options: EngineOptions,
    experts: Option<ExpertShare>,
    /// The part of other weights of products that is read for every call.
    products_missing: f64,
}

impl Predictor {
    /// Reads no weights.
    ///
    /// # Errors
    /// The files describe no model that can run here.
    pub fn new(checkpoint: &Checkpoint, options: &EngineOptions) -> Result<Predictor, SpecError> {
        let spec = read_spec(checkpoint)?;
        let activations = options.activations.unwrap_or_else(|| Engine::suited_activations(&spec));
        let mut predictor = Predictor {
            plan: Engine::plan_of(&spec, activations),
            options: *options,
            experts: None,
            products_missing: 0.0,
        };
        if let Some(options) = options.streaming {
            predictor.share_out(checkpoint, options);
        }
        Ok(predictor)
    }

    /// The experts that are read when they are wanted; none where all are in memory.
    pub fn experts(&self) -> Option<ExpertShare> {
        self.experts
    }

    /// The part of other weights of products that is read for every call.
    pub fn products_missing(&self) -> f64 {
        self.products_missing
    }

    /// Measures this machine, which takes two seconds and, for as long, [`crate::PROBE_BYTES`] of memory.
    ///
    /// # Errors
    /// [`CpuError`].
    pub fn measure(&self, files: &TensorFiles) -> Result<Speeds, CpuError> {
        let cpu = Cpu::new(CpuOptions::from(&self.options))?;
        let peaks = PeakProbe::new(&cpu)?.measure(&cpu)?;
        let read = |options: StreamOptions| disk_bytes_per_s(files, self.stretch(files), options.readers);
        Ok(Speeds {
            peaks,
            disk_bytes_per_s: self.options.streaming.map(read).transpose()?,
        })
    }

    /// Tokens a second of a reply at its beginning.
    pub fn decode_tokens_per_s(&self, speeds: &Speeds) -> f64 {
        let span = Span {
            feed: 0,
            start: DECODE_POSITION,
            rows: 1,
        };
        1.0 / self.call_s(speeds, span, 1)
    }

    /// Tokens a second of a prompt of so many tokens. Every call reads an expert once at most, however many of its rows choose it.
    pub fn prefill_tokens_per_s(&self, speeds: &Speeds, tokens: usize) -> f64 {
        let starts = (0..tokens).step_by(self.options.max_rows.max(1));
        let calls = starts.map(|start| {
            let rows = (tokens - start).min(self.options.max_rows);
            self.call_s(
                speeds,
                Span { feed: 0, start, rows },
                usize::from(start + rows == tokens),
            )
        });
        tokens as f64 / calls.sum::<f64>()
    }

    /// Bytes of one read: about a matrix of an expert, or a part of a larger one.
    fn stretch(&self, files: &TensorFiles) -> usize {
        let matrix = self.experts.map_or(STRETCH_BYTES, |experts| experts.bytes / 3);
        let longest = files.tensors().map(|tensor| tensor.bytes).max().unwrap_or(0);
        matrix.min(STRETCH_BYTES).min(longest).max(1) as usize
    }

    /// Says what stays in memory: weights that every token wants before experts, of which it wants few.
    fn share_out(&mut self, files: &TensorFiles, options: StreamOptions) {
        let memory = options.bytes as u64;
        let products = match options.streamed {
            Streamed::Experts => 0,
            Streamed::All => self.all_bytes(|op| matches!(op, Op::MatMul { .. })),
        };
        self.products_missing = 1.0 - share_of(memory, products);
        if !self.plan.experts.is_empty() {
            self.experts = Some(self.share(files, memory.saturating_sub(products)));
        }
    }

    /// Bytes of all weights of some ops.
    fn all_bytes(&self, some: impl Fn(&Op) -> bool) -> u64 {
        let costs = Costs::new(&self.plan, self.options.kv);
        let bytes = |op: &Op| {
            let experts = match *op {
                Op::Experts { experts, .. } => self.plan.experts[experts.0].count,
                _ => 0,
            };
            let shape = CallShape {
                spans: &[Span {
                    feed: 0,
                    start: 0,
                    rows: 1,
                }],
                wanted: 1,
                chosen: Chosen { experts, pairs: 0 },
            };
            costs.of(op, &shape).weight_bytes
        };
        self.plan.ops.iter().filter(|op| some(op)).map(bytes).sum()
    }

    /// What of the experts stays in so much memory.
    fn share(&self, files: &TensorFiles, memory: u64) -> ExpertShare {
        let all = self.all_bytes(|op| matches!(op, Op::Experts { .. }));
        let banks = self.plan.experts.iter();
        let linears = banks.clone().flat_map(ExpertBank::projections);
        let matrices = linears.flat_map(|linears| &self.plan.matrices[linears.matrices.clone()]);
        // Several matrices may lie in one tensor.
        let tensors: BTreeSet<&str> = matrices.map(|matrix| &*matrix.tensor).collect();
        let stored: u64 = tensors.iter().filter_map(|name| Some(files.tensor(name)?.bytes)).sum();
        let count: usize = banks.map(|bank| bank.count).sum();
        ExpertShare {
            count,
            kept: (count as f64 * share_of(memory, all)) as usize,
            bytes: stored / (count as u64).max(1),
        }
    }

    /// Seconds of a call of some rows that follow each other.
    fn call_s(&self, speeds: &Speeds, span: Span, wanted: usize) -> f64 {
        let costs = Costs::new(&self.plan, self.options.kv);
        let disk = speeds.disk_bytes_per_s.unwrap_or(f64::INFINITY);
        let op_s = |op: &Op| {
            let chosen = self.chosen(op, span.rows);
            let shape = CallShape {
                spans: &[span],
                wanted,
                chosen,
            };
            let cost = costs.of(op, &shape);
            compute_s(op, &cost, &speeds.peaks) + self.read_bytes(op, &cost, chosen) / disk
        };
        self.plan.ops.iter().map(op_s).sum()
    }

    /// What so many rows choose of the experts of an op, if they choose evenly.
    fn chosen(&self, op: &Op, rows: usize) -> Chosen {
        let Op::Experts { experts, ids, .. } = *op else {
            return Chosen::default();
        };
        let (count, top_k) = (self.plan.experts[experts.0].count, self.plan.buffer(ids).width);
        // That a row does not choose one of them, and that none does.
        let one = 1.0 - (top_k as f64 / count.max(1) as f64).min(1.0);
        let none = libm::pow(one, rows as f64);
        Chosen {
            experts: (count as f64 * (1.0 - none)).round() as usize,
            pairs: rows * top_k,
        }
    }

    /// What an op has to read of files.
    fn read_bytes(&self, op: &Op, cost: &Cost, chosen: Chosen) -> f64 {
        match (op, self.experts) {
            (Op::MatMul { .. }, _) => cost.weight_bytes as f64 * self.products_missing,
            (Op::Experts { .. }, Some(share)) => chosen.experts as f64 * share.missing() * share.bytes as f64,
            _ => 0.0,
        }
    }
}

/// The part of all that fits into so much.
fn share_of(memory: u64, all: u64) -> f64 {
    match all {
        0 => 1.0,
        _ => (memory as f64 / all as f64).min(1.0),
    }
}

/// Seconds in which an op is computed from what is in memory.
fn compute_s(op: &Op, cost: &Cost, peaks: &Peaks) -> f64 {
    let int8 = matches!(
        op,
        Op::MatMul {
            activations: Activations::Q8,
            ..
        } | Op::Experts {
            activations: Activations::Q8,
            ..
        }
    );
    let operations_per_s = if int8 {
        peaks.int8_ops_per_s
    } else {
        peaks.f32_ops_per_s
    };
    let moved = (cost.weight_bytes + cost.state_bytes) as f64 / (READ_SHARE * peaks.read_bytes_per_s);
    moved.max(cost.operations as f64 / (PRODUCT_SHARE * operations_per_s))
}
