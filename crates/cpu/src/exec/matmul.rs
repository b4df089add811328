//! Matrix products: the input is packed once, then the threads share the output columns.

use goldcrest_kernels::{ActivationGroupMut, ActivationType, Activations as Packed, GROUP_ROWS_MAX, PANEL_ROWS};
use goldcrest_model::plan::{Activations, BufferId};

use super::Call;
use crate::pool::{Part, Tiles};
use crate::weights::Panels;
use crate::{Cpu, CpuError, Program};

/// Packed activations, as f32, that stay in a core's L2 while the panels stream by.
const ROW_RANGE_BYTES: usize = 384 << 10;

impl Call<'_, '_> {
    /// Packs the rows of `input`, unless the product before has.
    pub fn pack(&mut self, input: BufferId, activations: Activations) -> Result<(), CpuError> {
        let kind = activation_type(activations);
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
        packed.reset(kind, rows, k);
        pack_groups(cpu, &buffers[input.0][..rows * k], packed)?;
        *packed_of = Some((input, kind));
        Ok(())
    }
}

/// How the kernels pack the input of a product.
pub fn activation_type(activations: Activations) -> ActivationType {
    match activations {
        Activations::Q8 => ActivationType::Q8,
        Activations::F32 => ActivationType::F32,
    }
}

/// Packs `x`, the rows that were made room for, on all threads where that pays.
pub fn pack_groups(cpu: &Cpu, x: &[f32], packed: &mut Packed) -> Result<(), CpuError> {
    let k = packed.k();
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

fn pack_group(cpu: &Cpu, group: ActivationGroupMut, x: &[f32], k: usize) {
    let (first, rows) = (group.first_row(), group.rows());
    group.pack(cpu.kernels, &x[first * k..][..rows * k]);
}

/// Where to cut rows into ranges whose packed values stay in the cache while the panels of a tile stream by, and their end.
pub fn row_cuts(packed: &Packed, cuts: &mut Vec<usize>) {
    let group_bytes = GROUP_ROWS_MAX * packed.k() * size_of::<f32>();
    let groups = (ROW_RANGE_BYTES / group_bytes.max(1)).max(1);
    cuts.clear();
    cuts.extend(packed.groups().step_by(groups).map(|group| group.first_row()));
    cuts.push(packed.rows());
}

/// The rows and columns of `out`, whose column `base` is the matrix's first output. Each panel is read once.
pub fn multiply(
    cpu: &Cpu,
    program: &Program,
    weighted: &Weighted,
    packed: &Packed,
    (out, base): (&mut Part<f32>, usize),
) {
    let Weighted { panels, bias } = weighted;
    let columns = out.columns().start - base..out.columns().end - base;
    if columns.is_empty() {
        return; // a thread without a share may stand in the middle of a panel
    }
    for index in columns.start / PANEL_ROWS..columns.end.div_ceil(PANEL_ROWS) {
        let panel = program.weights.panel(panels, index);
        let outputs = index * PANEL_ROWS..((index + 1) * PANEL_ROWS).min(columns.end);
        let bias = bias.map(|bias| &bias[outputs.clone()]);
        for group in packed.groups_from(out.rows()) {
            let mut tile = [0.0; GROUP_ROWS_MAX * PANEL_ROWS];
            let tile = &mut tile[..group.rows() * PANEL_ROWS];
            cpu.kernels.matmul(panels.panel_type, panel, group, tile);
            for (i, row) in tile.chunks_exact(PANEL_ROWS).enumerate() {
                let target = &mut out.row_mut(group.first_row() + i)[outputs.start - columns.start..][..outputs.len()];
                store(row, bias, target);
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
