//! Mixtures of experts: the chosen experts with their rows side by side.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use goldcrest_kernels::{
    ActivationGroupMut, ActivationType, Activations as Packed, GROUP_ROWS_MAX, Kernels, PANEL_ROWS, ScaledRows,
};
use goldcrest_model::plan::{ExpertBank, ExpertLinears, ExpertsId, MatrixId, Op, Plan, VectorId};
use goldcrest_model::spec::Gating;

use super::Call;
use super::elementwise::{gated_kernel, kernel};
use super::matmul::{Target, Weighted, activation_type, multiply, multiply_into, pack_groups, share_groups};
use super::products::{TILE_WEIGHT_BYTES, TILES_PER_THREAD, each_pair, each_row, part, tile_columns};
use super::size::{Calls, resize_exact};
use crate::pool::{Part, SharedTile, SharedTiles, TileOrder, Tiles, of_rows};
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
    pub scores: Vec<f32>,
    pub ids: Vec<u32>,
    /// Of the router that ran last, in rising order of experts, then of rows.
    pub choices: Vec<Choice>,
    /// The first of these experts, where they are read when they are wanted.
    pub leases: Vec<Lease>,
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
            rows,
            packed,
            weighed,
            gate,
            up,
            ..
        } = &self.batch;
        let numbers = [weighed, gate, up].map(Vec::capacity).iter().sum::<usize>();
        let packed = rows.held_bytes() + packed.held_bytes();
        numbers * size_of::<f32>() + packed + self.choices.capacity() * size_of::<Choice>()
    }
}

/// That an expert looks at a row of the call.
#[derive(Clone, Copy)]
pub struct Choice {
    pub expert: usize,
    pub row: usize,
    pub weight: f32,
}

/// Memory of some choices, each a row.
#[derive(Default)]
struct BatchScratch {
    /// The rows of the call, each packed once for all experts that look at it.
    rows: Packed,
    /// Where the rows of each expert begin, and the end of the last.
    cuts: Vec<usize>,
    packed: Packed,
    /// `[choices, hidden]`, where inputs are weighed.
    weighed: Vec<f32>,
    /// `[choices, width]`
    gate: Vec<f32>,
    /// `[choices, width]`
    up: Vec<f32>,
}

impl Call<'_, '_> {
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
pub struct StreamedExperts<'a> {
    program: &'a Program,
    store: &'a WeightStore,
    bank: usize,
    /// Experts that there are; ids beyond them are of none.
    count: usize,
}

impl<'a> StreamedExperts<'a> {
    pub fn of(program: &'a Program, bank: ExpertsId) -> Option<StreamedExperts<'a>> {
        Some(StreamedExperts {
            program,
            store: program.store.as_ref()?,
            bank: bank.0,
            count: program.plan.experts[bank.0].count,
        })
    }

    /// Whether experts are asked for as soon as it is known which. What is resident runs in the meantime; where that is streamed too, it
    /// comes first.
    pub fn is_asked_early(&self) -> bool {
        self.program.ahead_limits.is_none()
    }

    fn is_room_for_two(&self) -> bool {
        self.store.capacity() > self.most_of_batch()
    }

    /// Most experts of a batch: two batches are there at a time.
    fn most_of_batch(&self) -> usize {
        (self.store.capacity() / 2).max(1)
    }

    pub fn batch<'c>(&self, choices: &'c [Choice]) -> (&'c [Choice], &'c [Choice]) {
        split_batch(choices, self.most_of_batch())
    }

    pub fn choose(&self, choices: &[Choice]) {
        self.store.choose(self.bank, self.chosen(choices));
    }

    /// The experts that exist of some choices, with their rows.
    fn chosen(&self, choices: &[Choice]) -> impl Iterator<Item = (usize, usize)> {
        let chosen = choices.chunk_by(|a, b| a.expert == b.expert);
        let chosen = chosen.map(|of_expert| (of_expert[0].expert, of_expert.len()));
        chosen.filter(|(expert, _)| *expert < self.count)
    }

    pub fn acquire(&self, choices: &[Choice]) -> Vec<Lease> {
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
    let kind = activation_type(activations);
    let packed = Packed::most_bytes(kind, packed_rows, hidden.max(width));
    let (rows, weighed) = match bank.weigh_input {
        true => (0, hidden),
        false => (Packed::most_bytes(kind, calls.max_rows, hidden), 0),
    };
    let numbers = of_batch.saturating_mul(2 * width + weighed);
    let choices = all.saturating_mul(size_of::<Choice>());
    numbers
        .saturating_mul(size_of::<f32>())
        .saturating_add(packed)
        .saturating_add(rows)
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
        self.pack_rows(&mut batch.rows)?;
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
        scratch.packed.reset_cut(self.kind, &scratch.cuts, self.hidden);
        self.pack_inputs(choices, scratch)?;
        self.inner(choices, leases, scratch, width)?;
        let inner = match self.bank.gating {
            Gating::Gated { .. } => &mut scratch.gate,
            Gating::Ungated(_) => &mut scratch.up,
        };
        scratch.packed.reset_cut(self.kind, &scratch.cuts, width);
        pack_groups(self.cpu, inner, &mut scratch.packed, &|_, _| {})?;
        self.outer(choices, leases, scratch, out)
    }

