//! Weights of steps and rows of tables that are read when they are wanted.

use std::collections::VecDeque;

use goldcrest_kernels::PANEL_ROWS;
use goldcrest_model::plan::{MatrixId, Op, Plan};

use super::Step;
use crate::buffer::AllocError;
use crate::streamed::{Lease, WeightStore};
use crate::weights::load::{Buffers, PanelSource};
use crate::weights::window::Window;
use crate::weights::{Panels, find, weights_error};
use crate::{CpuError, Program};

/// Bytes of weights that are on their way while a step runs: enough to keep a fast disk busy.
const AHEAD_BYTES: usize = 32 << 20;

/// For each step of products, in order, before which of them those end that may be asked for beside it: experts want all the memory that
/// there is, so that nobody looks beyond them.
pub fn ahead_limits(plan: &Plan, steps: &[Step]) -> Vec<usize> {
    let count = steps.iter().filter_map(Step::products).count();
    let (mut limits, mut limit) = (vec![0; count], count);
    let mut number = count;
    for step in steps.iter().rev() {
        match step {
            Step::Products(_) => {
                number -= 1;
                limits[number] = limit;
            }
            Step::Op(index) if matches!(plan.ops[*index], Op::Experts { .. }) => limit = number,
            Step::Op(_) => {}
        }
    }
    limits
}

/// The weights of a call's steps of products. Their order is known, so that those of the next steps are read while one runs.
pub struct Ahead<'a> {
    store: &'a WeightStore,
    /// See [`ahead_limits`].
    limits: &'a [usize],
    /// The bank of the first step.
    first_bank: usize,
    /// Steps whose weights were taken.
    taken: usize,
    /// Those of the next steps.
    next: VecDeque<Next>,
}

/// The weights of a step that has not run.
struct Next {
    lease: Lease,
    blocks: usize,
    /// They were not in memory when they were asked for.
    is_read: bool,
}

impl<'a> Ahead<'a> {
    /// None where the matrices of steps are resident.
    pub fn of(program: &'a Program) -> Option<Ahead<'a>> {
        let limits = program.ahead_limits.as_ref()?;
        let store = program.store.as_ref()?;
        Some(Ahead {
            store,
            limits,
            first_bank: program.plan.experts.len(),
            taken: 0,
            next: VecDeque::new(),
        })
    }

    /// The weights of the next step, which may still be on their way. Has those of the steps after it read as far as there is room, and
    /// so many as keep the disk busy: those that are there already cost nothing, but those that were read and wait for their step take
    /// the room of others that could stay.
    pub fn take(&mut self) -> Lease {
        let leased = self.next.iter().map(|next| next.blocks);
        let mut leased: usize = leased.sum();
        let ahead = self.next.iter().filter(|next| next.is_read).map(|next| next.blocks);
        let mut ahead: usize = ahead.sum();
        let most_ahead = AHEAD_BYTES
            .div_ceil(self.store.block_bytes())
            .min(self.store.blocks() / 4);
        while self.taken + self.next.len() < self.limits[self.taken] {
            let bank = self.first_bank + self.taken + self.next.len();
            let blocks = self.store.blocks_of(bank, 0);
            let has_room = leased + blocks <= self.store.blocks() && ahead < most_ahead;
            if !self.next.is_empty() && !has_room {
                break;
            }
            for lease in self.store.acquire(bank, &[0]) {
                let is_read = !lease.is_here();
                leased += blocks;
                ahead += if is_read { blocks } else { 0 };
                self.next.push_back(Next { lease, blocks, is_read });
            }
        }
        self.taken += 1;
        self.next.pop_front().expect("every step of products has weights").lease
    }
}

/// Reads rows of tables. Reused by every call.
#[derive(Default)]
pub struct TableRows {
    buffers: Buffers,
    /// The panel that was read last, and which one it is.
    panel: Vec<u8>,
    held: Option<(MatrixId, usize)>,
}

impl TableRows {
    /// With memory for the tables of a plan of which `is_streamed` tells that they are not resident.
    pub fn new(plan: &Plan, is_streamed: &dyn Fn(MatrixId) -> bool) -> Result<TableRows, AllocError> {
        let window = most_panel_bytes(plan, is_streamed).map(Window::new).transpose()?;
        Ok(TableRows {
            buffers: Buffers {
                window,
                ..Buffers::default()
            },
            ..TableRows::default()
        })
    }

    /// Most bytes that this takes.
    pub fn most_bytes(plan: &Plan, is_streamed: &dyn Fn(MatrixId) -> bool) -> usize {
        // As it is stored, as numbers, as the panel type wants it, and as a panel.
        most_panel_bytes(plan, is_streamed).map_or(0, |bytes| Window::memory_bytes(bytes) + 4 * bytes)
    }

    /// Decodes a row of a table, wherever it is.
    pub fn row(&mut self, program: &Program, table: MatrixId, row: usize, out: &mut [f32]) -> Result<(), CpuError> {
        let panels = program.weights.matrix(table);
        let Some(store) = program.store.as_ref().filter(|_| !panels.is_resident()) else {
            program.weights.row(&panels, row, out);
            return Ok(());
        };
        let (index, place) = (row / PANEL_ROWS, row % PANEL_ROWS);
        if self.held != Some((table, index)) {
            let matrix = program.plan.matrix(table);
            let info = find(store.files(), &matrix.tensor)?;
            let source = PanelSource::new(store.files(), info, matrix)?;
            self.held = None;
            self.panel.resize(panels.panel_bytes, 0);
            source
                .pack(&panels, index..index + 1, &mut self.panel, &mut self.buffers)
                .map_err(|error| weights_error(info, error))?;
            self.held = Some((table, index));
        }
        panels.panel_type.unpack_row(&self.panel, place, out);
        Ok(())
    }
}

/// Bytes of the largest panel of a streamed table in whatever form: no element takes more than four.
fn most_panel_bytes(plan: &Plan, is_streamed: &dyn Fn(MatrixId) -> bool) -> Option<usize> {
    let tables = plan.ops.iter().filter_map(|op| match *op {
        Op::Embed { table, .. } | Op::EmbedPosition { table, .. } => Some(table),
        _ => None,
    });
    let streamed = tables.filter(|table| is_streamed(*table));
    let panels = streamed.map(|table| Panels::of(plan.matrix(table)));
    panels.map(|panels| PANEL_ROWS * panels.k * size_of::<f32>()).max()
}
