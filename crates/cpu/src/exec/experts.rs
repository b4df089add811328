//! Mixtures of experts: the choice, and the chosen experts with their rows side by side.

use std::sync::atomic::{AtomicBool, Ordering};

use goldcrest_kernels::{
    ActivationType, Activations as Packed, GROUP_ROWS_MAX, GroupLimit, GroupScore, Normalise, PANEL_ROWS,
    RouteRule as KernelRule, Router, Scoring,
};
use goldcrest_model::plan::{ExpertBank, ExpertLinears, ExpertsId, MatrixId, Op, Plan, VectorId};
use goldcrest_model::spec::{self, Gating};

use super::Call;
use super::elementwise::{gated_kernel, kernel};
use super::matmul::{Weighted, activation_type, multiply, pack_groups};
use super::products::{TILE_WEIGHT_BYTES, TILES_PER_THREAD, each_pair, each_row, part, tile_columns};
use super::size::{Calls, resize_exact};
use crate::pool::{SharedTile, SharedTiles, TileOrder, of_rows};
use crate::streamed::{Lease, Projection, WeightStore};
use crate::{Cpu, CpuError, Program};

/// Places of an expert's inner buffers in a tile.
const UP: usize = 0;
const GATE: usize = 1;

/// Most choices of a batch, unless one expert has more.
const BATCH_CHOICES: usize = 512;

/// Memory of expert ops that outlives a call.
#[derive(Default)]
pub struct ExpertScratch {
    scores: Vec<f32>,
    ids: Vec<u32>,
    /// Of the router that ran last, in rising order of experts, then of rows.
    choices: Vec<Choice>,
    /// The first of these experts, where they are read when they are wanted.
    leases: Vec<Lease>,
    batch: BatchScratch,
}

impl ExpertScratch {
    /// Lets go of experts that were wanted and never used: a call ended before.
    pub fn release(&mut self) {
        self.leases.clear();
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let BatchScratch {
            packed,
            input,
            gate,
            up,
            output,
            ..
        } = &self.batch;
        let numbers = [input, gate, up, output].map(Vec::capacity).iter().sum::<usize>();
        numbers * size_of::<f32>() + packed.held_bytes() + self.choices.capacity() * size_of::<Choice>()
    }
}

/// That an expert looks at a row of the call.
#[derive(Clone, Copy)]
struct Choice {
    expert: usize,
    row: usize,
    weight: f32,
}

/// Memory of some choices, each a row.
#[derive(Default)]
struct BatchScratch {
    /// Where the rows of each expert begin, and the end of the last.
    cuts: Vec<usize>,
    packed: Packed,
    /// `[choices, hidden]`
    input: Vec<f32>,
    /// `[choices, width]`
    gate: Vec<f32>,
    /// `[choices, width]`
    up: Vec<f32>,
    /// `[choices, hidden]`
    output: Vec<f32>,
}

impl Call<'_, '_> {
    pub fn route(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::Route {
            experts: bank,
            rule,
            correction,
            expert_scale,
            logits,
            ids,
            weights,
        } = *op
        else {
            return Ok(());
        };
        let program = self.program;
        let kernel_rule = kernel_rule(&rule);
        let [correction, expert_scale] = [correction, expert_scale].map(|id| id.map(|id| program.weights.vector(id)));
        let rows = self.scratch.rows.len();
        let k = rule.top_k;
        let super::Scratch { buffers, experts, .. } = &mut *self.scratch;
        let [logits, ids, weights] = buffers
            .get_disjoint_mut([logits.0, ids.0, weights.0])
            .expect("an op's buffers differ");
        kernel_rule.check(rule.experts, k).map_err(CpuError::RouteRule)?;
        experts.ids.resize(k, 0);
        let router = Router {
            rule: &kernel_rule,
            correction,
            per_expert: expert_scale,
        };
        for row in 0..rows {
            let (logits, weights) = (
                &logits[row * rule.experts..][..rule.experts],
                &mut weights[row * k..][..k],
            );
            self.cpu
                .kernels
                .route(&router, logits, &mut experts.ids, weights, &mut experts.scores)
                .map_err(|source| CpuError::Route { row, source })?;
            for (to, id) in ids[row * k..][..k].iter_mut().zip(&experts.ids) {
                *to = *id as f32;
            }
        }
        experts.choices.clear();
        experts.choices.reserve_exact(rows * k);
        let chosen = ids[..rows * k].iter().zip(&weights[..rows * k]);
        experts
            .choices
            .extend(chosen.enumerate().map(|(i, (id, weight))| Choice {
                expert: *id as usize,
                row: i / k,
                weight: *weight,
            }));
        experts
            .choices
            .sort_unstable_by_key(|choice| (choice.expert, choice.row));
        if let Some(streamed) = StreamedExperts::of(program, bank) {
            streamed.choose(&experts.choices);
            if streamed.is_asked_early() {
                experts.leases = streamed.acquire(streamed.batch(&experts.choices).0);
            }
        }
        Ok(())
    }

