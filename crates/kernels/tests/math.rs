//! The elementary functions and activations against f64, and all instruction sets against the oracle bit by bit.

use goldcrest_kernels::{Activation, Isa, Kernels, MathFunction, Xielu, scalar};

const XIELU: Xielu = Xielu {
    alpha_p: 0.8,
    alpha_n: 1.3,
    beta: 0.5,
    eps: -1e-6,
};

const ACTIVATIONS: [Activation; 11] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::QuickGelu,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Softplus,
    Activation::Exp,
    Activation::Xielu(XIELU),
];

/// Every `step`-th f32 by its bits, from zero through infinity, the NaNs and the negative numbers, in blocks.
fn all_f32(step: usize) -> impl Iterator<Item = Vec<f32>> {
    const BLOCK: usize = 1 << 16;
    let last = u32::MAX as usize;
    (0..=last).step_by(step * BLOCK).map(move |start| {
        let bits = (start..=last).step_by(step).take(BLOCK);
        bits.map(|bits| f32::from_bits(bits as u32)).collect()
    })
}

/// Where functions change their formula or reach a limit, with the neighbours of each.
fn special_values() -> Vec<f32> {
    let magnitudes = [
        0.0,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        1e-6,
        // Halfway between multiples of ln 2, where exp and expm1 change their power of two.
        0.346_573_6,
        1.0397208,
        0.63,
        0.93,
        std::f32::consts::SQRT_2 - 1.0,
        1.0 - std::f32::consts::FRAC_1_SQRT_2,
        1.0,
        3.95,
        9.1,
        87.33655,
        88.72284,
        89.0,
        103.97208,
        104.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    let near = |x: f32| [x.next_down(), x, x.next_up()];
    magnitudes
        .into_iter()
        .flat_map(|x| [near(x), near(-x)])
        .flatten()
        .collect()
}

/// Distance of `y` from `exact` in units of the last place of the f32 nearest to `exact`.
fn ulp_error(y: f32, exact: f64) -> f64 {
    /// From here on f64 values round to an infinite f32.
    const OVERFLOW: f64 = 3.402_823_567_797_336_6e38;
    if exact.is_nan() {
        return if y.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if exact.abs() >= OVERFLOW {
        let infinity = f64::INFINITY.copysign(exact);
        return if f64::from(y) == infinity { 0.0 } else { f64::INFINITY };
    }
    if !y.is_finite() {
        return f64::INFINITY;
    }
    let exponent = ((exact.abs().to_bits() >> 52) as i32 - 1023).max(-126);
    (f64::from(y) - exact).abs() / libm::ldexp(1.0, exponent - 23)
}

fn exact(function: MathFunction, x: f64) -> f64 {
    match function {
        MathFunction::Exp => libm::exp(x),
        MathFunction::Expm1 => libm::expm1(x),
        MathFunction::Log1p => libm::log1p(x),
        MathFunction::Tanh => libm::tanh(x),
        MathFunction::Erf => libm::erf(x),
        MathFunction::Sigmoid => 1.0 / (1.0 + libm::exp(-x)),
        MathFunction::Softplus => x.max(0.0) + libm::log1p(libm::exp(-x.abs())),
    }
}

fn assert_within_two_ulp(function: MathFunction, x: &[f32]) {
    let mut y = x.to_vec();
    Kernels::best().apply(function, &mut y);
    for (&x, &y) in x.iter().zip(&y) {
        let exact = exact(function, f64::from(x));
        let error = ulp_error(y, exact);
        assert!(
            error <= 2.0,
            "{function:?}({x:e}) = {y:e}, exactly {exact:e}: {error} ulp"
        );
    }
}

#[test]
fn functions_are_within_two_ulp_of_f64() {
    for function in MathFunction::ALL {
        assert_within_two_ulp(function, &special_values());
        all_f32(4099).for_each(|x| assert_within_two_ulp(function, &x));
    }
}

/// All 2^32 arguments: a minute in a release build, so run by name.
#[test]
#[ignore = "a minute in a release build"]
fn exp_of_every_f32_is_within_two_ulp() {
    all_f32(1).for_each(|x| assert_within_two_ulp(MathFunction::Exp, &x));
}

/// As the test above.
#[test]
#[ignore = "a minute in a release build"]
fn expm1_of_every_f32_is_within_two_ulp() {
    all_f32(1).for_each(|x| assert_within_two_ulp(MathFunction::Expm1, &x));
}

#[test]
fn expm1_has_its_exact_values_and_limits() {
    let expm1 = |x| MathFunction::Expm1.of(x);
    assert_eq!(expm1(0.0), 0.0);
    assert_eq!(
        expm1(f32::from_bits(1)),
        f32::from_bits(1),
        "small arguments are their own result"
    );
    assert_eq!(expm1(f32::NEG_INFINITY), -1.0);
    assert_eq!(expm1(f32::INFINITY), f32::INFINITY);
    assert!(expm1(88.72).is_finite() && expm1(88.73).is_infinite());
    assert!(expm1(f32::NAN).is_nan());
}

#[test]
fn exp_has_its_exact_values_and_limits() {
    let exp = |x| MathFunction::Exp.of(x);
    assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
    assert_eq!(exp(-0.0).to_bits(), 1f32.to_bits());
    assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0f32.to_bits());
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(-103.9), f32::from_bits(1), "the smallest subnormal is not flushed");
    assert!(exp(f32::NAN).is_nan());
}

