//! Several tiles of rows: a panel is unpacked a stretch at a time, which all of them meet while it is in the first cache.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::{Operands, PanelKernel, Product, TileKernel, group_tiles};
use crate::dispatch::{Kernel, Kernels};
use crate::panel::LINE_BYTES;
use crate::panel::PANEL_ROWS;
use crate::quantize::{GroupRun, interleaved, split_evenly};
use crate::vector::{Simd, read_ahead};

/// Values of a row in a stretch, a whole number of records of every type.
pub(super) const STRETCH_VALUES: usize = 256;

/// Most bytes of an unpacked stretch: f32 values.
pub(super) const MOST_BYTES: usize = STRETCH_VALUES * PANEL_ROWS * size_of::<f32>();

/// An unpacked stretch, in whole lines.
#[repr(align(64))]
struct Unpacked(MaybeUninit<[u8; MOST_BYTES]>);

/// Multiplies a panel with all rows of a run.
pub(super) fn all<T: PanelKernel>(kernels: Kernels, product: Product<'_>) {
    let Product { panel, run, out, .. } = product;
    let mut unpacked = Unpacked(MaybeUninit::uninit());
    let starts = (0..run.k()).step_by(STRETCH_VALUES);
    for (start, packed) in starts.zip(panel.chunks(T::STRETCH_BYTES)) {
        let values = STRETCH_VALUES.min(run.k() - start);
        let panel = if T::UNPACKS {
            let to = unpacked.0.as_mut_ptr().cast();
            kernels.run(Unpack::<T> {
                packed,
                values,
                to,
                kernel: PhantomData,
            });
            to
        } else {
            packed.as_ptr()
        };
        kernels.run(Stretch::<T::Unpacked> {
            panel,
            packed,
            start,
            values,
            run,
            out: &mut *out,
            kernel: PhantomData,
        });
    }
}

/// A stretch of a panel with `values` values a row, and room for [`MOST_BYTES`].
struct Unpack<'a, T> {
    packed: &'a [u8],
    values: usize,
    to: *mut u8,
    kernel: PhantomData<T>,
}

impl<T: PanelKernel> Kernel for Unpack<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller says that the machine has the instruction set; the rest is what the fields are.
        unsafe { T::unpack::<S>(self.packed.as_ptr(), self.values, self.to) }
    }
}

/// Values `start .. start + values` of the rows of a run times an unpacked stretch of as many; `out` has 16 values for each row.
struct Stretch<'a, T> {
    panel: *const u8,
    /// The stretch as it lies in memory, in the stream of panels.
    packed: &'a [u8],
    start: usize,
    values: usize,
    run: GroupRun<'a>,
    out: &'a mut [f32],
    kernel: PhantomData<T>,
}

impl<T: TileKernel> Kernel for Stretch<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let first_row = self.run.row_range().start;
        let words_before = self.run.activation_type().row_words(self.start);
        let groups = self.run.groups();
        let (count, lines) = (groups.len(), self.packed.len().div_ceil(LINE_BYTES));
        for (i, group) in groups.enumerate() {
            // The lines further on in the stream, a few with each group: all at once would be more than can be on their way.
            let (first_line, lines) = split_evenly(lines, count, i);
            // SAFETY: the caller says that the machine has the instruction set. A group has words for all values, those before the stretch
            // first, and its rows have outputs.
            unsafe {
                read_ahead::<S>(
                    self.packed.as_ptr().wrapping_add(first_line * LINE_BYTES),
                    lines * LINE_BYTES,
                );
                let operands = Operands {
                    panel: self.panel,
                    k: self.values,
                    x: group.words.as_ptr().add(words_before * interleaved(group.rows)),
                    out: self.out.as_mut_ptr().add((group.first_row - first_row) * PANEL_ROWS),
                    continues: self.start > 0,
                    prefetch: false,
                };
                group_tiles::<S, T>(operands, group);
            }
        }
    }
}
