//! Matrix products: the input is packed once, then the threads share the output columns.

use std::ops::Range;

use goldcrest_kernels::{
    ActivationGroupMut, ActivationType, Activations as Packed, GROUP_ROWS_MAX, GroupRun, Kernels, PANEL_ROWS,
    RUN_ROWS_MAX, prefetch,
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
    let (k, rows) = (packed.k(), packed.rows());
    let mut rest = x;
    let groups = packed.groups_mut().map(|group| {
        let (rows, after) = std::mem::take(&mut rest).split_at_mut(group.rows() * k);
        rest = after;
        (group, rows)
    });
    share_groups(cpu, rows, groups, &|(group, rows): (ActivationGroupMut, &mut [f32])| {
        prepare(group.first_row(), rows);
        group.pack(cpu.kernels, rows);
    })
}

/// Runs `pack` on each of the `groups` of `rows` rows, on all threads where that pays.
pub fn share_groups<T: Send>(
    cpu: &Cpu,
    rows: usize,
    mut groups: impl ExactSizeIterator<Item = T>,
    pack: &(impl Fn(T) + Sync),
) -> Result<(), CpuError> {
    if rows <= GROUP_ROWS_MAX {
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

/// Where products go.
pub trait Target {
    /// The place of the products of some outputs with a row.
    fn place(&mut self, row: usize, outputs: &Range<usize>) -> &mut [f32];

    /// Puts the products of some outputs with rows from `first_row` on there; of a last panel those that have no output are left over.
    fn put(&mut self, kernels: Kernels, first_row: usize, outputs: &Range<usize>, products: &[[f32; PANEL_ROWS]]);
}

/// A rectangle of a matrix, whose columns are outputs from the `first`-th on.
struct Rectangle<'a, 'p> {
    out: &'a mut Part<'p, f32>,
    first: usize,
}

impl Target for Rectangle<'_, '_> {
    fn place(&mut self, row: usize, outputs: &Range<usize>) -> &mut [f32] {
        &mut self.out.row_mut(row)[outputs.start - self.first..][..outputs.len()]
    }

    fn put(&mut self, _: Kernels, first_row: usize, outputs: &Range<usize>, products: &[[f32; PANEL_ROWS]]) {
        for (i, products) in products.iter().enumerate() {
            let place = self.place(first_row + i, outputs);
            // Of a length that the compiler knows, which is nearly always: no call.
            match <&mut [f32; PANEL_ROWS]>::try_from(&mut *place) {
                Ok(whole) => *whole = *products,
                Err(_) => place.copy_from_slice(&products[..place.len()]),
            }
        }
    }
}

/// The columns of `out`, whose column `base` is the matrix's first output, and of its rows those of a run.
pub fn multiply(cpu: &Cpu, weighted: &Weighted, run: GroupRun, (out, base): (&mut Part<f32>, usize)) {
    let outputs = out.columns().start - base..out.columns().end - base;
    let first = outputs.start;
    multiply_into(cpu, weighted, run, outputs, &mut Rectangle { out, first });
}

/// Some outputs of every row of a run, a panel of weights after the other.
pub fn multiply_into(cpu: &Cpu, weighted: &Weighted, run: GroupRun, outputs: Range<usize>, target: &mut impl Target) {
    // Few rows, as in decoding, are not to clear the room that many need.
    match run.rows() {
        ..=GROUP_ROWS_MAX => {
            multiply_in(
                &mut [[0.0; PANEL_ROWS]; GROUP_ROWS_MAX],
                cpu,
                weighted,
                run,
                outputs,
                target,
            );
        }
        _ => multiply_in(
            &mut [[0.0; PANEL_ROWS]; RUN_ROWS_MAX],
            cpu,
            weighted,
            run,
            outputs,
            target,
        ),
    }
}

/// As [`multiply_into`], by way of `products`, which has room for the run.
fn multiply_in(
    products: &mut [[f32; PANEL_ROWS]],
    cpu: &Cpu,
    weighted: &Weighted,
    run: GroupRun,
    outputs: Range<usize>,
    target: &mut impl Target,
) {
    let Weighted { panels, bias, .. } = weighted;
    let rows = run.row_range();
    let products = &mut products[..rows.len()];
    for index in outputs.start / PANEL_ROWS..outputs.end.div_ceil(PANEL_ROWS) {
        let outputs = index * PANEL_ROWS..((index + 1) * PANEL_ROWS).min(outputs.end);
        if rows.len() > GROUP_ROWS_MAX {
            // A line of each of many rows, far from each other: they come while the panel is multiplied.
            rows.clone().for_each(|row| prefetch(target.place(row, &outputs)));
        }
        cpu.kernels.matmul(
            panels.panel_type,
            weighted.panel(index),
            run,
            products.as_flattened_mut(),
        );
        if let Some(bias) = bias {
            for products in &mut *products {
                let pairs = products.iter_mut().zip(&bias[outputs.clone()]);
                pairs.for_each(|(product, bias)| *product += bias);
            }
        }
        target.put(cpu.kernels, rows.start, &outputs, products);
    }
}
