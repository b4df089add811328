//! Matrix products: the input is packed once, then the threads share the output columns.

use goldcrest_kernels::{ActivationGroupMut, ActivationType, Activations as Packed, GROUP_ROWS_MAX, PANEL_ROWS};
use goldcrest_model::plan::{Activations, BufferId, MatrixId, VectorId};

use super::Call;
use crate::pool::{Part, Parts, Tiles};
use crate::weights::Panels;
use crate::{Cpu, CpuError, Program};

/// Packed activations that stay in a core's L2 while the panels stream by.
const ROW_CHUNK_BYTES: usize = 384 << 10;

/// The operands of [`goldcrest_model::plan::Op::MatMul`].
#[derive(Clone, Copy)]
pub struct Product {
    pub weight: MatrixId,
    pub bias: Option<VectorId>,
    pub activations: Activations,
    pub input: BufferId,
    pub out: BufferId,
}

impl Call<'_, '_> {
    pub fn matmul(&mut self, product: Product) -> Result<(), CpuError> {
        if self.row_count(product.input) == 0 {
            return Ok(());
        }
        let (cpu, program) = (self.cpu, self.program);
        self.pack(product.input, product.activations)?;
        let panels = program.weights.matrix(product.weight);
        let bias = product.bias.map(|id| program.weights.vector(id));
        let len = self.row_count(product.out) * panels.outputs;
        self.scratch.forget_packed(product.out);
        let super::Scratch { buffers, packed, .. } = &mut *self.scratch;
        let out = if product.out == program.plan.logits {
            &mut *self.logits
        } else {
            &mut buffers[product.out.0]
        };
        run_product(cpu, program, &Weighted { panels, bias }, packed, &mut out[..len])
    }

    /// Packs the rows of `input`, unless the product before has.
    fn pack(&mut self, input: BufferId, activations: Activations) -> Result<(), CpuError> {
        let kind = match activations {
            Activations::Q8 => ActivationType::Q8,
            Activations::F32 => ActivationType::F32,
        };
        if self.scratch.packed_of == Some((input, kind)) {
            return Ok(());
        }
        let (cpu, rows, k) = (self.cpu, self.row_count(input), self.width(input));
        let super::Scratch {
            buffers,
            packed,
            packed_of,
            ..
        } = &mut *self.scratch;
        pack_rows(cpu, kind, &buffers[input.0][..rows * k], k, packed)?;
        *packed_of = Some((input, kind));
        Ok(())
    }
}

/// Packs `x`, rows of `k` values, on all threads where that pays.
pub fn pack_rows(cpu: &Cpu, kind: ActivationType, x: &[f32], k: usize, packed: &mut Packed) -> Result<(), CpuError> {
    packed.reset(kind, x.len().checked_div(k).unwrap_or(0), k);
    if packed.rows() <= GROUP_ROWS_MAX {
        packed.groups_mut().for_each(|group| pack_group(cpu, group, x, k));
        return Ok(());
    }
    let mut groups: Vec<Option<ActivationGroupMut>> = packed.groups_mut().map(Some).collect();
    let tiles = Tiles::new(&mut groups, 1, (1, 1));
    cpu.pool.run(&|_| {
        while let Some(mut tile) = tiles.next() {
            let group = tile.row_mut(tile.rows().start).iter_mut().find_map(Option::take);
            group.into_iter().for_each(|group| pack_group(cpu, group, x, k));
        }
    })?;
    Ok(())
}

/// A matrix with its bias.
#[derive(Clone, Copy)]
pub struct Weighted<'a> {
    pub panels: Panels,
    pub bias: Option<&'a [f32]>,
}

/// `out = W · x + bias` for the rows packed, on all threads; `out` is `[rows, outputs]`.
pub fn run_product(
    cpu: &Cpu,
    program: &Program,
    weighted: &Weighted,
    packed: &Packed,
    out: &mut [f32],
) -> Result<(), CpuError> {
    let parts = Parts::of_columns(out, weighted.panels.outputs, PANEL_ROWS, cpu.pool.threads());
    cpu.pool
        .run(&|thread| multiply(cpu, program, weighted, packed, (parts.take(thread), 0)))?;
    Ok(())
}

fn pack_group(cpu: &Cpu, group: ActivationGroupMut, x: &[f32], k: usize) {
    let (first, rows) = (group.first_row(), group.rows());
    group.pack(cpu.kernels, &x[first * k..][..rows * k]);
}

/// One thread's share: all rows, the columns of `out`, of which `base` is the matrix's first output. Rows go by in chunks that stay in the
/// cache; within one, each panel is read once.
pub fn multiply(
    cpu: &Cpu,
    program: &Program,
    weighted: &Weighted,
    packed: &Packed,
    (mut out, base): (Part<f32>, usize),
) {
    let Weighted { panels, bias } = weighted;
    let columns = out.columns().start - base..out.columns().end - base;
    if columns.is_empty() {
        return; // a thread without a share may stand in the middle of a panel
    }
    let groups_per_chunk = (ROW_CHUNK_BYTES / (GROUP_ROWS_MAX * panels.k * 4).max(1)).max(1);
    let groups = packed.groups().len();
    for chunk in (0..groups).step_by(groups_per_chunk) {
        for index in columns.start / PANEL_ROWS..columns.end.div_ceil(PANEL_ROWS) {
            let panel = program.weights.panel(panels, index);
            let outputs = index * PANEL_ROWS..((index + 1) * PANEL_ROWS).min(columns.end);
            let bias = bias.map(|bias| &bias[outputs.clone()]);
            for group in packed.groups().skip(chunk).take(groups_per_chunk) {
                let mut tile = [0.0; GROUP_ROWS_MAX * PANEL_ROWS];
                let tile = &mut tile[..group.rows() * PANEL_ROWS];
                cpu.kernels.matmul(panels.panel_type, panel, group, tile);
                for (i, row) in tile.chunks_exact(PANEL_ROWS).enumerate() {
                    let target =
                        &mut out.row_mut(group.first_row() + i)[outputs.start - columns.start..][..outputs.len()];
                    store(row, bias, target);
                }
            }
        }
    }
}

/// Copies a row of a tile to its place, adding the bias.
fn store(row: &[f32], bias: Option<&[f32]>, target: &mut [f32]) {
    match bias {
        None => target.copy_from_slice(&row[..target.len()]),
        Some(bias) => {
            for (out, (x, b)) in target.iter_mut().zip(row.iter().zip(bias)) {
                *out = x + b;
            }
        }
    }
}
