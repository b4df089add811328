//! Recurrent layers: the oracle against f64, and every instruction set, split of the columns and cut of the rows against the oracle
//! bit by bit.

use std::ops::Range;

use goldcrest_kernels::{CausalConv, Columns, ColumnsMut, Decay, Isa, Kernels, LinearStep, ScanStep, scalar};
use proptest::prelude::*;

/// Half of the distance from 1 to the next f32: the largest relative error of one rounding.
const ROUNDING: f64 = 1.0 / (1 << 24) as f64;

fn kernels() -> impl Iterator<Item = Kernels> {
    Isa::available().map(|isa| Kernels::new(isa).unwrap())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Numbers in (−1, 1) from a seed (a linear congruential generator: proptest need not shrink them one by one).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn take(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }

    /// Numbers in (0, `end`).
    fn positive(&mut self, len: usize, end: f32) -> Vec<f32> {
        (0..len).map(|_| (self.next() + 1.0) * end / 2.0).collect()
    }
}

/// Whether `got` is `exact` after at most `roundings` in each of the terms of a sum, whose absolute values add up to `magnitude`.
fn is_close(got: f32, exact: f64, magnitude: f64, roundings: usize) -> bool {
    // (1 + r)^n − 1 is a little more than n·r.
    (f64::from(got) - exact).abs() <= 1.01 * roundings as f64 * ROUNDING * magnitude
}

/// Three ranges that make up `0..columns`, possibly empty ones.
fn ranges(columns: usize, cuts: (usize, usize)) -> [Range<usize>; 3] {
    let (a, b) = (cuts.0 % (columns + 1), cuts.1 % (columns + 1));
    [0..a.min(b), a.min(b)..a.max(b), a.max(b)..columns]
}

/// Views of these three ranges.
fn views<'a>(matrix: &'a mut [f32], ranges: &[Range<usize>; 3]) -> [ColumnsMut<'a>; 3] {
    let (first, rest) = ColumnsMut::new(matrix, ranges[2].end).split_at(ranges[0].end);
    let (second, third) = rest.split_at(ranges[1].len());
    [first, second, third]
}

fn channel_counts() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1usize..80, 1 => 250usize..600]
}

#[derive(Debug)]
struct ConvCase {
    channels: usize,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    tail: Vec<f32>,
    rows: Vec<f32>,
}

prop_compose! {
    fn conv_cases()(channels in channel_counts(), taps in 1usize..6, rows in 1usize..9, biased: bool, seed: u64) -> ConvCase {
        let mut numbers = Numbers(seed);
        ConvCase {
            channels,
            weight: numbers.take(taps * channels),
            bias: biased.then(|| numbers.take(channels)),
            tail: numbers.take((taps - 1) * channels),
            rows: numbers.take(rows * channels),
        }
    }
}

impl ConvCase {
    /// (rows, tail) after all steps of the oracle.
    fn oracle(&self) -> (Vec<f32>, Vec<f32>) {
        let (mut rows, mut tail) = (self.rows.clone(), self.tail.clone());
        for row in rows.chunks_mut(self.channels) {
            scalar::recurrent::conv_step(&mut tail, &self.weight, self.bias.as_deref(), row);
        }
        (rows, tail)
    }

    fn conv(&self, channels: Range<usize>) -> CausalConv<'_> {
        CausalConv {
            weight: Columns::new(&self.weight, self.channels).range(channels.clone()),
            bias: self.bias.as_ref().map(|bias| &bias[channels]),
        }
    }
}

#[derive(Debug)]
struct LinearCase {
    key_dim: usize,
    value_dim: usize,
    delta_rule: bool,
    decay_per_key: bool,
    state: Vec<f32>,
    steps: usize,
    seed: u64,
}

/// The numbers of a [`LinearStep`].
struct LinearNumbers {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    decay: Vec<f32>,
    beta: Option<f32>,
}