    /// Experts in rising id, each over all rows that chose it, so that every row's sum grows in the order of the definition.
    pub fn experts(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::Experts {
            experts,
            activations,
            input,
            out,
            ..
        } = *op
        else {
            return Ok(());
        };
        let (cpu, program) = (self.cpu, self.program);
        let bank = &program.plan.experts[experts.0];
        let (rows, hidden) = (self.scratch.rows.len(), self.width(out));
        let mut scratch = std::mem::take(&mut self.scratch.experts);
        let (reads, out) = self.scratch.split(out);
        let out = &mut out[..rows * hidden];
        out.fill(0.0);
        let run = ExpertRun {
            cpu,
            program,
            bank,
            kind: activation_type(activations),
            hidden,
            input: reads.get(input, rows * hidden),
        };
        let result = run.all(&mut scratch, experts, out);
        self.scratch.experts = scratch;
        result
    }
}

impl BatchScratch {
    /// Where the rows of each expert of a batch begin.
    fn cut(&mut self, choices: &[Choice]) {
        self.cuts.clear();
        self.cuts.push(0);
        for of_expert in choices.chunk_by(|a, b| a.expert == b.expert) {
            self.cuts.push(self.cuts.last().map_or(0, |end| end + of_expert.len()));
        }
    }
}

/// Choices of a batch of whole experts at the front, at most `most_experts` of them, and [`BATCH_CHOICES`] unless one has more; and the
/// rest.
fn split_batch(choices: &[Choice], most_experts: usize) -> (&[Choice], &[Choice]) {
    let mut count = 0;
    for of_expert in choices.chunk_by(|a, b| a.expert == b.expert).take(most_experts) {
        if count > 0 && count + of_expert.len() > BATCH_CHOICES {
            break;
        }
        count += of_expert.len();
    }
    choices.split_at(count)
}

/// The experts of an op that are read when they are wanted.
struct StreamedExperts<'a> {
    program: &'a Program,
    store: &'a WeightStore,
    bank: usize,
    /// Experts that there are; ids beyond them are of none.
    count: usize,
}

impl<'a> StreamedExperts<'a> {
    fn of(program: &'a Program, bank: ExpertsId) -> Option<StreamedExperts<'a>> {
        Some(StreamedExperts {
            program,
            store: program.store.as_ref()?,
            bank: bank.0,
            count: program.plan.experts[bank.0].count,
        })
    }

    /// Whether experts are asked for as soon as it is known which. What is resident runs in the meantime; where that is streamed too, it
    /// comes first.
    fn is_asked_early(&self) -> bool {
        self.program.ahead_limits.is_none()
    }

    fn is_room_for_two(&self) -> bool {
        self.store.capacity() > self.most_of_batch()
    }

    /// Most experts of a batch: two batches are there at a time.
    fn most_of_batch(&self) -> usize {
        (self.store.capacity() / 2).max(1)
    }

    fn batch<'c>(&self, choices: &'c [Choice]) -> (&'c [Choice], &'c [Choice]) {
        split_batch(choices, self.most_of_batch())
    }

    fn choose(&self, choices: &[Choice]) {
        self.store.choose(self.bank, self.chosen(choices));
    }

    /// The experts that exist of some choices, with their rows.
    fn chosen(&self, choices: &[Choice]) -> impl Iterator<Item = (usize, usize)> {
        let chosen = choices.chunk_by(|a, b| a.expert == b.expert);
        let chosen = chosen.map(|of_expert| (of_expert[0].expert, of_expert.len()));
        chosen.filter(|(expert, _)| *expert < self.count)
    }

