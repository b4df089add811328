//! Runs the ops of a plan, one after the other, each on all threads.

mod attend;
mod choose;
mod elementwise;
mod experts;
mod heads;
mod matmul;
mod products;
mod recurrent;
mod route;
mod rows;
mod size;
mod steer;
mod step;
mod stream;

pub use step::{Step, steps};

use std::sync::PoisonError;

use goldcrest_kernels::{ActivationType, Activations};
use goldcrest_model::backend::{Batch, OpOutput, Probe};
use goldcrest_model::plan::{BufferId, Op, Plan, Rows};

use crate::buffer::{AlignedVec, AllocError};
use crate::pool::{PoolError, float_mode_is_default};
use crate::{Cpu, CpuError, Program, State};

use stream::Ahead;

pub use size::{Calls, most_scratch_bytes};
pub use stream::{TableRows, ahead_limits};

/// Memory of a call that outlives it, so that calls allocate nothing.
pub struct Scratch {
    /// `[max_rows, width]` for each buffer of the plan but the logits, which are the caller's.
    buffers: Vec<AlignedVec<f32>>,
    /// Input of matrix products, packed for the kernels.
    packed: Activations,
    /// What `packed` holds.
    packed_of: Option<(BufferId, ActivationType)>,
    rows: Vec<Row>,
    /// Where products cut their rows.
    row_cuts: Vec<usize>,
    ropes: Vec<RopeRows>,
    /// States of attention rows, a stretch for each thread.
    attention: Vec<f32>,
    /// Queries, or the key and value of a row, on their way to a quantised cache.
    rotated: Vec<f32>,
    /// Choices of keys, one a thread.
    choices: Vec<choose::ChoiceScratch>,
    experts: experts::ExpertScratch,
    /// One row of a table.
    line: Vec<f32>,
    /// How rows of tables are read that are not resident.
    tables: TableRows,
    /// Heads with a matrix of their own, one a thread.
    heads: Vec<heads::HeadScratch>,
}

/// Whose row of the call it is, and where.
#[derive(Clone, Copy, Debug)]
struct Row {
    part: usize,
    position: usize,
}

/// cos and sin of the rows of a call, for one rope: `[rows, half]` each.
#[derive(Default)]
struct RopeRows {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Scratch {
    /// `tables` reads rows of tables that are not resident.
    pub fn new(plan: &Plan, max_rows: usize, threads: usize, tables: TableRows) -> Result<Scratch, AllocError> {
        let buffers = plan.buffers.iter().enumerate().map(|(i, buffer)| {
            let width = if BufferId(i) == plan.logits { 0 } else { buffer.width };
            AlignedVec::zeroed(max_rows.saturating_mul(width))
        });
        Ok(Scratch {
            buffers: buffers.collect::<Result<_, _>>()?,
            packed: Activations::new(),
            packed_of: None,
            rows: Vec::with_capacity(max_rows),
            row_cuts: Vec::new(),
            ropes: plan.ropes.iter().map(|_| RopeRows::default()).collect(),
            attention: Vec::new(),
            rotated: Vec::new(),
            choices: (0..threads).map(|_| choose::ChoiceScratch::default()).collect(),
            experts: experts::ExpertScratch::default(),
            line: Vec::new(),
            tables,
            heads: (0..threads).map(|_| heads::HeadScratch::default()).collect(),
        })
    }

    /// Bytes held, without what reads tables.
    pub fn bytes(&self) -> usize {
        let floats = |vec: &Vec<f32>| vec.capacity() * size_of::<f32>();
        let buffers = self.buffers.iter().map(|buffer| size_of_val::<[f32]>(buffer));
        let ropes = self.ropes.iter().map(|rope| floats(&rope.cos) + floats(&rope.sin));
        let own = [&self.attention, &self.rotated, &self.line].map(floats);
        let parts = [self.packed.held_bytes(), self.experts.bytes()];
        let choices = self.choices.iter().map(choose::ChoiceScratch::bytes);
        let heads = self.heads.iter().map(heads::HeadScratch::bytes);
        let rows = self.rows.capacity() * size_of::<Row>();
        let lists = buffers.chain(ropes).chain(own).chain(parts).chain(choices).chain(heads);
        lists.sum::<usize>() + rows
    }