impl LinearNumbers {
    fn step(&self, columns: Range<usize>) -> LinearStep<'_> {
        LinearStep {
            query: &self.query,
            key: &self.key,
            value: &self.value[columns],
            decay: match self.decay[..] {
                [decay] => Decay::One(decay),
                _ => Decay::PerKey(&self.decay),
            },
            beta: self.beta,
        }
    }
}

prop_compose! {
    fn linear_cases()(
        key_dim in prop_oneof![3 => 2usize..40, 1 => Just(128usize)],
        value_dim in prop_oneof![3 => 1usize..80, 1 => Just(128usize), 1 => 120usize..150],
        delta_rule: bool,
        decay_per_key: bool,
        steps in 1usize..5,
        seed: u64,
    ) -> LinearCase {
        let mut numbers = Numbers(seed);
        let state = numbers.take(key_dim * value_dim);
        LinearCase { key_dim, value_dim, delta_rule, decay_per_key, state, steps, seed: numbers.0 }
    }
}

impl LinearCase {
    fn steps(&self) -> Vec<LinearNumbers> {
        let mut numbers = Numbers(self.seed);
        let step = |_| LinearNumbers {
            query: numbers.take(self.key_dim),
            key: numbers.take(self.key_dim),
            value: numbers.take(self.value_dim),
            decay: numbers.positive(if self.decay_per_key { self.key_dim } else { 1 }, 1.0),
            // Up to 2, as models with negative eigenvalues have it.
            beta: self.delta_rule.then(|| numbers.next() + 1.0),
        };
        (0..self.steps).map(step).collect()
    }

    /// (outputs of all steps, state) of the oracle.
    fn oracle(&self) -> (Vec<f32>, Vec<f32>) {
        let mut state = self.state.clone();
        let mut outs = vec![f32::NAN; self.steps * self.value_dim];
        for (step, out) in self.steps().iter().zip(outs.chunks_mut(self.value_dim)) {
            scalar::recurrent::linear_state_step(&mut state, &step.step(0..self.value_dim), out);
        }
        (outs, state)
    }
}

/// One step in f64, by matrix algebra. With `magnitudes` of the absolute values instead, nothing subtracted.
fn exact_linear_step(state: &mut [f64], step: &LinearStep, magnitudes: bool) -> Vec<f64> {
    let number = |x: f32| f64::from(if magnitudes { x.abs() } else { x });
    let value_dim = step.value.len();
    let read = |state: &[f64], by: &[f32]| {
        let mut out = vec![0.0; value_dim];
        for (row, by) in state.chunks(value_dim).zip(by) {
            out.iter_mut().zip(row).for_each(|(out, s)| *out += number(*by) * s);
        }
        out
    };
    for (i, row) in state.chunks_mut(value_dim).enumerate() {
        let decay = match step.decay {
            Decay::One(decay) => decay,
            Decay::PerKey(decay) => decay[i],
        };
        row.iter_mut().for_each(|s| *s *= number(decay));
    }
    let mut write: Vec<f64> = step.value.iter().map(|value| number(*value)).collect();
    if let Some(beta) = step.beta {
        for (write, known) in write.iter_mut().zip(read(state, step.key)) {
            let difference = if magnitudes { *write + known } else { *write - known };
            *write = number(beta) * difference;
        }
    }
    for (row, key) in state.chunks_mut(value_dim).zip(step.key) {
        row.iter_mut()
            .zip(&write)
            .for_each(|(s, write)| *s += number(*key) * write);
    }
    read(state, step.query)
}

#[derive(Debug)]
struct ScanCase {
    channels: usize,
    state: Vec<f32>,
    a: Vec<f32>,
    d: Vec<f32>,
    /// x, dt, b and c of each step.
    steps: Vec<[Vec<f32>; 4]>,
}

/// The largest |dt·a| of a [`ScanCase`].
const LARGEST_EXPONENT: usize = 8;

