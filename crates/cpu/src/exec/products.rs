//! Runs a step of products: one region, in which the threads share tiles of the outputs.

use goldcrest_kernels::{Activations as Packed, GroupRun, PANEL_ROWS};

use super::Call;
use super::elementwise::kernel;
use super::matmul::{Weighted, multiply};
use super::step::{ColumnOp, Group, MOST_GROUPS, Products};
use crate::pool::{Part, SharedTile, SharedTiles, TileOrder, of_rows, split};
use crate::streamed::Lease;
use crate::{Cpu, CpuError, Program};

#[cfg(test)]
mod tests;

/// Tiles for each thread where there are many rows, so that a slow thread leaves some to the others. One that is four times slower than
/// they are may take its last tile just before they finish: with 16 they then wait for at most a quarter of the time of the product.
pub const TILES_PER_THREAD: usize = 16;

/// Most weights of a tile that several runs of rows meet, one after the other: they stay in the last cache meanwhile and are asked for
/// early, while a run of rows stays in the second.
pub const TILE_WEIGHT_BYTES: usize = 4 << 20;

impl Call<'_, '_> {
    /// The region of a step whose input is packed; `streamed` has its matrices, where they are not resident.
    pub fn products(&mut self, step: &Products, streamed: Option<&Lease>) -> Result<(), CpuError> {
        let rows = self.row_count(step.input);
        if rows == 0 {
            return Ok(());
        }
        let (cpu, program) = (self.cpu, self.program);
        step.homes
            .iter()
            .for_each(|home| self.scratch.forget_packed(home.buffer));
        let super::Scratch {
            buffers,
            packed,
            row_cuts: cuts,
            ..
        } = &mut *self.scratch;
        let packed = &*packed;
        let panel_bytes = |group: &Group| group_panel_bytes(program, group);
        let step_bytes = step
            .groups
            .iter()
            .map(|group| weight_bytes(group.columns.len(), panel_bytes(group)));
        let tile_bytes = tile_bytes(packed, step_bytes.sum(), cpu.threads());
        let columns = |group: &Group| tile_columns(group.columns.len(), panel_bytes(group), tile_bytes, cpu.threads());
        let column_tiles = step
            .groups
            .iter()
            .map(|group| group.columns.len().div_ceil(columns(group)));
        row_cuts(packed, column_tiles.sum(), cpu.threads(), cuts);
        let mut tiles: [Option<SharedTiles<f32>>; MOST_GROUPS] = Default::default();
        for (tiles, group) in tiles.iter_mut().zip(&step.groups) {
            let width = program.plan.buffer(group.buffers[0]).width;
            let all = (width, group.columns.clone());
            *tiles = Some(SharedTiles::new(cuts, all, columns(group), TileOrder::Rows));
        }
        let mut homes = step.homes.iter().peekable();
        let mut logits = Some(&mut *self.logits);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let Some(home) = homes.next_if(|home| home.buffer.0 == index) else {
                continue;
            };
            let is_logits = home.buffer == program.plan.logits;
            let slice = logits.take_if(|_| is_logits).unwrap_or(buffer);
            if let Some(tiles) = &mut tiles[home.group] {
                tiles.set(home.place, &mut slice[..rows * program.plan.buffer(home.buffer).width]);
            }
        }
        let weights = StepWeights { cpu, program, streamed };
        cpu.pool.run(&|_| {
            for (group, tiles) in step.groups.iter().zip(tiles.iter().flatten()) {
                while let Some(mut tile) = tiles.next() {
                    // All of the group's ops while the rows and what is made of them are in the cache.
                    for rows in packed.runs_of(part(&mut tile, 0).rows()) {
                        let mut tile = of_rows(&mut tile, rows.row_range());
                        let ops = group.ops.iter();
                        ops.for_each(|op| weights.run(op, rows, &mut tile, group.columns.start));
                    }
                }
            }
        })?;
        Ok(())
    }
}

/// Bytes of all panels of a group's matrices that stand for the same columns.
fn group_panel_bytes(program: &Program, group: &Group) -> usize {
    let panel_bytes = |op: &ColumnOp| match *op {
        ColumnOp::MatMul { weight, .. } => program.weights.matrix(weight).panel_bytes,
        _ => 0,
    };
    group.ops.iter().map(panel_bytes).sum()
}

fn weight_bytes(width: usize, panel_bytes: usize) -> usize {
    width.div_ceil(PANEL_ROWS).saturating_mul(panel_bytes)
}

