//! Sums of exponentials of logits in f64, the same bits on every platform.

use std::f64::consts::LOG2_E;

use crate::dispatch::{Kernel, Kernels};
use crate::vector::Simd;

/// ln 2 in two parts: 32 leading bits, whose product with an exponent is exact, and the rest.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
/// Added and subtracted, rounds to an integer, which the lowest bits of the sum hold.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// Smaller arguments give 0, before results become subnormal.
const LEAST: f64 = -708.0;
/// 1/13!, 1/12! … 1/2!: the series of e^r, whose next term is below 2^-57 of it for |r| ≤ ½ ln 2.
const SERIES: [f64; 12] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
];

/// e^x for x ≤ 0, within 2 units in the last place; 0 below −708. NaN stays NaN.
///
/// Multiplications and additions only, without a branch: a loop over it becomes vector code, ten times faster than `libm`, which
/// matters for a vocabulary of 262,144.
#[inline(always)]
pub fn exp_f64(x: f64) -> f64 {
    let inside = if x < LEAST { LEAST } else { x };
    let rounded = inside * LOG2_E + ROUND;
    let exponent = rounded - ROUND;
    let r = (inside - exponent * LN_2_HIGH) - exponent * LN_2_LOW;
    // Written out: a loop within the loop over logits would keep the compiler from vectors.
    let [a, b, c, d, e, f, g, h, i, j, k, l] = SERIES;
    let series =
        ((((((((((a * r + b) * r + c) * r + d) * r + e) * r + f) * r + g) * r + h) * r + i) * r + j) * r + k) * r + l;
    let power = f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52);
    let result = (1.0 + (r + r * r * series)) * power;
    if x < LEAST { 0.0 } else { result }
}

impl Kernels {
    /// Σ exp((logit − max) / temperature) by rising index, by [`exp_f64`], where no logit is above `max`.
    pub fn sum_exp(self, logits: &[f32], max: f32, temperature: f32) -> f64 {
        self.run(SumExp {
            logits,
            max: max.into(),
            temperature: temperature.into(),
        })
    }
}

struct SumExp<'a> {
    logits: &'a [f32],
    max: f64,
    temperature: f64,
}

impl Kernel for SumExp<'_> {
    type Output = f64;

    /// Plain code: the compiler makes vectors of the instruction set of it, and has no leave to change a bit.
    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        const BLOCK: usize = 64;
        // The sum's order is fixed, so only the terms, in blocks of their own, can be computed many at a time.
        let mut terms = [0.0; BLOCK];
        let mut sum = 0.0;
        for block in self.logits.chunks(BLOCK) {
            for (term, &logit) in terms.iter_mut().zip(block) {
                *term = exp_f64((f64::from(logit) - self.max) / self.temperature);
            }
            for term in &terms[..block.len()] {
                sum += term;
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let arguments = (0..1_000_000).map(|i| f64::from(i) * -0.000_708);
        let small = (0..1000).map(|i| f64::from_bits(0x8000_0000_0000_0000 + (i << 52)));
        for x in arguments.chain(small.filter(|x| *x > LEAST)) {
            let (got, want) = (exp_f64(x), libm::exp(x));
            assert!(got.to_bits().abs_diff(want.to_bits()) <= 2, "{x}: {got} for {want}");
        }
    }

    #[test]
    fn exp_has_its_limits() {
        assert_eq!((exp_f64(0.0), exp_f64(-0.0)), (1.0, 1.0));
        assert!(exp_f64(-708.0) > 0.0);
        assert_eq!(
            (exp_f64(-708.1), exp_f64(-1e300), exp_f64(f64::NEG_INFINITY)),
            (0.0, 0.0, 0.0)
        );
        assert!(exp_f64(f64::NAN).is_nan());
    }

    #[test]
    fn sum_exp_adds_by_rising_index_on_every_instruction_set() {
        let logits: Vec<f32> = (0..1000).map(|id| (id * 7919 % 1009) as f32 / -100.0).collect();
        for len in [0, 1, 63, 64, 65, 1000] {
            let want = logits[..len]
                .iter()
                .fold(0.0, |sum, &logit| sum + exp_f64(f64::from(logit) / 0.5));
            for kernels in Isa::ALL.into_iter().filter_map(|isa| Kernels::new(isa).ok()) {
                assert_eq!(
                    kernels.sum_exp(&logits[..len], 0.0, 0.5),
                    want,
                    "{len} on {}",
                    kernels.isa()
                );
            }
        }
    }
}
