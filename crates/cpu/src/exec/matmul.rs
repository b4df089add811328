//! Matrix products: the input is packed once, then the threads share the output columns.

use goldcrest_kernels::{
    ActivationGroupMut, ActivationType, Activations as Packed, GROUP_ROWS_MAX, GroupRun, PANEL_ROWS, RUN_ROWS_MAX,
};
use goldcrest_model::plan::{Activations, MatrixId};

use super::rows::RowNorm;
use super::step::Products;
use super::{Call, split_buffers};
use crate::buffer::Piece;
use crate::pool::{Part, Tiles};
use crate::streamed::{Lease, Place};
use crate::weights::{Panels, Weights};
use crate::{Cpu, CpuError};

impl Call<'_, '_> {
    /// Packs the rows of a step's input, unless the step before has. Those of a norm are made and packed one group after the other, while
    /// they are in the cache.
    pub fn pack(&mut self, step: &Products) -> Result<(), CpuError> {
        let input = step.input;
        let kind = activation_type(step.activations);
        if step.norm.is_none() && self.scratch.packed_of == Some((input, kind)) {
            return Ok(());
        }
        let (cpu, rows, k) = (self.cpu, self.row_count(input), self.width(input));
        let norm = step
            .norm
            .map(|of| (RowNorm::new(self.program, of.norm, k / of.groups), of.input));
        let super::Scratch {
            buffers,
            packed,
            packed_of,
            ..
        } = &mut *self.scratch;
        let (reads, input_rows) = split_buffers(buffers, input);
        packed.reset(kind, rows, k);
        pack_groups(cpu, &mut input_rows[..rows * k], packed, &|first, rows| {
            let Some((norm, from)) = &norm else { return };
            if *from != input {
                let end = first * k + rows.len();
                rows.copy_from_slice(&reads.get(*from, end)[first * k..]);
            }
            norm.apply(cpu.kernels, rows);
        })?;
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

/// Most groups that the threads share at a time.
const GROUPS: usize = 64;

/// Packs the rows `x`, which were made room for, on all threads where that pays, each group after `prepare(first_row, its rows)`.
pub fn pack_groups(
    cpu: &Cpu,
    x: &mut [f32],
    packed: &mut Packed,
    prepare: &(dyn Fn(usize, &mut [f32]) + Sync),
) -> Result<(), CpuError> {
    let k = packed.k();
    let few = packed.rows() <= GROUP_ROWS_MAX;
    let mut rest = x;
    let mut groups = packed.groups_mut().map(|group: ActivationGroupMut| {
        let (rows, after) = std::mem::take(&mut rest).split_at_mut(group.rows() * k);
        rest = after;
        (group, rows)
    });
    let pack = |(group, rows): (ActivationGroupMut, &mut [f32])| {
        prepare(group.first_row(), rows);
        group.pack(cpu.kernels, rows);
    };
    if few {
        groups.for_each(pack);
        return Ok(());
    }
    while groups.len() > 0 {
        let mut some: [_; GROUPS] = std::array::from_fn(|_| groups.next());
        let tiles = Tiles::new(&mut some, 1, (1, 1));
        cpu.pool.run(&|_| {
            while let Some(mut tile) = tiles.next() {
                let group = tile.row_mut(tile.rows().start).iter_mut().find_map(Option::take);
                group.into_iter().for_each(pack);
            }
        })?;
    }
    Ok(())
}

/// A matrix with its bias.
#[derive(Clone, Copy)]
pub struct Weighted<'a> {
    pub panels: Panels,
    pub memory: PanelMemory<'a>,
    pub bias: Option<&'a [f32]>,
}

/// Where the panels of a matrix lie.
#[derive(Clone, Copy)]
pub enum PanelMemory<'a> {
    /// One after the other.
    Resident(&'a [u8]),
    /// Each at its place in some blocks.
    Blocks(&'a [Place], &'a [Piece]),
}

impl<'a> Weighted<'a> {
    pub fn resident(weights: &'a Weights, matrix: MatrixId, bias: Option<&'a [f32]>) -> Weighted<'a> {
        let panels = weights.matrix(matrix);
        Weighted {
            panels,
            memory: PanelMemory::Resident(weights.resident(&panels)),
            bias,
        }
    }

    /// The matrix at a place of a unit that is there.
    pub fn streamed(lease: &'a Lease, place: usize, bias: Option<&'a [f32]>) -> Weighted<'a> {
        let (layout, blocks) = lease.matrix(place);
        Weighted {
            panels: layout.panels,
            memory: PanelMemory::Blocks(&layout.places, blocks),
            bias,
        }
    }

    fn panel(&self, index: usize) -> &'a [u8] {
        let bytes = self.panels.panel_bytes;
        match self.memory {
            PanelMemory::Resident(panels) => &panels[index * bytes..][..bytes],
            PanelMemory::Blocks(places, blocks) => {
                let Place { block, offset } = places[index];
                &blocks[block][offset..][..bytes]
            }
        }
    }
}

/// The columns of `out`, whose column `base` is the matrix's first output, and of its rows those of a run.
pub fn multiply(cpu: &Cpu, weighted: &Weighted, run: GroupRun, out: (&mut Part<f32>, usize)) {
    // Few rows, as in decoding, are not to clear the room that many need.
    match run.rows() {
        ..=GROUP_ROWS_MAX => multiply_in(&mut [0.0; GROUP_ROWS_MAX * PANEL_ROWS], cpu, weighted, run, out),
        _ => multiply_in(&mut [0.0; RUN_ROWS_MAX * PANEL_ROWS], cpu, weighted, run, out),
    }
}

/// As [`multiply`], by way of `products`, which has room for the run.
fn multiply_in(
    products: &mut [f32],
    cpu: &Cpu,
    weighted: &Weighted,
    run: GroupRun,
    (out, base): (&mut Part<f32>, usize),
) {
    let Weighted { panels, bias, .. } = weighted;
    let columns = out.columns().start - base..out.columns().end - base;
    let products = &mut products[..run.rows() * PANEL_ROWS];
    for index in columns.start / PANEL_ROWS..columns.end.div_ceil(PANEL_ROWS) {
        let outputs = index * PANEL_ROWS..((index + 1) * PANEL_ROWS).min(columns.end);
        let bias = bias.map(|bias| &bias[outputs.clone()]);
        cpu.kernels
            .matmul(panels.panel_type, weighted.panel(index), run, products);
        for (row, products) in run.row_range().zip(products.as_chunks().0) {
            let target = &mut out.row_mut(row)[outputs.start - columns.start..][..outputs.len()];
            store(products, bias, target);
        }
    }
}

/// Copies a row of products to its place, adding the bias.
fn store(row: &[f32; PANEL_ROWS], bias: Option<&[f32]>, target: &mut [f32]) {
    if let Some(bias) = bias {
        for (out, (x, b)) in target.iter_mut().zip(row.iter().zip(bias)) {
            *out = x + b;
        }
    } else if let Ok(whole) = <&mut [f32; PANEL_ROWS]>::try_from(&mut *target) {
        // Of a length that the compiler knows, which is nearly always: no call.
        *whole = *row;
    } else {
        target.copy_from_slice(&row[..target.len()]);
    }
}
