//! Causal depthwise convolution: every channel by itself, over the row and the few rows before it.

use super::{Columns, ColumnsMut};
use crate::Kernels;
use crate::dispatch::Kernel;
use crate::elementwise::{load_up_to, store_up_to};
use crate::vector::Simd;

/// Channels whose weights and tail stay in the first cache over all rows of a call.
const BLOCK_CHANNELS: usize = 256;

/// The weights of a causal depthwise convolution, for some channels.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv<'a> {
    /// `[kernel, channels]`; the last tap multiplies the newest row.
    pub weight: Columns<'a>,
    /// `[channels]`
    pub bias: Option<&'a [f32]>,
}

impl Kernels {
    /// Convolves `rows`, `[rows, channels]` of one sequence, in place. `tail` holds the `kernel − 1` rows before them, oldest first
    /// (zeros at the start of a sequence), and then those before the next row. For each row in turn:
    ///
    /// ```text
    /// y[c]    = bias[c], or +0
    /// y[c]    = fma(tail[j][c], weight[j][c], y[c])      j from the oldest to the newest
    /// y[c]    = fma(row[c], weight[kernel − 1][c], y[c])
    /// tail[j] = tail[j + 1],  tail[kernel − 2] = row
    /// ```
    ///
    /// # Panics
    /// If channels differ, there is no tap, or the tail has not a row less than there are taps: a caller's bug.
    pub fn causal_conv(self, conv: &CausalConv<'_>, tail: &mut ColumnsMut<'_>, rows: &mut ColumnsMut<'_>) {
        assert_eq!(
            conv.weight.rows(),
            tail.rows() + 1,
            "taps of a convolution and its tail"
        );
        assert_eq!(conv.weight.columns(), rows.columns(), "channels of weight and rows");
        assert_eq!(tail.columns(), rows.columns(), "channels of tail and rows");
        if let Some(bias) = conv.bias {
            assert_eq!(bias.len(), rows.columns(), "channels of bias and rows");
        }
        self.run(Convolve {
            conv: *conv,
            tail: tail.reborrow(),
            rows: rows.reborrow(),
        });
    }
}

/// All by value: what lies behind a reference would be read again after each store.
struct Convolve<'a> {
    conv: CausalConv<'a>,
    tail: ColumnsMut<'a>,
    rows: ColumnsMut<'a>,
}

impl Kernel for Convolve<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let channels = self.rows.columns();
        for first in (0..channels).step_by(BLOCK_CHANNELS) {
            let block_end = channels.min(first + BLOCK_CHANNELS);
            for row in 0..self.rows.rows() {
                let mut channel = first;
                // SAFETY: required of the caller; row and channels exist.
                unsafe {
                    while channel + S::LANES <= block_end {
                        self.step::<S>(row, channel, S::LANES);
                        channel += S::LANES;
                    }
                    if channel < block_end {
                        self.step::<S>(row, channel, block_end - channel);
                    }
                }
            }
        }
    }
}

impl Convolve<'_> {
    /// One step of the first `count` channels from `channel` on, at most a register of them.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`; the row and the channels exist.
    #[inline(always)]
    unsafe fn step<S: Simd>(&mut self, row: usize, channel: usize, count: usize) {
        let weight = self.conv.weight;
        let newest = self.tail.rows();
        // SAFETY: required of the caller. `causal_conv` checked that weight, bias and tail have the channels of the rows, and the
        // weight a tap more than the tail has rows.
        unsafe {
            let mut sum = match self.conv.bias {
                None => S::splat(0.0),
                Some(bias) => load_up_to::<S>(bias.as_ptr().add(channel), count),
            };
            let to = self.rows.row_ptr(row).add(channel);
            let x = load_up_to::<S>(to, count);
            for tap in 0..newest {
                let w = load_up_to::<S>(weight.row_ptr(tap).add(channel), count);
                let place = self.tail.row_ptr(tap).add(channel);
                let old = load_up_to::<S>(place, count);
                sum = S::fma(old, w, sum);
                if tap > 0 {
                    store_up_to::<S>(self.tail.row_ptr(tap - 1).add(channel), old, count);
                }
            }
            if newest > 0 {
                store_up_to::<S>(self.tail.row_ptr(newest - 1).add(channel), x, count);
            }
            let w = load_up_to::<S>(weight.row_ptr(newest).add(channel), count);
            store_up_to::<S>(to, S::fma(x, w, sum), count);
        }
    }
}
