//! Ops that work on each row by itself.

use goldcrest_kernels::Kernels;
use goldcrest_model::plan::{BufferId, KvId, MatrixId, NormId, RopeId};
use goldcrest_model::spec::NormKind;

use super::Call;
use super::attend::rotate_keys;
use crate::CpuError;
use crate::pool::{Parts, Pool};

/// Elements below which an op is done before other threads would have woken.
const INLINE_ELEMENTS: usize = 16 * 1024;

/// Runs `work(first_row, rows)` over the rows of `data`, split among the threads where that pays.
pub fn over_rows(
    pool: &Pool,
    data: &mut [f32],
    width: usize,
    work: &(dyn Fn(usize, &mut [f32]) + Sync),
) -> Result<(), CpuError> {
    if data.len() <= INLINE_ELEMENTS || pool.threads() == 1 {
        work(0, data);
        return Ok(());
    }
    let parts = Parts::of_columns(data, data.len(), width, pool.threads());
    pool.run(&|thread| {
        let mut part = parts.take(thread);
        let first_row = part.columns().start / width;
        work(first_row, part.row_mut(0));
    })?;
    Ok(())
}

impl Call<'_, '_> {
    pub fn embed(&mut self, table: MatrixId, scale: f32, out: BufferId) -> Result<(), CpuError> {
        let (cpu, program, batch) = (self.cpu, self.program, self.batch);
        let panels = program.weights.matrix(table);
        let width = self.width(out);
        let mut rows = self.buffer_mut(out).chunks_exact_mut(width);
        let ids = batch.parts.iter().flat_map(|part| part.ids);
        for (&id, row) in ids.zip(&mut rows) {
            program.weights.row(&panels, id as usize, row);
            if scale != 1.0 {
                cpu.kernels.scale(row, scale);
            }
        }
        Ok(())
    }

    pub fn embed_position(&mut self, table: MatrixId, out: BufferId) -> Result<(), CpuError> {
        let (cpu, program) = (self.cpu, self.program);
        let panels = program.weights.matrix(table);
        let width = self.width(out);
        let len = self.row_count(out) * width;
        let super::Scratch {
            buffers, rows, line, ..
        } = &mut *self.scratch;
        line.resize(width, 0.0);
        for (row, stream) in rows.iter().zip(buffers[out.0][..len].chunks_exact_mut(width)) {
            program.weights.row(&panels, row.position, line);
            cpu.kernels.add(stream, line);
        }
        self.scratch.forget_packed(out);
        Ok(())
    }

    pub fn norm(&mut self, norm: NormId, groups: usize, input: BufferId, out: BufferId) -> Result<(), CpuError> {
        let (cpu, program) = (self.cpu, self.program);
        let used = &program.plan.norms[norm.0];
        let weight = used.weight.map(|id| program.weights.vector(id));
        let bias = used.bias.map(|id| program.weights.vector(id));
        let (width, eps) = (self.width(out), used.norm.eps);
        let part = width / groups;
        let norm_rows = |rows: &mut [f32]| match used.norm.kind {
            NormKind::Rms => cpu.kernels.rms_norm(rows, part, weight, eps),
            NormKind::Layer => cpu.kernels.layer_norm(rows, part, weight, bias, eps),
            NormKind::Unit => cpu.kernels.l2_norm(rows, part, eps),
        };
        if input == out {
            return over_rows(&cpu.pool, self.buffer_mut(out), width, &|_, rows| norm_rows(rows));
        }
        let (from, to) = self.two_buffers(input, out);
        over_rows(&cpu.pool, to, width, &|first, rows| {
            rows.copy_from_slice(&from[first * width..][..rows.len()]);
            norm_rows(rows);
        })
    }

    pub fn rope(&mut self, rope: RopeId, heads: usize, buffer: BufferId) -> Result<(), CpuError> {
        let cpu = self.cpu;
        let width = self.width(buffer);
        let half = self.program.plan.ropes[rope.0].rotary / 2;
        self.scratch.forget_packed(buffer);
        let len = self.row_count(buffer) * width;
        let super::Scratch { buffers, ropes, .. } = &mut *self.scratch;
        let angles = &ropes[rope.0];
        over_rows(&cpu.pool, &mut buffers[buffer.0][..len], width, &|first, rows| {
            for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                let at = (first + i) * half..(first + i + 1) * half;
                cpu.kernels
                    .rotate_halves(row, width / heads, &angles.cos[at.clone()], &angles.sin[at]);
            }
        })
    }

    pub fn kv_write(&mut self, kv: KvId, key: BufferId, value: Option<BufferId>) -> Result<(), CpuError> {
        let (key_width, value_width) = (self.width(key), value.map_or(0, |value| self.width(value)));
        let super::Scratch {
            buffers, rows, rotated, ..
        } = &mut *self.scratch;
        for (i, row) in rows.iter().enumerate() {
            let mut keys = &buffers[key.0][i * key_width..][..key_width];
            let mut values = value.map_or(&[][..], |value| &buffers[value.0][i * value_width..][..value_width]);
            let layout = *self.states[row.part].layer(kv.0).layout();
            if layout.element.is_quantized() {
                rotated.clear();
                rotated.extend(keys.iter().chain(values));
                let (rotated_keys, rotated_values) = rotated.split_at_mut(key_width);
                rotate_keys(self.cpu.kernels, &layout, rotated_keys);
                if !rotated_values.is_empty() {
                    self.cpu.kernels.rotate_signed(rotated_values, layout.v_dim);
                }
                (keys, values) = (rotated_keys, rotated_values);
            }
            self.states[row.part].write(kv.0, row.position, keys, values);
        }
        Ok(())
    }

    pub fn want(&mut self, input: BufferId, out: BufferId) -> Result<(), CpuError> {
        let batch = self.batch;
        let width = self.width(out);
        let (input, out) = self.two_buffers(input, out);
        let mut out = out.chunks_exact_mut(width);
        for (rows, part) in batch.part_rows() {
            for (&row, target) in part.wanted.iter().zip(&mut out) {
                target.copy_from_slice(&input[(rows.start + row) * width..][..width]);
            }
        }
        Ok(())
    }

    pub fn softcap(&mut self, cap: f32, buffer: BufferId) -> Result<(), CpuError> {
        let cpu = self.cpu;
        let width = self.width(buffer);
        let softcap = |kernels: Kernels, rows: &mut [f32]| kernels.softcap(rows, cap);
        over_rows(&cpu.pool, self.buffer_mut(buffer), width, &|_, rows| {
            softcap(cpu.kernels, rows)
        })
    }
}