prop_compose! {
    fn scan_cases()(channels in channel_counts(), state_dim in 1usize..20, steps in 1usize..5, seed: u64) -> ScanCase {
        let mut numbers = Numbers(seed);
        ScanCase {
            channels,
            state: numbers.take(state_dim * channels),
            a: numbers.positive(state_dim * channels, -4.0),
            d: numbers.take(channels),
            steps: (0..steps)
                .map(|_| {
                    [
                        numbers.take(channels),
                        numbers.positive(channels, 2.0),
                        numbers.take(state_dim),
                        numbers.take(state_dim),
                    ]
                })
                .collect(),
        }
    }
}

impl ScanCase {
    fn step(&self, index: usize, channels: Range<usize>) -> ScanStep<'_> {
        let [x, dt, b, c] = &self.steps[index];
        ScanStep {
            x: &x[channels.clone()],
            dt: &dt[channels.clone()],
            a: Columns::new(&self.a, self.channels).range(channels.clone()),
            b,
            c,
            d: &self.d[channels],
        }
    }

    /// (outputs of all steps, state) of the oracle.
    fn oracle(&self) -> (Vec<f32>, Vec<f32>) {
        let mut state = self.state.clone();
        let mut outs = vec![f32::NAN; self.steps.len() * self.channels];
        for (i, out) in outs.chunks_mut(self.channels).enumerate() {
            scalar::recurrent::selective_scan_step(&mut state, &self.step(i, 0..self.channels), out);
        }
        (outs, state)
    }
}

/// One step in f64, channel by channel. With `magnitudes` of the absolute values instead.
fn exact_scan_step(state: &mut [f64], step: &ScanStep, magnitudes: bool) -> Vec<f64> {
    let number = |x: f32| f64::from(if magnitudes { x.abs() } else { x });
    let channels = step.x.len();
    let channel = |ch: usize| {
        let dt = f64::from(step.dt[ch]);
        let rows = state.chunks_mut(channels).enumerate().map(|(n, row)| {
            let decay = libm::exp(dt * f64::from(step.a.row(n)[ch]));
            row[ch] = decay * row[ch] + dt * number(step.b[n]) * number(step.x[ch]);
            row[ch] * number(step.c[n])
        });
        rows.sum::<f64>() + number(step.d[ch]) * number(step.x[ch])
    };
    (0..channels).map(channel).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn magnitudes(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.abs())).collect()
}

