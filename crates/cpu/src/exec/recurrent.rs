//! Ops that carry a memory from row to row. Rows of a sequence follow each other; the threads share channels or heads.

use goldcrest_kernels::{CausalConv, Columns, ColumnsMut, Decay as KernelDecay, LinearStep, ScanStep};
use goldcrest_model::plan::{Decay, Op};
use goldcrest_model::spec::KeySharing;

use super::Call;
use crate::CpuError;
use crate::pool::Parts;

/// Channels that a thread takes at least: a vector of the widest instruction set.
const CHANNEL_UNIT: usize = 16;

impl Call<'_, '_> {
    pub fn conv(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::Conv {
            memory,
            weight,
            bias,
            buffer,
            ..
        } = *op
        else {
            return Ok(());
        };
        let (cpu, program) = (self.cpu, self.program);
        let channels = self.width(buffer);
        let weight = Columns::new(program.weights.vector(weight), channels);
        let bias = bias.map(|id| program.weights.vector(id));
        let threads = cpu.pool.threads();
        let parts = self.batch.part_rows();
        self.scratch.forget_packed(buffer);
        let rows = &mut self.scratch.buffers[buffer.0];
        for ((range, _), state) in parts.zip(self.states.iter_mut()) {
            let rows = &mut rows[range.start * channels..range.end * channels];
            let rows = Parts::of_columns(rows, channels, CHANNEL_UNIT, threads);
            let tail = Parts::of_columns(state.recurrent_mut(memory), channels, CHANNEL_UNIT, threads);
            cpu.pool.run(&|thread| {
                let (mut rows, mut tail) = (rows.take(thread), tail.take(thread));
                let share = rows.columns();
                let conv = CausalConv {
                    weight: weight.range(share.clone()),
                    bias: bias.map(|bias| &bias[share]),
                };
                cpu.kernels
                    .causal_conv(&conv, &mut tail.columns_mut(), &mut rows.columns_mut());
            })?;
        }
        Ok(())
    }

    pub fn linear_state(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::LinearState {
            memory,
            heads,
            key_heads,
            key_sharing,
            decay,
            beta,
            query,
            key,
            value,
            out,
        } = *op
        else {
            return Ok(());
        };
        let cpu = self.cpu;
        let threads = cpu.pool.threads();
        let [key_width, value_width] = [key, value].map(|id| self.width(id));
        let decay_width = match decay {
            Decay::Buffer(id) => self.width(id),
            Decay::Slopes { .. } => 0,
        };
        let all_rows = self.scratch.rows.len();
        let parts = self.batch.part_rows();
        let (reads, out) = self.scratch.split(out);
        let step = HeadSteps {
            query: reads.get(query, all_rows * key_width),
            key: reads.get(key, all_rows * key_width),
            value: reads.get(value, all_rows * value_width),
            beta: beta.map(|id| reads.get(id, all_rows * heads)),
            decays: match decay {
                Decay::Buffer(id) => reads.get(id, all_rows * decay_width),
                Decay::Slopes { .. } => &[],
            },
            decays_per_key: decay_width > heads,
            heads,
            key_heads,
            key_sharing,
            key_dim: key_width / key_heads,
            value_dim: value_width / heads,
        };
        let state_len = step.key_dim * step.value_dim;
        for ((range, _), state) in parts.zip(self.states.iter_mut()) {
            let out = &mut out[range.start * value_width..range.end * value_width];
            let out = Parts::of_columns(out, value_width, step.value_dim, threads);
            let memory = Parts::of_slice(state.recurrent_mut(memory), state_len, threads);
            cpu.pool.run(&|thread| {
                let (mut out, memory) = (out.take(thread), memory.take_slice(thread));
                let first_head = out.columns().start / step.value_dim;
                for (i, state) in memory.chunks_exact_mut(state_len).enumerate() {
                    let head = first_head + i;
                    let constant = match decay {
                        Decay::Slopes { scale } => Some(slope_decay(scale, head, heads)),
                        Decay::Buffer(_) => None,
                    };
                    let mut state = ColumnsMut::new(state, step.value_dim);
                    for row in range.clone() {
                        let out = &mut out.row_mut(row - range.start)[i * step.value_dim..][..step.value_dim];
                        cpu.kernels
                            .linear_state_step(&mut state, &step.at(row, head, constant), out);
                    }
                }
            })?;
        }
        Ok(())
    }