    /// Lays out the rows of a call: sequence, position, rotation.
    fn prepare(&mut self, program: &Program, batch: Batch, states: &[&mut State]) {
        self.packed_of = None;
        self.rows.clear();
        for (part, (tokens, state)) in batch.parts.iter().zip(states).enumerate() {
            let positions = state.length()..state.length() + tokens.ids.len();
            self.rows.extend(positions.map(|position| Row { part, position }));
        }
        let ropes = program.plan.ropes.iter().zip(program.weights.ropes());
        for (scratch, (shape, rope)) in self.ropes.iter_mut().zip(ropes) {
            let numbers = self.rows.len() * shape.rotary / 2;
            for side in [&mut scratch.cos, &mut scratch.sin] {
                side.clear();
                side.reserve_exact(numbers);
            }
            for (tokens, state) in batch.parts.iter().zip(states) {
                let (frequencies, factor) = &*rope.frequencies(state.capacity());
                for position in state.length()..state.length() + tokens.ids.len() {
                    for frequency in frequencies {
                        // The reference forms the angle in f32; sine and cosine of that are exact to f32.
                        let angle = f64::from(position as f32 * frequency);
                        let (sin, cos) = libm::sincos(angle);
                        scratch.cos.push(cos as f32 * factor);
                        scratch.sin.push(sin as f32 * factor);
                    }
                }
            }
        }
    }
}

/// One forward call; see [`goldcrest_model::backend::Backend::forward`].
pub fn forward(
    cpu: &Cpu,
    program: &Program,
    batch: Batch,
    states: &mut [&mut State],
    logits: &mut [f32],
    mut probe: Option<&mut dyn Probe>,
) -> Result<(), CpuError> {
    // The caller may be another thread than the one that made the pool.
    if !float_mode_is_default() {
        return Err(PoolError::FloatMode.into());
    }
    // A call that panicked left garbage in the scratch, which the next one overwrites.
    let mut scratch = program.scratch.lock().unwrap_or_else(PoisonError::into_inner);
    let mut result = reserve(batch, states);
    if result.is_ok() {
        scratch.prepare(program, batch, states);
        let mut call = Call {
            cpu,
            program,
            batch,
            scratch: &mut scratch,
            states,
            logits,
        };
        result = call.run(&mut probe);
        scratch.experts.release();
    }
    for (part, state) in batch.parts.iter().zip(states) {
        match result {
            Ok(()) => state.commit(part.ids.len()),
            Err(_) => state.drop_uncommitted(),
        }
    }
    result
}

fn reserve(batch: Batch, states: &mut [&mut State]) -> Result<(), CpuError> {
    for (part, state) in batch.parts.iter().zip(states) {
        state.reserve(part.ids.len())?;
    }
    Ok(())
}

/// A call in progress.
struct Call<'a, 's> {
    cpu: &'a Cpu,
    program: &'a Program,
    batch: Batch<'a>,
    scratch: &'a mut Scratch,
    states: &'a mut [&'s mut State],
    logits: &'a mut [f32],
}

impl Call<'_, '_> {
    fn run(&mut self, probe: &mut Option<&mut dyn Probe>) -> Result<(), CpuError> {
        let program = self.program;
        if let Some(probe) = probe {
            probe.before_ops();
        }
        let mut ahead = Ahead::of(program);
        for step in &program.steps {
            let mut ops = step.ops();
            match step {
                Step::Products(products) => {
                    let streamed = ahead.as_mut().map(Ahead::take);
                    self.pack(products)?;
                    if products.norm.is_some() {
                        ops.by_ref().take(1).try_for_each(|index| self.tell(index, probe))?;
                    }
                    if let Some(lease) = &streamed {
                        lease.wait_or_fail()?;
                    }
                    self.products(products, streamed.as_ref())?;
                }
                Step::Op(index) => self.op(&program.plan.ops[*index])?,
            }
            ops.try_for_each(|index| self.tell(index, probe))?;
        }
        Ok(())
    }

    /// Shows the probe, if there is one, what an op has done.
    fn tell(&self, index: usize, probe: &mut Option<&mut dyn Probe>) -> Result<(), CpuError> {
        let Some(probe) = probe else { return Ok(()) };
        let op = &self.program.plan.ops[index];
        let output = match *op {
            Op::Boundary { stream, .. } => OpOutput::Stream(self.buffer(stream)),
            Op::Route { ids, weights, .. } => OpOutput::Routes {
                ids: self.buffer(ids),
                weights: self.buffer(weights),
            },
            _ => OpOutput::Nothing,
        };
        Ok(probe.after_op(index, op, output)?)
    }