/// The scalar function of an operation on slices.
type Oracle = Box<dyn Fn(f32) -> f32>;
/// An operation on slices.
type Operation = Box<dyn Fn(Kernels, &mut [f32])>;

fn operations() -> Vec<(String, Oracle, Operation)> {
    let functions = MathFunction::ALL.into_iter().map(|f| -> (String, Oracle, Operation) {
        let operation = move |kernels: Kernels, x: &mut [f32]| kernels.apply(f, x);
        (format!("{f:?}"), Box::new(move |x| f.of(x)), Box::new(operation))
    });
    let activations = ACTIVATIONS.into_iter().map(|a| -> (String, Oracle, Operation) {
        let operation = move |kernels: Kernels, x: &mut [f32]| kernels.activate(a, x);
        let oracle = move |x| scalar::activation::activate(a, x);
        (format!("{a:?}"), Box::new(oracle), Box::new(operation))
    });
    functions.chain(activations).collect()
}

fn assert_same_bits(got: f32, expected: f32, what: impl Fn() -> String) {
    let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
    assert!(
        same,
        "{}: {got:e} ({:#x}), expected {expected:e} ({:#x})",
        what(),
        got.to_bits(),
        expected.to_bits()
    );
}

#[test]
fn every_instruction_set_has_the_bits_of_the_oracle() {
    for isa in Isa::available() {
        let kernels = Kernels::new(isa).unwrap();
        for (name, oracle, operation) in operations() {
            let blocks = all_f32(20_011).chain([special_values()]);
            for x in blocks {
                let mut y = x.clone();
                operation(kernels, &mut y);
                for (&x, &y) in x.iter().zip(&y) {
                    assert_same_bits(y, oracle(x), || format!("{name}({x:e}) on {isa}"));
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_length_of_the_slice() {
    let x: Vec<f32> = (0..50).map(|i| (i as f32 - 25.0) * 0.37).collect();
    for isa in Isa::available() {
        let kernels = Kernels::new(isa).unwrap();
        for (name, oracle, operation) in operations() {
            for len in 0..x.len() {
                let mut y = x.clone();
                operation(kernels, &mut y[..len]);
                for (i, (&x, &y)) in x.iter().zip(&y).enumerate() {
                    let expected = if i < len { oracle(x) } else { x };
                    assert_same_bits(y, expected, || format!("{name} of {len} numbers, number {i}, on {isa}"));
                }
            }
        }
    }
}

/// The formula of an activation in f64.
fn exact_activation(activation: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + libm::exp(-x));
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::GeluTanh => {
            let scale = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + libm::tanh(scale * (x + 0.044715 * x * x * x)))
        }
        Activation::GeluErf => 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)),
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0) * x.max(0.0),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => libm::tanh(x),
        Activation::Softplus => libm::log1p(libm::exp(x)),
        Activation::Exp => libm::exp(x),
        Activation::Xielu(parameters) => exact_xielu(parameters, x),
    }
}

fn exact_xielu(parameters: Xielu, x: f64) -> f64 {
    let [alpha_p, alpha_n, beta, eps] =
        [parameters.alpha_p, parameters.alpha_n, parameters.beta, parameters.eps].map(f64::from);
    if x > 0.0 {
        alpha_p * x * x + beta * x
    } else {
        alpha_n * (libm::expm1(x.min(eps)) - x) + beta * x
    }
}

#[test]
fn activations_are_close_to_f64() {
    for i in -40_000..=40_000 {
        let x = i as f32 * 5e-4;
        for activation in ACTIVATIONS {
            let exact = exact_activation(activation, f64::from(x));
            let y = scalar::activation::activate(activation, x);
            let magnitude = f64::from(x.abs());
            let scale = match activation {
                // A function of the library, not a product with x: relative to its own result.
                Activation::Sigmoid | Activation::Tanh | Activation::Softplus | Activation::Exp => exact.abs(),
                // The eps of xIELU shows at 0.
                Activation::Xielu(_) => magnitude.max(1e-6) * magnitude.max(1.0) * 2.0,
                _ => magnitude * magnitude.max(1.0),
            };
            assert!(
                (f64::from(y) - exact).abs() <= scale * libm::ldexp(1.0, -22),
                "{activation:?}({x}) = {y}, exactly {exact}"
            );
        }
    }
}
