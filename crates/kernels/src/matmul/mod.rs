//! The matrix product: one panel of 16 outputs times a run of groups of rows, for any number of rows and any type.
//!
//! The panel streams by once. For one tile of rows it is decoded in registers; for several it is unpacked, a stretch at a time, into the
//! first cache ([`stretch`]). Every output is one chain of fused multiply-adds in the order of `k`. All of this makes the result of a row
//! independent of the rows beside it and of the width of the registers.

mod float;
mod quantized;
mod stretch;
#[cfg(test)]
pub(crate) mod tests;

use std::marker::PhantomData;

use crate::dispatch::{Kernel, Kernels};
use crate::panel::lanes::scales::Scales;
use crate::panel::lanes::{self, Header, QuantizedPanel};
use crate::panel::{PANEL_ROWS, PanelType, match_panels};
use crate::quantize::{ActivationGroup, ActivationType, GroupRun, interleaved, split_evenly};
use crate::vector::{Simd, read_ahead};

use float::{DecodedTile, FloatTile};
use quantized::QuantizedTile;

impl Kernels {
    /// Multiplies a panel with a run of activations: `out[r * 16 + l]` becomes the dot product of weight row `l` of the
    /// panel and row `r` of the run. Lanes of rows that the panel lacks get zeros, or NaN where the activations are not
    /// finite.
    ///
    /// With [`ActivationType::Q8`] the sum over a block of 32 is an exact integer; blocks are added in the order of
    /// `k`. With [`ActivationType::F32`] weights are decoded and values added in the order of `k`.
    ///
    /// # Panics
    /// If the panel is not [`PanelType::panel_bytes`] of the run's `k` long, `out` not 16 values a row, `k` no multiple
    /// of the type's block, or 8-bit activations meet float weights: a mistake of the caller.
    pub fn matmul(self, panel_type: PanelType, panel: &[u8], run: GroupRun<'_>, out: &mut [f32]) {
        let k = run.k();
        assert!(
            k.is_multiple_of(panel_type.block_values()),
            "{k} values are no whole number of {panel_type} blocks"
        );
        assert_eq!(
            panel.len(),
            panel_type.panel_bytes(k),
            "bytes of a panel of {k} {panel_type} values"
        );
        assert_eq!(out.len(), run.rows() * PANEL_ROWS, "outputs of {} rows", run.rows());
        let product = Product {
            panel,
            run,
            reads_ahead: self.reads_ahead(),
            out,
        };
        match run.activation_type() {
            ActivationType::Q8 => self.matmul_q8(panel_type, product),
            ActivationType::F32 => self.matmul_f32(panel_type, product),
        }
    }

    fn matmul_q8(self, panel_type: PanelType, product: Product<'_>) {
        match_panels!(panel_type; W => product.run::<QuantizedTile<W>>(self);
            PanelType::F32 | PanelType::F16 | PanelType::BF16 => panic!("8-bit activations with {panel_type} weights"),
        )
    }

    fn matmul_f32(self, panel_type: PanelType, product: Product<'_>) {
        match_panels!(panel_type; W => product.run::<DecodedTile<W>>(self);
            PanelType::F32 => product.run::<FloatTile<lanes::F32>>(self),
            PanelType::F16 => product.run::<FloatTile<lanes::F16>>(self),
            PanelType::BF16 => product.run::<FloatTile<lanes::BF16>>(self),
        )
    }
}

/// A checked call: `panel` holds `run.k()` values a row and `out` 16 values for each row of `run`.
struct Product<'a> {
    panel: &'a [u8],
    run: GroupRun<'a>,
    /// [`Kernels::reads_ahead`].
    reads_ahead: bool,
    out: &'a mut [f32],
}

/// Pointers into a [`Product`] at the first row of a tile.
#[derive(Clone, Copy)]
struct Operands {
    panel: *const u8,
    /// Values of a row.
    k: usize,
    /// The packed activations, at the first row of the tile.
    x: *const u32,
    /// `[rows][16]`, at the first row of the tile.
    out: *mut f32,
    /// Whether `out` holds the sums of the values before these.
    continues: bool,
    /// Whether lines of the panel are asked for before they are read.
    prefetch: bool,
}