    /// Packs the rows of the call, for [`Self::pack_inputs`] to copy: a row is seen by several experts.
    fn pack_rows(&self, rows: &mut Packed) -> Result<(), CpuError> {
        if self.bank.weigh_input {
            return Ok(());
        }
        let (cpu, hidden) = (self.cpu, self.hidden);
        let count = self.input.len() / hidden;
        rows.reset_apart(self.kind, count, hidden);
        share_groups(cpu, count, rows.groups_mut(), &|group: ActivationGroupMut| {
            let row = group.first_row();
            group.pack(cpu.kernels, &self.input[row * hidden..][..hidden]);
        })
    }

    /// Packs the rows that `choices` look at, those of an expert side by side.
    fn pack_inputs(&self, choices: &[Choice], scratch: &mut BatchScratch) -> Result<(), CpuError> {
        let BatchScratch {
            rows, packed, weighed, ..
        } = scratch;
        if !self.bank.weigh_input {
            return share_groups(
                self.cpu,
                choices.len(),
                packed.groups_mut(),
                &|group: ActivationGroupMut| {
                    let of_group = &choices[group.first_row()..];
                    group.copy(rows, of_group.iter().map(|choice| choice.row));
                },
            );
        }
        resize_exact(weighed, choices.len() * self.hidden);
        pack_groups(self.cpu, weighed, packed, &|first, rows| {
            for (choice, row) in choices[first..].iter().zip(rows.chunks_exact_mut(self.hidden)) {
                row.copy_from_slice(&self.input[choice.row * self.hidden..][..self.hidden]);
                self.cpu.kernels.scale(row, choice.weight);
            }
        })
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
            cuts, packed, weighed, ..
        } = scratch;
        let (cpu, packed, weighed, hidden) = (self.cpu, &*packed, &*weighed, self.hidden);
        let panel_bytes = self.panel_bytes(Projection::Down);
        let weights = hidden.div_ceil(PANEL_ROWS) * panel_bytes;
        let has_groups = choices.len() > GROUP_ROWS_MAX;
        let tile_bytes = has_groups.then_some(weights / (TILES_PER_THREAD * cpu.threads()));
        let tile_columns = tile_columns(hidden, panel_bytes, tile_bytes, cpu.threads());
        let tiles = Tiles::new(out, hidden, (usize::MAX, tile_columns));
        cpu.pool.run(&|_| {
            while let Some(mut out) = tiles.next() {
                for (i, rows) in cuts.windows(2).enumerate() {
                    let rows = rows[0]..rows[1];
                    let expert = choices[rows.start].expert;
                    if expert < self.bank.count {
                        let down = self.weighted(Projection::Down, (expert, leases.get(i)));
                        for run in packed.runs_of(rows) {
                            let columns = out.columns();
                            let mut sums = Sums {
                                choices,
                                weigh_input: self.bank.weigh_input,
                                out: &mut out,
                                first: columns.start,
                            };
                            multiply_into(cpu, &down, run, columns, &mut sums);
                        }
                    } else {
                        self.add_inputs(choices, rows, weighed, &mut out);
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Adds what an id beyond the experts returns: its input.
    fn add_inputs(&self, choices: &[Choice], range: Range<usize>, weighed: &[f32], out: &mut Part<f32>) {
        for index in range {
            let Choice { row, weight, .. } = choices[index];
            let (inputs, row, weight) = match self.bank.weigh_input {
                true => (weighed, index, 1.0),
                false => (self.input, row, weight),
            };
            let input = &inputs[row * self.hidden..][out.columns()];
            self.cpu
                .kernels
                .add_scaled(out.row_mut(choices[index].row), weight, input);
        }
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

/// Some columns of the sums of rows, from the `first` on, to which the outputs of experts that the rows chose are added.
struct Sums<'a, 'p> {
    choices: &'a [Choice],
    weigh_input: bool,
    out: &'a mut Part<'p, f32>,
    first: usize,
}

impl Target for Sums<'_, '_> {
    fn place(&mut self, index: usize, outputs: &Range<usize>) -> &mut [f32] {
        &mut self.out.row_mut(self.choices[index].row)[outputs.start - self.first..][..outputs.len()]
    }

    fn put(&mut self, kernels: Kernels, first: usize, outputs: &Range<usize>, products: &[[f32; PANEL_ROWS]]) {
        let mut rows = OfChoices {
            sums: self,
            first,
            outputs,
        };
        kernels.add_scaled_rows(&mut rows, products);
    }
}

/// Some outputs of [`Sums`] of choices from the `first` on.
struct OfChoices<'a, 's, 'p> {
    sums: &'a mut Sums<'s, 'p>,
    first: usize,
    outputs: &'a Range<usize>,
}

impl ScaledRows for OfChoices<'_, '_, '_> {
    #[inline]
    fn row(&mut self, i: usize) -> (&mut [f32], f32) {
        let index = self.first + i;
        let factor = match self.sums.weigh_input {
            true => 1.0,
            false => self.sums.choices[index].weight,
        };
        (self.sums.place(index, self.outputs), factor)
    }
}