proptest! {
    #[test]
    fn convolution_has_the_bits_of_the_oracle(case in conv_cases(), cuts: (usize, usize), row_cut: usize) {
        let (rows_expected, tail_expected) = case.oracle();
        let ranges = ranges(case.channels, cuts);
        let row_cut = row_cut % (case.rows.len() / case.channels + 1) * case.channels;
        for kernels in kernels() {
            let (mut rows, mut tail) = (case.rows.clone(), case.tail.clone());
            let (before, after) = rows.split_at_mut(row_cut);
            for chunk in [before, after] {
                let views = views(chunk, &ranges).into_iter().zip(views(&mut tail, &ranges));
                for ((mut rows, mut tail), range) in views.zip(ranges.clone()) {
                    kernels.causal_conv(&case.conv(range), &mut tail, &mut rows);
                }
            }
            prop_assert_eq!(bits(&rows), bits(&rows_expected), "rows, {}", kernels.isa());
            prop_assert_eq!(bits(&tail), bits(&tail_expected), "tail, {}", kernels.isa());
        }
    }

    #[test]
    fn the_convolution_of_the_oracle_is_close_to_f64(case in conv_cases()) {
        let (rows, tail) = case.oracle();
        let taps = case.weight.len() / case.channels;
        let inputs = [&case.tail[..], &case.rows].concat();
        for (i, y) in rows.iter().enumerate() {
            let bias = case.bias.as_ref().map_or(0.0, |bias| f64::from(bias[i % case.channels]));
            let terms = (0..taps).map(|tap| {
                let weight = case.weight[tap * case.channels + i % case.channels];
                f64::from(weight) * f64::from(inputs[tap * case.channels + i])
            });
            let exact = bias + terms.clone().sum::<f64>();
            let magnitude = bias.abs() + terms.map(f64::abs).sum::<f64>();
            prop_assert!(is_close(*y, exact, magnitude, taps), "{y} for {exact}");
        }
        prop_assert_eq!(&tail[..], &inputs[inputs.len() - tail.len()..]);
    }

    #[test]
    fn linear_states_have_the_bits_of_the_oracle(case in linear_cases(), cuts: (usize, usize)) {
        let (outs_expected, state_expected) = case.oracle();
        let ranges = ranges(case.value_dim, cuts);
        for kernels in kernels() {
            let mut state = case.state.clone();
            let mut outs = vec![f32::NAN; case.steps * case.value_dim];
            for (step, out) in case.steps().iter().zip(outs.chunks_mut(case.value_dim)) {
                for (mut state, range) in views(&mut state, &ranges).into_iter().zip(ranges.clone()) {
                    kernels.linear_state_step(&mut state, &step.step(range.clone()), &mut out[range]);
                }
            }
            prop_assert_eq!(bits(&outs), bits(&outs_expected), "outputs, {}", kernels.isa());
            prop_assert_eq!(bits(&state), bits(&state_expected), "state, {}", kernels.isa());
        }
    }

    #[test]
    fn the_linear_state_of_the_oracle_is_close_to_f64(case in linear_cases()) {
        let (outs, state) = case.oracle();
        let (mut exact_state, mut state_magnitudes) = (wide(&case.state), magnitudes(&case.state));
        // A number in the state passes decay, two dot products at most, a difference, β and a sum in every step.
        let per_step = case.key_dim + 4;
        for (i, (step, out)) in case.steps().iter().zip(outs.chunks(case.value_dim)).enumerate() {
            let step = step.step(0..case.value_dim);
            let exact = exact_linear_step(&mut exact_state, &step, false);
            let magnitudes = exact_linear_step(&mut state_magnitudes, &step, true);
            for ((out, exact), magnitude) in out.iter().zip(exact).zip(magnitudes) {
                let roundings = (i + 1) * per_step + case.key_dim;
                prop_assert!(is_close(*out, exact, magnitude, roundings), "step {i}: {out} for {exact}");
            }
        }
        for ((s, exact), magnitude) in state.iter().zip(exact_state).zip(state_magnitudes) {
            prop_assert!(is_close(*s, exact, magnitude, case.steps * per_step), "state {s} for {exact}");
        }
    }

    #[test]
    fn selective_scans_have_the_bits_of_the_oracle(case in scan_cases(), cuts: (usize, usize)) {
        let (outs_expected, state_expected) = case.oracle();
        let ranges = ranges(case.channels, cuts);
        for kernels in kernels() {
            let mut state = case.state.clone();
            let mut outs = vec![f32::NAN; case.steps.len() * case.channels];
            for (i, out) in outs.chunks_mut(case.channels).enumerate() {
                for (mut state, range) in views(&mut state, &ranges).into_iter().zip(ranges.clone()) {
                    kernels.selective_scan_step(&mut state, &case.step(i, range.clone()), &mut out[range]);
                }
            }
            prop_assert_eq!(bits(&outs), bits(&outs_expected), "outputs, {}", kernels.isa());
            prop_assert_eq!(bits(&state), bits(&state_expected), "state, {}", kernels.isa());
        }
    }

    #[test]
    fn the_selective_scan_of_the_oracle_is_close_to_f64(case in scan_cases()) {
        let (outs, state) = case.oracle();
        let (mut exact_state, mut state_magnitudes) = (wide(&case.state), magnitudes(&case.state));
        // The exponent is rounded once, exp has 2 ulp (4 roundings), and the sum is one more; dt·x·b has two.
        let per_step = LARGEST_EXPONENT + 5;
        for (i, out) in outs.chunks(case.channels).enumerate() {
            let step = case.step(i, 0..case.channels);
            let exact = exact_scan_step(&mut exact_state, &step, false);
            let magnitudes = exact_scan_step(&mut state_magnitudes, &step, true);
            for ((out, exact), magnitude) in out.iter().zip(exact).zip(magnitudes) {
                let roundings = (i + 1) * per_step + step.b.len() + 1;
                prop_assert!(is_close(*out, exact, magnitude, roundings), "step {i}: {out} for {exact}");
            }
        }
        for ((h, exact), magnitude) in state.iter().zip(exact_state).zip(state_magnitudes) {
            prop_assert!(is_close(*h, exact, magnitude, case.steps.len() * per_step), "state {h} for {exact}");
        }
    }
}

