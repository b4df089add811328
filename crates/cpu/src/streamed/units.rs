//! What of a plan is read at once, and how it lies in memory.

use std::ops::Range;

use goldcrest_format::{DType, TensorFiles};
use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::plan::{ExpertBank, MatrixId, Op, Plan};
use goldcrest_model::spec::Storage;

use super::layout::{Layout, Run, block_bytes};
use super::{StreamOptions, Streamed};
use crate::CpuError;
use crate::buffer::HUGE_PAGE_BYTES;
use crate::exec::{Step, steps};
use crate::weights::window::{MOST_WINDOW_BYTES, Window};
use crate::weights::{Panels, find, load};

/// Matrices that are read at once: those of an expert, or of a step of products.
pub struct Unit {
    /// Among [`Units::layouts`].
    pub layout: usize,
    /// In the order of [`Projection`], or of the step's products.
    pub matrices: Vec<UnitMatrix>,
}

/// A matrix of a unit, or some panels of it.
#[derive(Clone, Copy, Debug)]
pub struct UnitMatrix {
    pub id: MatrixId,
    /// The first of its panels.
    pub first_panel: usize,
}

/// All units of a plan. Those of an op or a step, of which a call wants some, are a bank: first the plan's banks of experts, then one of a
/// single unit for every step of products.
pub struct Units {
    pub units: Vec<Unit>,
    /// The first unit of each bank.
    pub firsts: Vec<usize>,
    pub layouts: Vec<Layout>,
    pub block_bytes: usize,
    /// Of all units.
    pub all_blocks: usize,
    /// Of the largest unit.
    pub most_blocks: usize,
}

/// Units while it is not known in which blocks they lie.
#[derive(Default)]
struct Gathered {
    units: Vec<Unit>,
    firsts: Vec<usize>,
    /// Kinds of unit, with their numbers.
    shapes: Vec<(Vec<Panels>, usize)>,
}

impl Gathered {
    fn push(&mut self, matrices: Vec<UnitMatrix>, shape: Vec<Panels>) {
        let known = self.shapes.iter().position(|(known, _)| *known == shape);
        let layout = known.unwrap_or_else(|| {
            self.shapes.push((shape, 0));
            self.shapes.len() - 1
        });
        self.shapes[layout].1 += 1;
        self.units.push(Unit { layout, matrices });
    }
}

impl Units {
    /// Those of the experts, and of the steps of products in `steps` where these are streamed too.
    pub fn of(plan: &Plan, steps: &[Step], streamed: Streamed) -> Units {
        let mut gathered = Gathered::default();
        for bank in &plan.experts {
            gathered.firsts.push(gathered.units.len());
            for expert in 0..bank.count {
                let whole = |id| UnitMatrix { id, first_panel: 0 };
                let matrices: Vec<UnitMatrix> = expert_matrices(bank, expert).map(whole).collect();
                let shape = matrices.iter().map(|matrix| Panels::of(plan.matrix(matrix.id)));
                let shape = shape.collect();
                gathered.push(matrices, shape);
            }
        }
        let products = steps.iter().filter_map(Step::products);
        for products in products.filter(|_| streamed == Streamed::All) {
            gathered.firsts.push(gathered.units.len());
            let part = |(id, columns): (MatrixId, Range<usize>)| {
                let first_panel = columns.start / PANEL_ROWS;
                let panels = Panels::of(plan.matrix(id)).of_columns(columns);
                (UnitMatrix { id, first_panel }, panels)
            };
            let (matrices, shape) = products.matrices().map(part).unzip();
            gathered.push(matrices, shape);
        }
        Units::laid_out(gathered)
    }

    fn laid_out(Gathered { units, firsts, shapes }: Gathered) -> Units {
        let block_bytes = block_bytes(&shapes);
        let layouts: Vec<Layout> = shapes
            .iter()
            .map(|(panels, _)| Layout::new(panels, block_bytes))
            .collect();
        let all_blocks: usize = layouts
            .iter()
            .zip(&shapes)
            .map(|(layout, (_, count))| layout.blocks * count)
            .sum();
        let most_blocks = layouts.iter().map(|layout| layout.blocks).max().unwrap_or(0);
        Units {
            units,
            firsts,
            layouts,
            block_bytes,
            all_blocks,
            most_blocks,
        }
    }

    /// Blocks that are kept in so many bytes: of the largest unit at least.
    pub fn blocks_in(&self, bytes: usize) -> Result<usize, CpuError> {
        if self.units.is_empty() {
            return Err(CpuError::NoExperts);
        }
        check_room(bytes, self.largest_bytes())?;
        Ok((bytes / self.block_bytes).min(self.all_blocks))
    }

    /// Bytes of the blocks of the largest unit.
    fn largest_bytes(&self) -> usize {
        self.most_blocks * self.block_bytes
    }