    fn op(&mut self, op: &Op) -> Result<(), CpuError> {
        match *op {
            Op::Embed { table, scale, out } => self.embed(table, scale, out),
            Op::EmbedPosition { table, out } => self.embed_position(table, out),
            Op::Boundary { layer, stream } => self.steer(layer, stream),
            Op::Norm {
                norm,
                groups,
                input,
                out,
            } => self.norm(norm, groups, input, out),
            // Products are steps of their own kind.
            Op::MatMul { .. } => Ok(()),
            Op::HeadMatMul {
                first,
                heads,
                input,
                out,
            } => self.head_matmul(first, heads, input, out),
            Op::Rope { rope, heads, buffer } => self.rope(rope, heads, buffer),
            Op::ScaleByPosition { scale, buffer } => self.scale_by_position(scale, buffer),
            Op::KvWrite { kv, key, value } => self.kv_write(kv, key, value),
            Op::ChooseKeys { .. } => self.choose_keys(op),
            Op::Attend { .. } => self.attend(op),
            Op::Conv { .. } => self.conv(op),
            Op::LinearState { .. } => self.linear_state(op),
            Op::Scan { .. } => self.scan(op),
            Op::Route { .. } => self.route(op),
            Op::Experts { .. } => self.experts(op),
            Op::Activate { activation, gate, up } => self.activate(activation, gate, up),
            Op::Scale { buffer, factors } => self.scale(buffer, factors),
            Op::Clamp { low, high, buffer } => self.clamp(low, high, buffer),
            Op::Copy { input, out } => self.copy(input, out),
            Op::Columns { first, input, out } => self.columns(first, input, out),
            Op::Concat {
                heads,
                first,
                second,
                out,
            } => self.concat(heads, [first, second], out),
            Op::Add { out, input, scale } => self.add(out, input, scale),
            Op::AddVector { vector, buffer } => self.add_vector(vector, buffer),
            Op::Want { input, out } => self.want(input, out),
            Op::Softcap { cap, buffer } => self.softcap(cap, buffer),
        }
    }

    fn width(&self, id: BufferId) -> usize {
        self.program.plan.buffer(id).width
    }

    /// Rows that a buffer holds in this call.
    fn row_count(&self, id: BufferId) -> usize {
        match self.program.plan.buffer(id).rows {
            Rows::All => self.scratch.rows.len(),
            Rows::Wanted => self.batch.wanted(),
        }
    }

    /// `[rows, width]`.
    fn buffer(&self, id: BufferId) -> &[f32] {
        let len = self.row_count(id) * self.width(id);
        if id == self.program.plan.logits {
            &self.logits[..len]
        } else {
            &self.scratch.buffers[id.0][..len]
        }
    }

    /// `[rows, width]`, to be written: what was packed of it is stale then.
    fn buffer_mut(&mut self, id: BufferId) -> &mut [f32] {
        let len = self.row_count(id) * self.width(id);
        self.scratch.forget_packed(id);
        if id == self.program.plan.logits {
            &mut self.logits[..len]
        } else {
            &mut self.scratch.buffers[id.0][..len]
        }
    }

    /// Two buffers, the first to be read, the second to be written. They differ, and the first is not the logits.
    fn two_buffers(&mut self, read: BufferId, write: BufferId) -> (&[f32], &mut [f32]) {
        let read_len = self.row_count(read) * self.width(read);
        let write_len = self.row_count(write) * self.width(write);
        self.scratch.forget_packed(write);
        if write == self.program.plan.logits {
            return (&self.scratch.buffers[read.0][..read_len], &mut self.logits[..write_len]);
        }
        let [from, to] = self
            .scratch
            .buffers
            .get_disjoint_mut([read.0, write.0])
            .expect("an op's buffers differ");
        (&from[..read_len], &mut to[..write_len])
    }
}

/// The buffers of a call but one, to be read while that one is written.
struct Reads<'a> {
    before: &'a [AlignedVec<f32>],
    after: &'a [AlignedVec<f32>],
}

impl<'a> Reads<'a> {
    /// The first `len` elements of a buffer, which is not the one that is written.
    fn get(&self, id: BufferId, len: usize) -> &'a [f32] {
        let written = self.before.len();
        let buffer = match id.0 < written {
            true => &self.before[id.0],
            false => &self.after[id.0 - written - 1],
        };
        &buffer[..len]
    }
}

/// The buffer `write`, which is not the logits, and all others.
fn split_buffers(buffers: &mut [AlignedVec<f32>], write: BufferId) -> (Reads<'_>, &mut [f32]) {
    let (before, rest) = buffers.split_at_mut(write.0);
    let (write, after) = rest.split_first_mut().expect("a plan's buffers are its own");
    (Reads { before, after }, write)
}

impl Scratch {
    /// The buffer `write`, which is not the logits, and all others.
    fn split(&mut self, write: BufferId) -> (Reads<'_>, &mut [f32]) {
        self.forget_packed(write);
        split_buffers(&mut self.buffers, write)
    }

    fn forget_packed(&mut self, written: BufferId) {
        if self.packed_of.is_some_and(|(packed, _)| packed == written) {
            self.packed_of = None;
        }
    }
}
