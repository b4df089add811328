//! Norms, rope, and element-by-element operations: every instruction set against the oracle bit by bit, the oracle against f64.

use goldcrest_kernels::{Activation, GatedActivation, Isa, Kernels, Xielu, scalar};
use proptest::prelude::*;

fn kernels() -> impl Iterator<Item = Kernels> {
    Isa::available().map(|isa| Kernels::new(isa).unwrap())
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// `len` numbers of mixed magnitude and sign.
fn numbers(len: usize) -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(
        prop_oneof![4 => -4f32..4.0, 1 => -1e3f32..1e3, 1 => -1e-3f32..1e-3],
        len,
    )
}

/// (row length, two rows, weight, bias)
fn rows() -> impl Strategy<Value = (usize, Vec<f32>, Vec<f32>, Vec<f32>)> {
    (1usize..100).prop_flat_map(|len| (Just(len), numbers(2 * len), numbers(len), numbers(len)))
}

fn exact_rms_norm(x: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
    x.iter().map(|&x| f64::from(x) / (mean + eps).sqrt()).collect()
}

proptest! {
    #[test]
    fn rms_norm_has_the_bits_of_the_oracle((len, x, weight, _) in rows(), weighted: bool, eps in 1e-8f32..1e-3) {
        let weight = weighted.then_some(&weight[..]);
        let mut expected = x.clone();
        expected.chunks_mut(len).for_each(|row| scalar::norm::rms_norm(row, weight, eps));
        for kernels in kernels() {
            let mut y = x.clone();
            kernels.rms_norm(&mut y, len, weight, eps);
            prop_assert_eq!(bits(&y), bits(&expected), "{}", kernels.isa());
        }
    }

    #[test]
    fn layer_norm_has_the_bits_of_the_oracle((len, x, weight, bias) in rows(), weighted: bool, biased: bool) {
        let (weight, bias) = (weighted.then_some(&weight[..]), biased.then_some(&bias[..]));
        let mut expected = x.clone();
        expected.chunks_mut(len).for_each(|row| scalar::norm::layer_norm(row, weight, bias, 1e-5));
        for kernels in kernels() {
            let mut y = x.clone();
            kernels.layer_norm(&mut y, len, weight, bias, 1e-5);
            prop_assert_eq!(bits(&y), bits(&expected), "{}", kernels.isa());
        }
    }

    #[test]
    fn weights_of_several_rows_belong_to_the_rows_in_turn((len, x, weight, bias) in rows(), biased: bool) {
        // Four rows with weights for two.
        let x = [&x[..], &bias, &weight].concat();
        let (weight, bias) = ([&weight[..], &bias].concat(), [&bias[..], &weight].concat());
        let biases = biased.then_some(&bias[..]);
        let (mut rms, mut layer) = (x.clone(), x.clone());
        for (i, row) in rms.chunks_mut(len).enumerate() {
            scalar::norm::rms_norm(row, Some(&weight[i % 2 * len..][..len]), 1e-5);
        }
        for (i, row) in layer.chunks_mut(len).enumerate() {
            let bias = biases.map(|bias| &bias[i % 2 * len..][..len]);
            scalar::norm::layer_norm(row, Some(&weight[i % 2 * len..][..len]), bias, 1e-5);
        }
        for kernels in kernels() {
            let mut y = x.clone();
            kernels.rms_norm(&mut y, len, Some(&weight), 1e-5);
            prop_assert_eq!(bits(&y), bits(&rms), "{}", kernels.isa());
            let mut y = x.clone();
            kernels.layer_norm(&mut y, len, Some(&weight), biases, 1e-5);
            prop_assert_eq!(bits(&y), bits(&layer), "{}", kernels.isa());
        }
    }

    #[test]
    fn l2_norm_has_the_bits_of_the_oracle_which_is_close_to_f64((len, x, ..) in rows(), eps in 1e-8f32..1e-3) {
        let mut expected = x.clone();
        expected.chunks_mut(len).for_each(|row| scalar::norm::l2_norm(row, eps));
        for kernels in kernels() {
            let mut y = x.clone();
            kernels.l2_norm(&mut y, len, eps);
            prop_assert_eq!(bits(&y), bits(&expected), "{}", kernels.isa());
        }
        for (x, y) in x.chunks(len).zip(expected.chunks(len)) {
            let square = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
            for (x, y) in x.iter().zip(y) {
                let exact = f64::from(*x) / (square + f64::from(eps)).sqrt();
                prop_assert!((f64::from(*y) - exact).abs() <= exact.abs() * 1e-6, "{y} for {exact}");
            }
        }
    }

    #[test]
    fn dot_has_the_bits_of_the_oracle_which_is_close_to_f64((len, x, y, _) in rows()) {
        let x = &x[..len];
        let expected = scalar::norm::dot(x, &y);
        for kernels in kernels() {
            prop_assert_eq!(kernels.dot(x, &y).to_bits(), expected.to_bits(), "{}", kernels.isa());
        }
        // At most 7 fused steps a chain and a tree of 4, each relative to the sum of magnitudes.
        let products = || x.iter().zip(&y).map(|(x, y)| f64::from(*x) * f64::from(*y));
        let magnitude: f64 = products().map(f64::abs).sum();
        prop_assert!((f64::from(expected) - products().sum::<f64>()).abs() <= 11.0 * magnitude * f64::from(f32::EPSILON));
    }

    #[test]
    fn products_with_groups_have_their_formula(
        (groups, group_len, rows) in (1usize..6, 1usize..40, 1usize..4),
        x in numbers(5 * 39 * 3),
        factors in numbers(5 * 3),
    ) {
        let row_len = groups * group_len;
        let x = &x[..rows * row_len];
        let group_of = |i: usize| i % row_len / group_len;
        let own: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * factors[i / row_len * groups + group_of(i)]).collect();
        let same: Vec<f32> = x.iter().enumerate().map(|(i, x)| x * factors[group_of(i)]).collect();
        for kernels in kernels() {
            let mut y = x.to_vec();
            kernels.mul_groups(&mut y, &factors[..rows * groups]);
            prop_assert_eq!(bits(&y), bits(&own), "{}", kernels.isa());
            let mut y = x.to_vec();
            kernels.mul_vector(&mut y, row_len, &factors[..groups]);
            prop_assert_eq!(bits(&y), bits(&same), "{}", kernels.isa());
        }
    }

    #[test]
    fn norms_are_close_to_f64(x in (1usize..100).prop_flat_map(numbers)) {
        // Sixteen chains of at most 7 fused steps and a tree of 4: relative error of the mean at most 13 · 2^-24, of its root half of it.
        let mut y = x.clone();
        scalar::norm::rms_norm(&mut y, None, 1e-5);
        for (y, exact) in y.iter().zip(exact_rms_norm(&x, 1e-5)) {
            prop_assert!((f64::from(*y) - exact).abs() <= exact.abs() * 1e-6, "{y} for {exact}");
        }
        let mut y = x.clone();
        scalar::norm::layer_norm(&mut y, None, None, 1e-5);
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
        let largest = x.iter().fold(0f64, |max, &x| max.max(f64::from(x).abs()));
        let variance = x.iter().map(|&x| (f64::from(x) - mean) * (f64::from(x) - mean)).sum::<f64>() / x.len() as f64;
        let deviation = (variance + 1e-5).sqrt();
        for (y, x) in y.iter().zip(&x) {
            // The mean may cancel: its error is relative to the largest element.
            let exact = (f64::from(*x) - mean) / deviation;
            let bound = (exact.abs() + 1.0) * 4e-6 * (1.0 + largest / deviation);
            prop_assert!((f64::from(*y) - exact).abs() <= bound, "{y} for {exact}");
        }
    }

    #[test]
    fn rope_has_the_bits_of_the_oracle(
        (half, head_dim, heads) in (1usize..40).prop_flat_map(|half| (Just(half), 2 * half..2 * half + 20, 1usize..4)),
        seed in numbers(80 + 3 * 100),
    ) {
        let (cos, sin) = (&seed[..half], &seed[40..40 + half]);
        let x = &seed[80..80 + heads * head_dim];
        let mut expected = x.to_vec();
        expected.chunks_mut(head_dim).for_each(|head| scalar::rope::rotate_halves(head, cos, sin));
        for kernels in kernels() {
            let mut y = x.to_vec();
            kernels.rotate_halves(&mut y, head_dim, cos, sin);
            prop_assert_eq!(bits(&y), bits(&expected), "{}", kernels.isa());
        }
    }

    #[test]
    fn rotation_has_the_bits_of_the_oracle(
        (head_dim, x) in prop::sample::select(&[1, 7, 24, 50, 64, 80, 128, 256, 576, 1040][..])
            .prop_flat_map(|head_dim| (Just(head_dim), numbers(2 * head_dim))),
    ) {
        let (mut expected, mut expected_back) = (x.clone(), x.clone());
        expected.chunks_mut(head_dim).for_each(scalar::rotation::rotate_signed);
        expected_back.chunks_mut(head_dim).for_each(scalar::rotation::unrotate_signed);
        for kernels in kernels() {
            let (mut y, mut back) = (x.clone(), x.clone());
            kernels.rotate_signed(&mut y, head_dim);
            prop_assert_eq!(bits(&y), bits(&expected), "{}", kernels.isa());
            kernels.unrotate_signed(&mut back, head_dim);
            prop_assert_eq!(bits(&back), bits(&expected_back), "{}", kernels.isa());
        }
    }

    #[test]
    fn rotation_keeps_dot_products_and_turns_back(
        (head_dim, x) in prop::sample::select(&[7, 24, 64, 80, 576][..])
            .prop_flat_map(|head_dim| (Just(head_dim), numbers(2 * head_dim))),
    ) {
        let dot = |x: &[f32]| {
            let (q, k) = x.split_at(head_dim);
            q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>()
        };
        let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        let mut turned = x.clone();
        turned.chunks_mut(head_dim).for_each(scalar::rotation::rotate_signed);
        // At most 9 roundings of sums and 2 of the scale, each relative to a block's length.
        let bound = 11.0 * f64::from(f32::EPSILON);
        prop_assert!((dot(&turned) - dot(&x)).abs() <= 2.0 * bound * norm(&x[..head_dim]) * norm(&x[head_dim..]));
        turned.chunks_mut(head_dim).for_each(scalar::rotation::unrotate_signed);
        for (back, x) in turned.chunks(head_dim).zip(x.chunks(head_dim)) {
            let error: Vec<f32> = back.iter().zip(x).map(|(back, x)| back - x).collect();
            prop_assert!(norm(&error) <= 2.0 * bound * norm(x));
        }
    }

    #[test]
    fn elementwise_operations_have_their_formula((len, x, y, _) in rows(), s in -3f32..3.0, cap in 1f32..60.0) {
        let pairs = || x.chunks(len).flat_map(|row| row.iter().zip(&y));
        let sum: Vec<f32> = pairs().map(|(x, y)| x + y).collect();
        let add_scaled: Vec<f32> = x[..len].iter().zip(&y).map(|(x, y)| y.mul_add(s, *x)).collect();
        let product: Vec<f32> = pairs().map(|(x, y)| x * y).collect();
        let scaled: Vec<f32> = x.iter().map(|x| x * s).collect();
        let capped: Vec<f32> = x.iter().map(|x| cap * scalar::math::tanh(x / cap)).collect();
        for kernels in kernels() {
            let run = |x: &[f32], operation: &dyn Fn(&mut [f32])| {
                let mut x = x.to_vec();
                operation(&mut x);
                bits(&x)
            };
            prop_assert_eq!(run(&x, &|x| kernels.add_bias(x, &y)), bits(&sum));
            prop_assert_eq!(run(&x[..len], &|x| kernels.add(x, &y)), bits(&sum[..len]));
            prop_assert_eq!(run(&x, &|x| kernels.mul_vector(x, len, &y)), bits(&product));
            prop_assert_eq!(run(&x[..len], &|x| kernels.mul(x, &y)), bits(&product[..len]));
            prop_assert_eq!(run(&x[..len], &|x| kernels.add_scaled(x, s, &y)), bits(&add_scaled));
            prop_assert_eq!(run(&x, &|x| kernels.scale(x, s)), bits(&scaled));
            prop_assert_eq!(run(&x, &|x| kernels.softcap(x, cap)), bits(&capped));
        }
    }

    #[test]
    fn gated_activations_have_the_bits_of_the_oracle((len, gate, up, _) in rows(), alpha in 0.5f32..2.0, limit in 0.1f32..12.0) {
        let gate = &gate[..len];
        for activation in gated_activations(alpha, limit) {
            let join = |(gate, up): (&f32, &f32)| scalar::activation::activate_gated(activation, *gate, *up);
            let expected: Vec<f32> = gate.iter().zip(&up).map(join).collect();
            for kernels in kernels() {
                let mut y = gate.to_vec();
                kernels.activate_gated(activation, &mut y, &up);
                prop_assert_eq!(bits(&y), bits(&expected), "{:?} on {}", activation, kernels.isa());
            }
        }
    }

    #[test]
    fn limited_activations_are_close_to_f64(gate in -20f32..20.0, up in -20f32..20.0, alpha in 0.5f32..2.0, limit in 0.1f32..12.0) {
        let (x, u) = (f64::from(gate.min(limit)), f64::from(up.clamp(-limit, limit)));
        let glu = |alpha: f32| x / (1.0 + libm::exp(-f64::from(alpha) * x));
        let swiglu = scalar::activation::activate_gated(GatedActivation::ClampedSwiGlu { alpha, limit }, gate, up);
        // Rounding the argument of exp, at most 40, costs up to 40 half units of the last place.
        let bound = |y: f64| y.abs() * libm::ldexp(1.0, -18) + 1e-12;
        let exact = (u + 1.0) * glu(alpha);
        prop_assert!((f64::from(swiglu) - exact).abs() <= bound(glu(alpha)) * (u.abs() + 1.0), "{swiglu} for {exact}");
        let silu = scalar::activation::activate_gated(GatedActivation::LimitedSilu { limit }, gate, up);
        let exact = u * glu(1.0);
        prop_assert!((f64::from(silu) - exact).abs() <= bound(exact), "{silu} for {exact}");
    }
}