    fn acquire(&self, choices: &[Choice]) -> Vec<Lease> {
        let wanted: Vec<usize> = self.chosen(choices).map(|(expert, _)| expert).collect();
        self.store.acquire(self.bank, &wanted)
    }
}

/// Most bytes of [`ExpertScratch`] that an op takes.
pub fn most_expert_bytes(plan: &Plan, op: &Op, calls: Calls) -> usize {
    let Op::Experts {
        experts,
        activations,
        ids,
        out,
        ..
    } = *op
    else {
        return 0;
    };
    let bank = &plan.experts[experts.0];
    let (hidden, width) = (plan.buffer(out).width, plan.matrices[bank.up.matrices.start].outputs());
    let all = calls.max_rows.saturating_mul(plan.buffer(ids).width);
    // One expert may have every row.
    let of_batch = all.min(BATCH_CHOICES.max(calls.max_rows));
    // Rows of an expert lie in groups, each with room for a power of two: for eight where there are five.
    let packed_rows = of_batch.saturating_add(of_batch.saturating_mul(3) / 5);
    let packed = Packed::most_bytes(activation_type(activations), packed_rows, hidden.max(width));
    let numbers = of_batch.saturating_mul(2 * (hidden + width));
    let choices = all.saturating_mul(size_of::<Choice>());
    numbers
        .saturating_mul(size_of::<f32>())
        .saturating_add(packed)
        .saturating_add(choices)
}

/// What the experts of one op share.
struct ExpertRun<'a> {
    cpu: &'a Cpu,
    program: &'a Program,
    bank: &'a ExpertBank,
    kind: ActivationType,
    hidden: usize,
    input: &'a [f32],
}

