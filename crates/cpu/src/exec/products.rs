//! Runs a step of products: one region, in which the threads share tiles of the outputs.

use goldcrest_kernels::{Activations as Packed, GROUP_ROWS_MAX, PANEL_ROWS};

use super::Call;
use super::elementwise::kernel;
use super::matmul::{Weighted, multiply, row_cuts};
use super::step::{ColumnOp, MOST_GROUPS, Products};
use crate::pool::{Part, SharedTile, SharedTiles};
use crate::{Cpu, CpuError, Program};

#[cfg(test)]
mod tests;

/// Tiles for each thread where there are many rows, so that a slow thread leaves some to the others. One that is four times slower than
/// they are may take its last tile just before they finish: with 16 they then wait for at most a quarter of the time of the product.
const TILES_PER_THREAD: usize = 16;

impl Call<'_, '_> {
    /// The region of a step whose input is packed.
    pub fn products(&mut self, step: &Products) -> Result<(), CpuError> {
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
        row_cuts(packed, cuts);
        let mut tiles: [Option<SharedTiles<f32>>; MOST_GROUPS] = Default::default();
        for (tiles, group) in tiles.iter_mut().zip(&step.groups) {
            let width = program.plan.buffer(group.buffers[0]).width;
            *tiles = Some(SharedTiles::new(cuts, width, tile_columns(width, cuts, cpu.threads())));
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
        cpu.pool.run(&|_| {
            for (group, tiles) in step.groups.iter().zip(tiles.iter().flatten()) {
                while let Some(mut tile) = tiles.next() {
                    group.ops.iter().for_each(|op| run(cpu, program, packed, op, &mut tile));
                }
            }
        })?;
        Ok(())
    }
}

/// Columns of a tile: whole panels, in one tile a thread for one group of rows, which reads its weights as one stream; in smaller ones
/// for more.
pub fn tile_columns(width: usize, row_cuts: &[usize], threads: usize) -> usize {
    let rows = row_cuts.last().map_or(0, |rows| *rows);
    let row_ranges = row_cuts.len().saturating_sub(1).max(1);
    let panels = width.div_ceil(PANEL_ROWS);
    let tile_panels = match rows <= GROUP_ROWS_MAX {
        true => panels.div_ceil(threads),
        false => {
            let tiles = (TILES_PER_THREAD * threads).div_ceil(row_ranges).max(threads);
            // Rounded down: what makes a tile larger is what the others wait for in the end.
            (panels / tiles).max(1)
        }
    };
    tile_panels * PANEL_ROWS
}

/// One op on one tile.
fn run(cpu: &Cpu, program: &Program, packed: &Packed, op: &ColumnOp, tile: &mut SharedTile<f32>) {
    match *op {
        ColumnOp::MatMul { weight, bias, out } => {
            let weighted = Weighted::resident(&program.weights, weight, bias);
            multiply(cpu, &weighted, packed, (part(tile, out), 0));
        }
        ColumnOp::Activate {
            activation,
            gate,
            up: None,
        } => {
            let activation = kernel(activation);
            each_row(part(tile, gate), |row| cpu.kernels.activate(activation, row));
        }
        ColumnOp::Activate {
            activation,
            gate,
            up: Some(up),
        } => {
            let activation = kernel(activation);
            each_pair(tile, gate, up, |gate, up| {
                cpu.kernels.activate_gated(activation, gate, up)
            });
        }
        ColumnOp::Scale { factor, buffer } => each_row(part(tile, buffer), |row| cpu.kernels.scale(row, factor)),
        ColumnOp::Add { out, input, scale: 1.0 } => {
            each_pair(tile, out, input, |out, input| cpu.kernels.add(out, input))
        }
        ColumnOp::Add { out, input, scale } => {
            each_pair(tile, out, input, |out, input| cpu.kernels.add_scaled(out, scale, input));
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