/// Every gated form, one plain activation of each kind.
fn gated_activations(alpha: f32, limit: f32) -> [GatedActivation; 5] {
    let xielu = Xielu {
        alpha_p: alpha,
        alpha_n: 2.0 * alpha,
        beta: 0.5,
        eps: -1e-6,
    };
    [
        GatedActivation::Plain(Activation::Silu),
        GatedActivation::Plain(Activation::Relu),
        GatedActivation::Plain(Activation::Xielu(xielu)),
        GatedActivation::ClampedSwiGlu { alpha, limit },
        GatedActivation::LimitedSilu { limit },
    ]
}

#[test]
fn limits_of_gated_activations_let_nan_through() {
    for activation in gated_activations(1.702, 7.0) {
        for kernels in kernels() {
            let mut gate = [f32::NAN, 1.0];
            kernels.activate_gated(activation, &mut gate, &[1.0, f32::NAN]);
            assert!(gate.iter().all(|y| y.is_nan()), "{activation:?} on {}", kernels.isa());
        }
    }
}

#[test]
fn empty_rows_are_no_rows() {
    for kernels in kernels() {
        kernels.add(&mut [], &[]);
        kernels.add_bias(&mut [], &[]);
        kernels.mul(&mut [], &[]);
        kernels.mul_groups(&mut [], &[]);
        kernels.l2_norm(&mut [], 4, 1e-6);
        kernels.rms_norm(&mut [], 4, None, 1e-6);
        kernels.rotate_halves(&mut [], 4, &[], &[]);
    }
}