impl Operands {
    /// Asks for what comes after `bytes` bytes of the panel, be it of the next one in memory.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(&self, from: *const u8, bytes: usize) {
        if self.prefetch {
            // SAFETY: required of the caller.
            unsafe { read_ahead::<S>(from, bytes) };
        }
    }

    /// What the sums of a tile start with.
    ///
    /// # Safety
    /// As [`TileKernel::tile`].
    #[inline(always)]
    unsafe fn starts<S: Simd, const R: usize, const V: usize>(&self, lane: usize) -> [[S::F32; R]; V] {
        // SAFETY: required of the caller.
        unsafe {
            let mut sums = [[S::splat(0.0); R]; V];
            if self.continues {
                for (v, sums) in sums.iter_mut().enumerate() {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = S::load(self.out.add(r * PANEL_ROWS + lane + v * S::LANES));
                    }
                }
            }
            sums
        }
    }

    /// Stores the sums of a tile.
    ///
    /// # Safety
    /// As [`TileKernel::tile`].
    #[inline(always)]
    unsafe fn store<S: Simd, const R: usize, const V: usize>(&self, lane: usize, sums: [[S::F32; R]; V]) {
        for (v, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                // SAFETY: required of the caller.
                unsafe { S::store(self.out.add(r * PANEL_ROWS + lane + v * S::LANES), sum) };
            }
        }
    }
}

/// Whether a run asks for the lines of panels early: at one or two rows only where the processor does not read far enough ahead by
/// itself.
fn prefetches(run: GroupRun<'_>, reads_ahead: bool) -> bool {
    run.rows() > 2 || !reads_ahead
}

/// The shape of a tile, chosen so that its sums and what is in flight fit the registers: 32 of 16 lanes, 16 of 8, or 32
/// of 4.
#[derive(Clone, Copy)]
struct TileShape {
    /// Most rows with registers of 16 lanes. More are split into equal tiles.
    rows_max_16: usize,
    /// As above, of 8 lanes.
    rows_max_8: usize,
    /// As above, of 4 lanes.
    rows_max_4: usize,
    /// Most rows with which registers of 8 lanes take all 16 outputs in one pass over the panel, not two.
    one_pass_rows_8: usize,
}

impl TileShape {
    /// Most rows of a tile. Without SIMD a tile has one.
    const fn rows_max<S: Simd>(self) -> usize {
        match S::LANES {
            16 => self.rows_max_16,
            8 => self.rows_max_8,
            _ if S::REGISTERS == 0 => 1,
            _ => self.rows_max_4,
        }
    }

    /// Registers of outputs that a tile of `rows` takes in one pass over the panel.
    const fn one_pass_registers<S: Simd>(self, rows: usize) -> usize {
        match S::LANES {
            8 if rows <= self.one_pass_rows_8 => 2,
            // 16 sums, like 8 rows of 2 registers.
            4 if S::REGISTERS == 32 && rows <= 4 => 4,
            4 if S::REGISTERS == 32 => 2,
            _ => 1,
        }
    }
}

/// The innermost algorithm: some of the 16 outputs of a panel times a few rows.
trait TileKernel {
    const SHAPE: TileShape;

    /// Computes outputs `lane .. lane + V * LANES` of `R` rows.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`, the operands hold what they say for `R` rows from their first, and
    /// `lane + V * LANES` is at most 16.
    unsafe fn tile<S: Simd, const R: usize, const V: usize, const X: usize>(operands: Operands, lane: usize);
}

/// A kernel of panels as they lie in memory, which can be unpacked for another.
trait PanelKernel: TileKernel {
    /// The kernel of what [`Self::unpack`] writes.
    type Unpacked: TileKernel;

    /// Whether panels are unpacked at all, or are the same as what is unpacked.
    const UNPACKS: bool = true;

    /// Bytes of a whole stretch of a panel.
    const STRETCH_BYTES: usize;

    /// Writes a stretch of a panel, of `values` values a row, to `to`: at most [`stretch::MOST_BYTES`].
    ///
    /// # Safety
    /// The machine has the instruction set of `S`, `panel` points to the stretch and `to` to so many bytes.
    unsafe fn unpack<S: Simd>(panel: *const u8, values: usize, to: *mut u8);
}

/// Whether groups that interleave `interleaved` rows have tiles of `rows`, at most `rows_max`.
const fn occurs(rows_max: usize, rows: usize, interleaved: usize) -> bool {
    let mut group = interleaved / 2 + 1;
    while group <= interleaved {
        let tiles = group.div_ceil(rows_max);
        if rows == group / tiles || rows == group.div_ceil(tiles) {
            return true;
        }
        group += 1;
    }
    false
}

impl Product<'_> {
    fn run<T: PanelKernel>(self, kernels: Kernels) {
        let mut groups = self.run.groups();
        let is_done = match groups.next() {
            Some(group) if groups.len() == 0 => kernels.run(OneTile::<T> {
                operands: Operands {
                    panel: self.panel.as_ptr(),
                    k: self.run.k(),
                    x: group.words.as_ptr(),
                    out: self.out.as_mut_ptr(),
                    continues: false,
                    prefetch: prefetches(self.run, self.reads_ahead),
                },
                rows: group.rows,
                kernel: PhantomData,
            }),
            _ => false,
        };
        if !is_done {
            stretch::all::<T>(kernels, self);
        }
    }
}