impl ExpertRun<'_> {
    /// All experts, batch by batch. Where they are read when they are wanted, those of the next batch are on their way while one is run.
    fn all(&self, scratch: &mut ExpertScratch, bank: ExpertsId, out: &mut [f32]) -> Result<(), CpuError> {
        let ExpertScratch {
            choices, leases, batch, ..
        } = scratch;
        let streamed = StreamedExperts::of(self.program, bank);
        let split = |choices| match &streamed {
            None => split_batch(choices, usize::MAX),
            Some(streamed) => streamed.batch(choices),
        };
        let acquire = |choices| {
            streamed
                .as_ref()
                .map_or(Vec::new(), |streamed| streamed.acquire(choices))
        };
        let is_room_for_two = streamed.as_ref().is_none_or(StreamedExperts::is_room_for_two);
        let (mut now, mut rest) = split(choices);
        let mut leases = std::mem::take(leases);
        if leases.is_empty() {
            leases = acquire(now);
        }
        while !now.is_empty() {
            let (next, later) = split(rest);
            let ahead = is_room_for_two.then(|| acquire(next));
            self.batch(now, &leases, batch, out)?;
            drop(leases);
            leases = ahead.unwrap_or_else(|| acquire(next));
            (now, rest) = (next, later);
        }
        Ok(())
    }

    /// Some experts over the rows of their choices, added to `out`, `[rows, hidden]`, in rising order.
    fn batch(
        &self,
        choices: &[Choice],
        leases: &[Lease],
        scratch: &mut BatchScratch,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        scratch.cut(choices);
        let width = self
            .program
            .weights
            .matrix(MatrixId(self.bank.up.matrices.start))
            .outputs;
        resize_exact(&mut scratch.input, choices.len() * self.hidden);
        scratch.packed.reset_cut(self.kind, &scratch.cuts, self.hidden);
        pack_groups(self.cpu, &mut scratch.input, &mut scratch.packed, &|first, rows| {
            self.gather(&choices[first..], rows);
        })?;
        self.inner(choices, leases, scratch, width)?;
        let inner = match self.bank.gating {
            Gating::Gated { .. } => &mut scratch.gate,
            Gating::Ungated(_) => &mut scratch.up,
        };
        scratch.packed.reset_cut(self.kind, &scratch.cuts, width);
        pack_groups(self.cpu, inner, &mut scratch.packed, &|_, _| {})?;
        self.outer(choices, leases, scratch, out)
    }

    /// The rows that the first of `choices` look at.
    fn gather(&self, choices: &[Choice], rows: &mut [f32]) {
        for (choice, row) in choices.iter().zip(rows.chunks_exact_mut(self.hidden)) {
            row.copy_from_slice(&self.input[choice.row * self.hidden..][..self.hidden]);
            if self.bank.weigh_input {
                self.cpu.kernels.scale(row, choice.weight);
            }
        }
    }

    /// What the down projections see, in `gate` or, without gates, in `up`: one region. Experts that are there come first.
    fn inner(
        &self,
        choices: &[Choice],
        leases: &[Lease],
        scratch: &mut BatchScratch,
        width: usize,
    ) -> Result<(), CpuError> {
        let BatchScratch {
            cuts, packed, gate, up, ..
        } = scratch;
        let (cpu, packed, cuts) = (self.cpu, &*packed, &*cuts);
        let gate_bytes = self
            .bank
            .gating
            .gate()
            .map_or(0, |_| self.panel_bytes(Projection::Gate));
        let panel_bytes = self.panel_bytes(Projection::Up) + gate_bytes;
        let weights = (cuts.len() - 1) * width.div_ceil(PANEL_ROWS) * panel_bytes;
        // Where no expert has more than a group of rows, its weights pass by once.
        let has_groups = packed.group_count() >= cuts.len();
        let tile_bytes = has_groups.then_some(TILE_WEIGHT_BYTES.min(weights / (TILES_PER_THREAD * cpu.threads())));
        let tile_columns = tile_columns(width, panel_bytes, tile_bytes, cpu.threads());
        let mut tiles = SharedTiles::new(cuts, (width, 0..width), tile_columns, TileOrder::Columns);
        resize_exact(up, choices.len() * width);
        tiles.set(UP, up);
        if let Gating::Gated { .. } = self.bank.gating {
            resize_exact(gate, choices.len() * width);
            tiles.set(GATE, gate);
        }
        let is_lost = AtomicBool::new(false);
        cpu.pool.run(&|_| {
            let mut later = Vec::new();
            while let Some(mut tile) = tiles.next() {
                let rows = part(&mut tile, UP).rows();
                let expert = choices[rows.start].expert;
                let lease = leases.get(cuts.partition_point(|cut| *cut <= rows.start) - 1);
                match lease {
                    _ if expert >= self.bank.count => {}
                    Some(lease) if !lease.is_here() => later.push((tile, expert, lease)),
                    lease => self.inner_tile(tile, (expert, lease), packed),
                }
            }
            for (tile, expert, lease) in later {
                match lease.wait() {
                    true => self.inner_tile(tile, (expert, Some(lease)), packed),
                    false => is_lost.store(true, Ordering::Relaxed),
                }
            }
        })?;
        match is_lost.into_inner() {
            // None of them waits any more.
            true => leases.iter().try_for_each(Lease::wait_or_fail),
            false => Ok(()),
        }
    }

    /// Some columns of what one expert's down projection sees.
    fn inner_tile(&self, mut tile: SharedTile<f32>, expert: (usize, Option<&Lease>), packed: &Packed) {
        let (cpu, kernels) = (self.cpu, self.cpu.kernels);
        let up = self.weighted(Projection::Up, expert);
        let gate = self.bank.gating.gate().map(|_| self.weighted(Projection::Gate, expert));
        for rows in packed.runs_of(part(&mut tile, UP).rows()) {
            let mut tile = of_rows(&mut tile, rows.row_range());
            multiply(cpu, &up, rows, (part(&mut tile, UP), 0));
            if let Some(gate) = &gate {
                multiply(cpu, gate, rows, (part(&mut tile, GATE), 0));
            }
            match self.bank.gating {
                Gating::Gated { activation, .. } => {
                    let kind = gated_kernel(activation);
                    each_pair(&mut tile, GATE, UP, |gate, up| kernels.activate_gated(kind, gate, up));
                }
                Gating::Ungated(activation) => {
                    let kind = kernel(activation);
                    each_row(part(&mut tile, UP), |row| kernels.activate(kind, row));
                }
            }
        }
    }

    /// The down projections, and the sums of every row: one region, in which a thread has some columns of all experts.
    fn outer(
        &self,
        choices: &[Choice],
        leases: &[Lease],
        scratch: &mut BatchScratch,
        out: &mut [f32],
    ) -> Result<(), CpuError> {
        let BatchScratch {
            cuts,
            packed,
            input,
            output,
            ..
        } = scratch;
        let (cpu, packed, input, hidden) = (self.cpu, &*packed, &*input, self.hidden);
        let panel_bytes = self.panel_bytes(Projection::Down);
        let weights = hidden.div_ceil(PANEL_ROWS) * panel_bytes;
        let has_groups = choices.len() > GROUP_ROWS_MAX;
        let tile_bytes = has_groups.then_some(weights / (TILES_PER_THREAD * cpu.threads()));
        let tile_columns = tile_columns(hidden, panel_bytes, tile_bytes, cpu.threads());
        let mut tiles = SharedTiles::of_columns(hidden, tile_columns);
        resize_exact(output, choices.len() * hidden);
        tiles.set(0, output);
        tiles.set(1, out);
        cpu.pool.run(&|_| {
            while let Some([Some(mut output), Some(mut out), ..]) = tiles.next() {
                let columns = out.columns();
                for (i, rows) in cuts.windows(2).enumerate() {
                    let expert = choices[rows[0]].expert;
                    if expert < self.bank.count {
                        let down = self.weighted(Projection::Down, (expert, leases.get(i)));
                        for run in packed.runs_of(rows[0]..rows[1]) {
                            multiply(cpu, &down, run, (&mut output, 0));
                        }
                    }
                    for (index, choice) in choices.iter().enumerate().take(rows[1]).skip(rows[0]) {
                        // An id beyond the experts returns its input.
                        let update = match expert < self.bank.count {
                            true => output.row_mut(index),
                            false => &input[index * hidden..][columns.clone()],
                        };
                        let weight = if self.bank.weigh_input { 1.0 } else { choice.weight };
                        cpu.kernels.add_scaled(out.row_mut(choice.row), weight, update);
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Bytes of a panel of the experts' matrices of a projection.
    fn panel_bytes(&self, projection: Projection) -> usize {
        let matrices = &self.linears(projection).matrices;
        self.program.weights.matrix(MatrixId(matrices.start)).panel_bytes
    }

    /// The matrices of a projection. Without gates there is none of gates.
    fn linears(&self, projection: Projection) -> &ExpertLinears {
        match (projection, &self.bank.gating) {
            (Projection::Gate, Gating::Gated { gate, .. }) => gate,
            (Projection::Down, _) => &self.bank.down,
            _ => &self.bank.up,
        }
    }

    fn weighted<'a>(&'a self, projection: Projection, (expert, lease): (usize, Option<&'a Lease>)) -> Weighted<'a> {
        let linears = self.linears(projection);
        let weights = &self.program.weights;
        let bias = (!linears.biases.is_empty()).then(|| weights.vector(VectorId(linears.biases.start + expert)));
        match lease {
            None => Weighted::resident(weights, MatrixId(linears.matrices.start + expert), bias),
            Some(lease) => Weighted::streamed(lease, projection as usize, bias),
        }
    }
}

/// The kernel's words for a rule.
fn kernel_rule(rule: &spec::RouteRule) -> KernelRule {
    KernelRule {
        scoring: match rule.scoring {
            spec::Scoring::Softmax => Scoring::Softmax,
            spec::Scoring::SoftmaxOfChosen => Scoring::SoftmaxOfChosen,
            spec::Scoring::Sigmoid => Scoring::Sigmoid,
            spec::Scoring::SigmoidOfChosen => Scoring::SigmoidOfChosen,
            spec::Scoring::SqrtSoftplus => Scoring::SqrtSoftplus,
            spec::Scoring::SparseMixer { jitter } => Scoring::SparseMixer { jitter },
        },
        groups: rule.groups.map(|groups| GroupLimit {
            count: groups.count,
            keep: groups.keep,
            score: match groups.score {
                spec::GroupScore::Max => GroupScore::Max,
                spec::GroupScore::SumOfBestTwo => GroupScore::SumOfBestTwo,
            },
        }),
        normalise: match rule.normalise {
            spec::Normalise::None => Normalise::None,
            spec::Normalise::Sum { eps } => Normalise::Sum { eps },
            spec::Normalise::AtLeast { least } => Normalise::AtLeast { min: least },
        },
        scale: rule.scale,
    }
}