#[test]
fn the_last_tap_meets_the_newest_row() {
    for kernels in kernels() {
        let (mut tail, mut rows) = ([5.0], [1.0, 2.0, 3.0]);
        let conv = CausalConv {
            weight: Columns::new(&[10.0, 1.0], 1),
            bias: None,
        };
        kernels.causal_conv(
            &conv,
            &mut ColumnsMut::new(&mut tail, 1),
            &mut ColumnsMut::new(&mut rows, 1),
        );
        assert_eq!((rows, tail), ([51.0, 12.0, 23.0], [3.0]), "{}", kernels.isa());
    }
}

#[test]
fn the_delta_rule_replaces_what_a_key_held() {
    for kernels in kernels() {
        let mut state = [0.0; 6];
        let mut out = [0.0; 3];
        for value in [[1.0, 2.0, 3.0], [-4.0, 5.0, 6.0]] {
            let step = LinearStep {
                query: &[1.0, 0.0],
                key: &[1.0, 0.0],
                value: &value,
                decay: Decay::One(1.0),
                beta: Some(1.0),
            };
            kernels.linear_state_step(&mut ColumnsMut::new(&mut state, 3), &step, &mut out);
            assert_eq!(out, value, "{}", kernels.isa());
            let added = LinearStep { beta: None, ..step };
            kernels.linear_state_step(&mut ColumnsMut::new(&mut state.clone(), 3), &added, &mut out);
            assert_eq!(out, value.map(|v| 2.0 * v), "{}", kernels.isa());
        }
    }
}

#[test]
fn a_nan_stays_in_its_column() {
    for kernels in kernels() {
        let is_nan = |out: &[f32]| out.iter().map(|x| x.is_nan()).collect::<Vec<_>>();
        let x = [1.0, f32::NAN, 1.0];
        let mut out = [0.0; 3];
        let step = LinearStep {
            query: &[1.0],
            key: &[1.0],
            value: &x,
            decay: Decay::One(0.5),
            beta: Some(0.5),
        };
        kernels.linear_state_step(&mut ColumnsMut::new(&mut [0.0; 3], 3), &step, &mut out);
        assert_eq!(is_nan(&out), [false, true, false], "{}", kernels.isa());
        let step = ScanStep {
            x: &[1.0; 3],
            dt: &x,
            a: Columns::new(&[-1.0; 3], 3),
            b: &[1.0],
            c: &[1.0],
            d: &[1.0; 3],
        };
        kernels.selective_scan_step(&mut ColumnsMut::new(&mut [0.0; 3], 3), &step, &mut out);
        assert_eq!(is_nan(&out), [false, true, false], "{}", kernels.isa());
    }
}

#[test]
fn threads_write_columns_of_one_matrix() {
    let mut matrix = [0.0; 4 * 7];
    let (mut left, mut right) = ColumnsMut::new(&mut matrix, 7).split_at(3);
    std::thread::scope(|scope| {
        scope.spawn(move || (0..left.rows()).for_each(|row| left.row_mut(row).fill(1.0)));
        scope.spawn(move || (0..right.rows()).for_each(|row| right.row_mut(row).fill(2.0)));
    });
    assert!(matrix.chunks(7).all(|row| row == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]));
    let columns = Columns::new(&matrix, 7).range(1..6).range(1..4);
    assert_eq!(
        (columns.rows(), columns.columns(), columns.row(3)),
        (4, 3, &[1.0, 2.0, 2.0][..])
    );
}

#[test]
#[should_panic(expected = "column 4 of 3")]
fn columns_that_are_not_there_cannot_be_split_off() {
    let mut matrix = [0.0; 6];
    let (left, _) = ColumnsMut::new(&mut matrix, 6).split_at(3);
    left.split_at(4);
}