/// Weights of a tile; none: as many as a thread's share. A tile reads its weights and its rows once, so that all tiles together read
/// least where the two are equal.
pub fn tile_bytes(packed: &Packed, weight_bytes: usize, threads: usize) -> Option<usize> {
    let tiles = TILES_PER_THREAD * threads;
    let equal = || (weight_bytes / tiles).saturating_mul(packed.bytes()).isqrt();
    (packed.group_count() > 1).then(|| equal().min(TILE_WEIGHT_BYTES))
}

/// Columns of a tile: whole panels, in tiles of even sizes.
pub fn tile_columns(width: usize, panel_bytes: usize, tile_bytes: Option<usize>, threads: usize) -> usize {
    let panels = width.div_ceil(PANEL_ROWS);
    let share = panels.div_ceil(threads).max(1);
    let most = tile_bytes.map_or(share, |bytes| (bytes / panel_bytes.max(1)).clamp(1, share));
    panels.div_ceil(panels.div_ceil(most).max(1)) * PANEL_ROWS
}

/// Where to cut rows into even ranges of whole groups, and their end: as many ranges as make enough tiles of those of the columns.
pub fn row_cuts(packed: &Packed, column_tiles: usize, threads: usize, cuts: &mut Vec<usize>) {
    let groups = packed.group_count();
    let range_groups = (groups * column_tiles / (TILES_PER_THREAD * threads)).clamp(1, groups.max(1));
    let ranges = groups.div_ceil(range_groups);
    let first_groups = (0..ranges).map(|range| split(groups, ranges, range).start);
    cuts.clear();
    cuts.extend(first_groups.filter_map(|group| packed.group_starts().nth(group)));
    cuts.push(packed.rows());
}

/// What the ops of a step work with.
struct StepWeights<'a> {
    cpu: &'a Cpu,
    program: &'a Program,
    /// See [`Call::products`].
    streamed: Option<&'a Lease>,
}

impl StepWeights<'_> {
    /// One op on a run of rows of a tile of a group that begins with column `first`.
    fn run(&self, op: &ColumnOp, rows: GroupRun, tile: &mut SharedTile<f32>, first: usize) {
        let kernels = self.cpu.kernels;
        match *op {
            ColumnOp::MatMul {
                weight,
                bias,
                out,
                place,
            } => {
                let bias = bias.map(|id| self.program.weights.vector(id));
                // A streamed matrix has only the group's columns.
                let (weighted, base) = match self.streamed {
                    None => (Weighted::resident(&self.program.weights, weight, bias), 0),
                    Some(lease) => (Weighted::streamed(lease, place, bias.map(|bias| &bias[first..])), first),
                };
                multiply(self.cpu, &weighted, rows, (part(tile, out), base));
            }
            ColumnOp::Activate {
                activation,
                gate,
                up: None,
            } => {
                let activation = kernel(activation);
                each_row(part(tile, gate), |row| kernels.activate(activation, row));
            }
            ColumnOp::Activate {
                activation,
                gate,
                up: Some(up),
            } => {
                let activation = kernel(activation);
                each_pair(tile, gate, up, |gate, up| kernels.activate_gated(activation, gate, up));
            }
            ColumnOp::Scale { factor, buffer } => each_row(part(tile, buffer), |row| kernels.scale(row, factor)),
            ColumnOp::Add { out, input, scale: 1.0 } => {
                each_pair(tile, out, input, |out, input| kernels.add(out, input))
            }
            ColumnOp::Add { out, input, scale } => {
                each_pair(tile, out, input, |out, input| kernels.add_scaled(out, scale, input));
            }
        }
    }
}

/// A matrix of the tile, which has been set.
pub fn part<'t, 'a>(tile: &'t mut SharedTile<'a, f32>, place: usize) -> &'t mut Part<'a, f32> {
    tile[place].as_mut().expect("every buffer of a group is set")
}

pub fn each_row(part: &mut Part<f32>, work: impl Fn(&mut [f32])) {
    part.rows().for_each(|row| work(part.row_mut(row)));
}

/// The rows of one matrix, to be written, with those of another.
pub fn each_pair(tile: &mut SharedTile<f32>, write: usize, read: usize, work: impl Fn(&mut [f32], &[f32])) {
    if let Ok([Some(write), Some(read)]) = tile.get_disjoint_mut([write, read]) {
        for row in write.rows() {
            work(write.row_mut(row), read.row_mut(row));
        }
    }
}