    /// Units of each bank.
    pub fn bank_sizes(&self) -> Vec<usize> {
        let ends = self.firsts.iter().copied().skip(1).chain([self.units.len()]);
        self.firsts.iter().zip(ends).map(|(first, end)| end - first).collect()
    }

    /// Blocks that a unit takes.
    pub fn blocks_of(&self, unit: usize) -> usize {
        self.layouts[self.units[unit].layout].blocks
    }

    /// Bytes of the longest stretch of a tensor that a block is made of.
    pub fn window_bytes(&self, plan: &Plan, files: &TensorFiles) -> Result<usize, CpuError> {
        let mut most = 0;
        // Equal panels may be made of different types.
        let mut seen: Vec<(usize, Vec<(DType, &Storage)>)> = Vec::new();
        for unit in &self.units {
            let matrices = unit.matrices.iter().map(|matrix| plan.matrix(matrix.id));
            let kind = (
                unit.layout,
                matrices.map(|matrix| (matrix.dtype, &matrix.storage)).collect(),
            );
            if seen.contains(&kind) {
                continue;
            }
            seen.push(kind);
            let layout = &self.layouts[unit.layout];
            for Run { matrix, panels, .. } in (0..layout.blocks).flat_map(|block| layout.runs(block)) {
                let part = unit.matrices[matrix];
                let matrix = plan.matrix(part.id);
                let info = find(files, &matrix.tensor)?;
                let stored = load::stored(info, matrix, part.panels(panels));
                most = most.max((stored.end - stored.start).min(MOST_WINDOW_BYTES));
            }
        }
        Ok(most as usize)
    }
}

impl UnitMatrix {
    /// Panels of the whole matrix, of panels counted in this part.
    pub fn panels(&self, of_part: Range<usize>) -> Range<usize> {
        self.first_panel + of_part.start..self.first_panel + of_part.end
    }
}

/// The matrices of an expert, in the order of [`super::Projection`].
fn expert_matrices(bank: &ExpertBank, expert: usize) -> impl Iterator<Item = MatrixId> {
    let linears = [&bank.up, &bank.down].into_iter().chain(bank.gating.gate());
    linears.map(move |linears| MatrixId(linears.matrices.start + expert))
}

/// Which matrices are not in memory from the start: by [`MatrixId`].
pub fn streamed_matrices(plan: &Plan, streamed: Option<Streamed>) -> Vec<bool> {
    let mut is_streamed = vec![false; plan.matrices.len()];
    let Some(streamed) = streamed else { return is_streamed };
    let experts = plan.experts.iter().flat_map(ExpertBank::projections);
    experts.for_each(|linears| is_streamed[linears.matrices.clone()].fill(true));
    if streamed == Streamed::All {
        for op in &plan.ops {
            match *op {
                Op::MatMul { weight, .. } => is_streamed[weight.0] = true,
                Op::Embed { table, .. } | Op::EmbedPosition { table, .. } => is_streamed[table.0] = true,
                _ => {}
            }
        }
        // Small, and each head wants its own.
        for op in &plan.ops {
            if let Op::HeadMatMul { first, heads, .. } = *op {
                is_streamed[first.0..first.0 + heads].fill(false);
            }
        }
    }
    is_streamed
}

/// Refuses room in which not even the largest unit fits.
fn check_room(bytes: usize, largest_bytes: usize) -> Result<(), CpuError> {
    match bytes < largest_bytes {
        true => Err(CpuError::StreamMemory {
            bytes,
            least_bytes: largest_bytes,
        }),
        false => Ok(()),
    }
}

/// What streamed weights take of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamNeed {
    /// For the largest unit alone.
    pub least: u64,
    /// For all.
    pub all: u64,
    /// What one thread reads into.
    pub reader: u64,
    /// Bytes of the largest unit.
    largest_bytes: usize,
}

impl StreamNeed {
    /// Reads nothing; none where nothing can be streamed.
    ///
    /// # Errors
    /// [`CpuError::MissingTensor`].
    pub fn of(plan: &Plan, files: &TensorFiles, streamed: Streamed) -> Result<Option<StreamNeed>, CpuError> {
        let units = Units::of(
            plan,
            &steps(plan, StreamOptions::most_step_bytes(Some(streamed))),
            streamed,
        );
        if units.units.is_empty() {
            return Ok(None);
        }
        // Blocks lie in huge pages, the last of which need not be full.
        let blocks = |count: usize| (count * units.block_bytes).next_multiple_of(HUGE_PAGE_BYTES) as u64;
        Ok(Some(StreamNeed {
            least: blocks(units.most_blocks),
            all: blocks(units.all_blocks),
            reader: Window::memory_bytes(units.window_bytes(plan, files)?) as u64,
            largest_bytes: units.largest_bytes(),
        }))
    }

    /// Refuses room in which not even the largest unit fits.
    ///
    /// # Errors
    /// [`CpuError::StreamMemory`].
    pub fn check(&self, bytes: usize) -> Result<(), CpuError> {
        check_room(bytes, self.largest_bytes)
    }
}
