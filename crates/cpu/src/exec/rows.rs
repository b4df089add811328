//! Ops that work on each row by itself.

use std::sync::atomic::{AtomicUsize, Ordering};

use goldcrest_kernels::{Kernels, KvLayout, SEGMENT_POSITIONS};
use goldcrest_model::plan::{BufferId, KvId, MatrixId, NormId, NormUse, RopeId, VectorId};
use goldcrest_model::spec::{Norm, NormKind};

use super::attend::rotate_keys;
use super::{Call, Row};
use crate::pool::{Parts, Pool, Tiles};
use crate::{Cpu, CpuError, Program};

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

/// A norm with its weights.
pub struct RowNorm<'a> {
    norm: &'a Norm,
    /// Elements that are normed together.
    part: usize,
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
}

impl<'a> RowNorm<'a> {
    pub fn new(program: &'a Program, norm: NormId, part: usize) -> RowNorm<'a> {
        let NormUse { norm, weight, bias } = &program.plan.norms[norm.0];
        let vector = |id: &Option<VectorId>| id.map(|id| program.weights.vector(id));
        RowNorm {
            norm,
            part,
            weight: vector(weight),
            bias: vector(bias),
        }
    }

    /// Norms whole rows in place.
    pub fn apply(&self, kernels: Kernels, rows: &mut [f32]) {
        let eps = self.norm.eps;
        match self.norm.kind {
            NormKind::Rms => kernels.rms_norm(rows, self.part, self.weight, eps),
            NormKind::Layer => kernels.layer_norm(rows, self.part, self.weight, self.bias, eps),
            NormKind::Unit => kernels.l2_norm(rows, self.part, eps),
        }
    }
}

impl Call<'_, '_> {
    pub fn embed(&mut self, table: MatrixId, scale: f32, out: BufferId) -> Result<(), CpuError> {
        let (cpu, program, batch) = (self.cpu, self.program, self.batch);
        let (width, len) = (self.width(out), self.row_count(out) * self.width(out));
        self.scratch.forget_packed(out);
        let super::Scratch { buffers, tables, .. } = &mut *self.scratch;
        let rows = buffers[out.0][..len].chunks_exact_mut(width);
        let ids = batch.parts.iter().flat_map(|part| part.ids);
        for (&id, row) in ids.zip(rows) {
            tables.row(program, table, id as usize, row)?;
            if scale != 1.0 {
                cpu.kernels.scale(row, scale);
            }
        }
        Ok(())
    }

    pub fn embed_position(&mut self, table: MatrixId, out: BufferId) -> Result<(), CpuError> {
        let (cpu, program) = (self.cpu, self.program);
        let width = self.width(out);
        let len = self.row_count(out) * width;
        let super::Scratch {
            buffers,
            rows,
            line,
            tables,
            ..
        } = &mut *self.scratch;
        line.resize(width, 0.0);
        for (row, stream) in rows.iter().zip(buffers[out.0][..len].chunks_exact_mut(width)) {
            tables.row(program, table, row.position, line)?;
            cpu.kernels.add(stream, line);
        }
        self.scratch.forget_packed(out);
        Ok(())
    }

    pub fn norm(&mut self, norm: NormId, groups: usize, input: BufferId, out: BufferId) -> Result<(), CpuError> {
        let cpu = self.cpu;
        let width = self.width(out);
        let norm = RowNorm::new(self.program, norm, width / groups);
        if input == out {
            return over_rows(&cpu.pool, self.buffer_mut(out), width, &|_, rows| {
                norm.apply(cpu.kernels, rows);
            });
        }
        let (from, to) = self.two_buffers(input, out);
        over_rows(&cpu.pool, to, width, &|first, rows| {
            rows.copy_from_slice(&from[first * width..][..rows.len()]);
            norm.apply(cpu.kernels, rows);
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
        let cpu = self.cpu;
        let super::Scratch {
            buffers, rows, rotated, ..
        } = &mut *self.scratch;
        let Some(layout) = self.states.first().map(|state| *state.layer(kv.0).layout()) else {
            return Ok(());
        };
        let mut keys = &buffers[key.0][..rows.len() * key_width];
        let mut values = value.map_or(&[][..], |value| &buffers[value.0][..rows.len() * value_width]);
        if layout.element.is_quantized() {
            rotated.clear();
            rotated.reserve_exact(keys.len() + values.len());
            rotated.extend(keys.iter().chain(values));
            let (rotated_keys, rotated_values) = rotated.split_at_mut(keys.len());
            over_rows(&cpu.pool, rotated_keys, key_width, &|_, keys| {
                rotate_keys(cpu.kernels, &layout, keys);
            })?;
            if layout.v_dim > 0 {
                over_rows(&cpu.pool, rotated_values, value_width, &|_, values| {
                    cpu.kernels.rotate_signed(values, layout.v_dim);
                })?;
            }
            (keys, values) = (rotated_keys, rotated_values);
        }
        let page_of = |row: &Row| (row.part, row.position / SEGMENT_POSITIONS);
        for rows in rows.chunk_by(|a, b| page_of(a) == page_of(b)) {
            let (part, segment) = page_of(&rows[0]);
            let (page_keys, page_values);
            (page_keys, keys) = keys.split_at(rows.len() * key_width);
            (page_values, values) = values.split_at(rows.len() * value_width);
            let of_page = PageRows {
                cpu,
                layout,
                first_slot: rows[0].position % SEGMENT_POSITIONS,
                rows: rows.len(),
                keys: page_keys,
                values: page_values,
            };
            let state = &mut *self.states[part];
            let saturated = of_page.store(state.page_mut(kv.0, segment))?;
            state.add_saturated(saturated);
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

/// Keys and values of rows that follow each other, on their way to a page.
struct PageRows<'a> {
    cpu: &'a Cpu,
    layout: KvLayout,
    first_slot: usize,
    rows: usize,
    /// `[rows, heads · k_dim]`
    keys: &'a [f32],
    /// `[rows, heads · v_dim]`
    values: &'a [f32],
}

impl PageRows<'_> {
    /// Stores them in the `[heads, page_bytes]` of a page, the threads sharing the heads where that pays, and returns how many numbers
    /// saturated.
    fn store(&self, page: &mut [u8]) -> Result<usize, CpuError> {
        let page_bytes = self.layout.page_bytes();
        let heads = page.len() / page_bytes;
        let saturated = AtomicUsize::new(0);
        let tiles = Tiles::new(page, page_bytes, (1, page_bytes));
        let store = |_| {
            while let Some(mut tile) = tiles.next() {
                let head = tile.rows().start;
                saturated.fetch_add(self.store_head(head, heads, tile.row_mut(head)), Ordering::Relaxed);
            }
        };
        if self.keys.len() + self.values.len() <= INLINE_ELEMENTS || heads == 1 {
            store(0);
        } else {
            self.cpu.pool.run(&store)?;
        }
        Ok(saturated.into_inner())
    }

    fn store_head(&self, head: usize, heads: usize, page: &mut [u8]) -> usize {
        let KvLayout { k_dim, v_dim, .. } = self.layout;
        (0..self.rows)
            .map(|row| {
                let place = row * heads + head;
                let key = &self.keys[place * k_dim..][..k_dim];
                let value = &self.values[place * v_dim..][..v_dim];
                self.layout.write(page, self.first_slot + row, key, value)
            })
            .sum()
    }
}
