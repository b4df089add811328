//! The selective scan of Mamba-1: a small state for every channel.

use super::{Columns, ColumnsMut};
use crate::Kernels;
use crate::dispatch::Kernel;
use crate::elementwise::{load_up_to, store_up_to};
use crate::math::exp_lanes;
use crate::vector::Simd;

/// One row of a selective scan, for some channels.
#[derive(Clone, Copy, Debug)]
pub struct ScanStep<'a> {
    /// Input: `[channels]`.
    pub x: &'a [f32],
    /// Step size, positive: `[channels]`.
    pub dt: &'a [f32],
    /// Rate of decay, a negative weight: `[state_dim, channels]`.
    pub a: Columns<'a>,
    /// How the input enters the state: `[state_dim]`.
    pub b: &'a [f32],
    /// How the state is read: `[state_dim]`.
    pub c: &'a [f32],
    /// Weight of the direct way from input to output: `[channels]`.
    pub d: &'a [f32],
}

impl Kernels {
    /// Brings the state `h`, `[state_dim, channels]`, forward by one row and reads it out. With `ch` for a channel:
    ///
    /// ```text
    /// h[n][ch] = fma(exp(dt[ch]·a[n][ch]), h[n][ch], (dt[ch]·x[ch])·b[n])
    /// y[ch]    = Σ h[n][ch]·c[n]                one fma chain from +0 in rising n
    /// out[ch]  = fma(d[ch], x[ch], y[ch])
    /// ```
    ///
    /// # Panics
    /// If channels or state dimensions differ in number: a caller's bug.
    pub fn selective_scan_step(self, state: &mut ColumnsMut<'_>, step: &ScanStep<'_>, out: &mut [f32]) {
        let (state_dim, channels) = (state.rows(), state.columns());
        assert_eq!(step.a.rows(), state_dim, "rows of a and state");
        assert_eq!(step.b.len(), state_dim, "dimensions of b and state");
        assert_eq!(step.c.len(), state_dim, "dimensions of c and state");
        assert_eq!(step.a.columns(), channels, "channels of a and state");
        assert_eq!(step.x.len(), channels, "channels of x and state");
        assert_eq!(step.dt.len(), channels, "channels of dt and state");
        assert_eq!(step.d.len(), channels, "channels of d and state");
        assert_eq!(out.len(), channels, "channels of out and state");
        self.run(Scan {
            state: state.reborrow(),
            step: *step,
            out,
        });
    }
}

struct Scan<'a> {
    state: ColumnsMut<'a>,
    step: ScanStep<'a>,
    out: &'a mut [f32],
}

impl Kernel for Scan<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let ScanStep { x, dt, a, b, c, d } = self.step;
        let mut channel = 0;
        while channel < self.out.len() {
            let count = self.out.len() - channel;
            // SAFETY: required of the caller. `selective_scan_step` checked that everything has these channels, and `a` and the state
            // a row for each element of b and c.
            unsafe {
                let x = load_up_to::<S>(x.as_ptr().add(channel), count);
                let dt = load_up_to::<S>(dt.as_ptr().add(channel), count);
                let input = S::mul(dt, x);
                let mut sum = S::splat(0.0);
                for (n, (b, c)) in b.iter().zip(c).enumerate() {
                    let rate = load_up_to::<S>(a.row_ptr(n).add(channel), count);
                    let kept = exp_lanes::<S>(S::mul(dt, rate));
                    let place = self.state.row_ptr(n).add(channel);
                    let h = load_up_to::<S>(place, count);
                    let h = S::fma(kept, h, S::mul(input, S::splat(*b)));
                    store_up_to::<S>(place, h, count);
                    sum = S::fma(h, S::splat(*c), sum);
                }
                let d = load_up_to::<S>(d.as_ptr().add(channel), count);
                store_up_to::<S>(self.out.as_mut_ptr().add(channel), S::fma(d, x, sum), count);
            }
            channel += S::LANES;
        }
    }
}