/// A product with the rows of one group. Says whether they are one tile; else nothing is done.
struct OneTile<T> {
    /// Of a checked product.
    operands: Operands,
    rows: usize,
    kernel: PhantomData<T>,
}

impl<T: TileKernel> Kernel for OneTile<T> {
    type Output = bool;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> bool {
        let operands = self.operands;
        if self.rows > T::SHAPE.rows_max::<S>() {
            return false;
        }
        // SAFETY: the caller says that the machine has the instruction set. The rows are all of their group, whose number says how many
        // it interleaves.
        unsafe {
            match self.rows {
                1 => whole_panel::<S, T, 1, 1>(operands),
                2 => whole_panel::<S, T, 2, 2>(operands),
                3 => whole_panel::<S, T, 3, 4>(operands),
                4 => whole_panel::<S, T, 4, 4>(operands),
                5 => whole_panel::<S, T, 5, 8>(operands),
                6 => whole_panel::<S, T, 6, 8>(operands),
                7 => whole_panel::<S, T, 7, 8>(operands),
                _ => whole_panel::<S, T, 8, 8>(operands),
            }
        }
        true
    }
}

/// The tiles of a group.
///
/// # Safety
/// As [`TileKernel::tile`], for all rows of the group; the operands are those of its first tile.
#[inline(always)]
unsafe fn group_tiles<S: Simd, T: TileKernel>(operands: Operands, group: ActivationGroup<'_>) {
    let tiles = group.rows.div_ceil(T::SHAPE.rows_max::<S>());
    for i in 0..tiles {
        let (row, rows) = split_evenly(group.rows, tiles, i);
        // SAFETY: required of the caller: the rows are of the group.
        unsafe {
            let operands = Operands {
                x: operands.x.add(row),
                out: operands.out.add(row * PANEL_ROWS),
                ..operands
            };
            match interleaved(group.rows) {
                1 => tile_rows::<S, T, 1>(operands, rows),
                2 => tile_rows::<S, T, 2>(operands, rows),
                4 => tile_rows::<S, T, 4>(operands, rows),
                _ => tile_rows::<S, T, 8>(operands, rows),
            }
        }
    }
}

/// All 16 outputs of the `rows` of a tile, of a group that interleaves `X` rows.
///
/// # Safety
/// As [`TileKernel::tile`].
#[inline(always)]
unsafe fn tile_rows<S: Simd, T: TileKernel, const X: usize>(operands: Operands, rows: usize) {
    // SAFETY: required of the caller.
    unsafe {
        match rows {
            1 => whole_panel::<S, T, 1, X>(operands),
            2 => whole_panel::<S, T, 2, X>(operands),
            3 => whole_panel::<S, T, 3, X>(operands),
            4 => whole_panel::<S, T, 4, X>(operands),
            5 => whole_panel::<S, T, 5, X>(operands),
            6 => whole_panel::<S, T, 6, X>(operands),
            7 => whole_panel::<S, T, 7, X>(operands),
            _ => whole_panel::<S, T, 8, X>(operands),
        }
    }
}

/// All 16 outputs of `R` rows, in as many passes over the panel as the registers ask for.
///
/// # Safety
/// As [`TileKernel::tile`].
#[inline(always)]
unsafe fn whole_panel<S: Simd, T: TileKernel, const R: usize, const X: usize>(operands: Operands) {
    // Constant conditions keep the compiler from the tiles that cannot occur.
    if const { !occurs(T::SHAPE.rows_max::<S>(), R, X) } {
        unreachable!("a tile of {R} rows");
    }
    // SAFETY: required of the caller; the lanes are below 16 by the width of the registers.
    unsafe {
        let registers = const { T::SHAPE.one_pass_registers::<S>(R) };
        for lane in (0..PANEL_ROWS).step_by(registers * S::LANES) {
            match registers {
                4 => T::tile::<S, R, 4, X>(operands, lane),
                2 => T::tile::<S, R, 2, X>(operands, lane),
                _ => T::tile::<S, R, 1, X>(operands, lane),
            }
        }
    }
}

/// The headers of a record for `V` registers from `lane`.
///
/// # Safety
/// As the methods of [`Scales`].
#[inline(always)]
unsafe fn headers<S: Simd, W: QuantizedPanel, const V: usize>(record: *const u8, lane: usize) -> [Header<S, W>; V] {
    // SAFETY: required of the caller.
    unsafe {
        let mut headers = [W::Scales::header::<S>(record, lane); V];
        for (v, header) in headers.iter_mut().enumerate() {
            *header = W::Scales::header::<S>(record, lane + v * S::LANES);
        }
        headers
    }
}