    pub fn scan(&mut self, op: &Op) -> Result<(), CpuError> {
        let Op::Scan {
            memory,
            rate,
            skip,
            x,
            dt,
            b,
            c,
            out,
        } = *op
        else {
            return Ok(());
        };
        let (cpu, program) = (self.cpu, self.program);
        let threads = cpu.pool.threads();
        let (channels, state_dim) = (self.width(x), self.width(b));
        let rate = Columns::new(program.weights.vector(rate), channels);
        let skip = program.weights.vector(skip);
        let all_rows = self.scratch.rows.len();
        let parts = self.batch.part_rows();
        let (reads, out) = self.scratch.split(out);
        let [x, dt] = [x, dt].map(|id| reads.get(id, all_rows * channels));
        let [b, c] = [b, c].map(|id| reads.get(id, all_rows * state_dim));
        for ((range, _), state) in parts.zip(self.states.iter_mut()) {
            let out = &mut out[range.start * channels..range.end * channels];
            let out = Parts::of_columns(out, channels, CHANNEL_UNIT, threads);
            let memory = Parts::of_columns(state.recurrent_mut(memory), channels, CHANNEL_UNIT, threads);
            cpu.pool.run(&|thread| {
                let (mut out, mut memory) = (out.take(thread), memory.take(thread));
                let share = out.columns();
                let mut state = memory.columns_mut();
                for row in range.clone() {
                    let step = ScanStep {
                        a: rate.range(share.clone()),
                        x: &x[row * channels..][..channels][share.clone()],
                        dt: &dt[row * channels..][..channels][share.clone()],
                        b: &b[row * state_dim..][..state_dim],
                        c: &c[row * state_dim..][..state_dim],
                        d: &skip[share.clone()],
                    };
                    cpu.kernels
                        .selective_scan_step(&mut state, &step, out.row_mut(row - range.start));
                }
            })?;
        }
        Ok(())
    }
}

/// See [`Decay::Slopes`].
fn slope_decay(scale: f32, head: usize, heads: usize) -> f32 {
    let slope = libm::exp2(-8.0 * (head + 1) as f64 / heads as f64);
    libm::exp(-f64::from(scale) * slope) as f32
}

/// The inputs of a linear state, for all rows and heads.
struct HeadSteps<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    beta: Option<&'a [f32]>,
    /// One a head, or one a key dimension of each head; nothing where each head's is the same for every row.
    decays: &'a [f32],
    decays_per_key: bool,
    heads: usize,
    key_heads: usize,
    key_sharing: KeySharing,
    key_dim: usize,
    value_dim: usize,
}

impl<'a> HeadSteps<'a> {
    /// `constant` is the decay of the head, if it is the same for every row.
    fn at(&self, row: usize, head: usize, constant: Option<f32>) -> LinearStep<'a> {
        let key_head = match self.key_sharing {
            KeySharing::Neighbours => head / (self.heads / self.key_heads),
            KeySharing::InTurns => head % self.key_heads,
        };
        let key_start = (row * self.key_heads + key_head) * self.key_dim;
        let index = row * self.heads + head;
        let decay = match constant {
            Some(decay) => KernelDecay::One(decay),
            None if self.decays_per_key => KernelDecay::PerKey(&self.decays[index * self.key_dim..][..self.key_dim]),
            None => KernelDecay::One(self.decays[index]),
        };
        LinearStep {
            query: &self.query[key_start..][..self.key_dim],
            key: &self.key[key_start..][..self.key_dim],
            value: &self.value[index * self.value_dim..][..self.value_dim],
            decay,
            beta: self.beta.map(|beta| beta[index]),
        }
    }
}