#[test]
fn rope_turns_by_the_angle_and_leaves_the_rest() {
    // A quarter turn: (x, y) → (−y, x).
    let mut head = [1.0, 2.0, 3.0, 4.0, 9.0];
    Kernels::best().rotate_halves(&mut head, 5, &[0.0, 0.0], &[1.0, 1.0]);
    assert_eq!(head, [-3.0, -4.0, 1.0, 2.0, 9.0]);
}

#[test]
fn non_finite_numbers_reach_the_output_of_a_norm() {
    for kernels in kernels() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = [1.0, bad, 2.0];
            kernels.rms_norm(&mut row, 3, None, 1e-6);
            assert!(row[1].is_nan(), "{bad} on {}", kernels.isa());
        }
    }
}

/// One large number becomes as many equal ones as the block has, and the signs are not all the same.
#[test]
fn rotation_spreads_an_outlier() {
    let mut x = [0.0; 128];
    x[5] = 1.0;
    scalar::rotation::rotate_signed(&mut x);
    let spread = 1.0 / 128f32.sqrt();
    assert_eq!(x.map(f32::abs), [spread; 128]);
    let mut ones = vec![1.0; 999];
    scalar::rotation::rotate_signed(&mut ones);
    let negative = ones.iter().filter(|x| **x < 0.0).count();
    assert!((400..600).contains(&negative), "{negative} negative signs of 999");
}
