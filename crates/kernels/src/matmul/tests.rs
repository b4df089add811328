//! Every instruction set against the oracle, by equality of bits, and the oracle against f64.

use goldcrest_format::{DType, blocks};
use proptest::prelude::*;

use crate::Kernels;
use crate::panel::lanes::levels::{Iq1, Iq2, Iq3S, Iq3Xxs, Levels};
use crate::panel::{PANEL_ROWS, PanelType};
use crate::quantize::{ActivationType, Activations};
use crate::scalar::matmul as oracle;
use crate::stamped::{Instance, Stamps};

/// A small generator with a fixed seed: xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// What the weights of a test are.
#[derive(Clone, Copy, Debug)]
enum Weights {
    /// Random quants; signed scales near 0.01.
    Ordinary,
    /// Quants that are all the same byte; scales as above.
    Constant(u8),
    /// Random quants; subnormal f16 scales of both signs.
    Subnormal,
    /// Random bytes: NaN, infinite and zero scales too.
    Any,
}

const WEIGHTS: [Weights; 6] = [
    Weights::Ordinary,
    Weights::Constant(0x00),
    Weights::Constant(0x80),
    Weights::Constant(0xff),
    Weights::Subnormal,
    Weights::Any,
];

/// Offsets of the f16 fields of a published block.
fn scale_offsets(panel_type: PanelType) -> &'static [usize] {
    match panel_type {
        PanelType::Q8_0 | PanelType::Q4_0 | PanelType::Q5_0 | PanelType::IQ4_NL | PanelType::IQ4_XS => &[0],
        PanelType::Q4_1 | PanelType::Q5_1 | PanelType::Q4_K | PanelType::Q5_K => &[0, 2],
        PanelType::Q2_K => &[80, 82],
        PanelType::Q3_K => &[108],
        PanelType::Q6_K => &[208],
        PanelType::TQ1_0 => &[52],
        PanelType::TQ2_0 => &[64],
        _ => &[],
    }
}

/// The quants that integer blocks of a type may hold.
fn levels(panel_type: PanelType) -> &'static [i8] {
    match panel_type {
        PanelType::IQ1 => &Iq1::VALUES[..6],
        PanelType::IQ2 => &Iq2::VALUES[..6],
        PanelType::IQ3_XXS => &Iq3Xxs::VALUES,
        PanelType::IQ3_S => &Iq3S::VALUES,
        _ => panic!("{panel_type} has no integer blocks"),
    }
}

/// A row as it is packed.
fn weight_row(panel_type: PanelType, k: usize, weights: Weights, random: &mut Random) -> Vec<u8> {
    let mut row: Vec<u8> = (0..panel_type.row_bytes(k))
        .map(|_| (random.next() >> 32) as u8)
        .collect();
    if let Weights::Constant(byte) = weights {
        row.fill(byte);
    }
    for block in row.chunks_exact_mut(panel_type.block_bytes()) {
        if panel_type.takes_integers() {
            integer_quants(panel_type, block);
        }
        let value = random.unit() * 0.01;
        match (panel_type, weights) {
            (_, Weights::Any) => {}
            (PanelType::F16, Weights::Subnormal) => block.copy_from_slice(&subnormal(random)),
            (PanelType::F16, _) => block.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
            (PanelType::BF16, _) => block.copy_from_slice(&half::bf16::from_f32(value).to_le_bytes()),
            (PanelType::MXFP4, Weights::Subnormal) => block[0] %= 4,
            // 2^-11 to 2^-8.
            (PanelType::MXFP4, _) => block[0] = 116 + block[0] % 4,
            (PanelType::NVFP4, Weights::Subnormal) => block[..4].iter_mut().for_each(|scale| *scale &= 0x87),
            (PanelType::NVFP4, _) => block[..4].iter_mut().for_each(|scale| *scale &= 0x9f),
            _ if panel_type == PanelType::F32 || panel_type.takes_integers() => {
                block[..4].copy_from_slice(&value.to_le_bytes());
            }
            _ => {
                for &offset in scale_offsets(panel_type) {
                    let scale = match weights {
                        Weights::Subnormal => subnormal(random),
                        _ => half::f16::from_f32(random.unit() * 0.01).to_le_bytes(),
                    };
                    block[offset..offset + 2].copy_from_slice(&scale);
                }
            }
        }
    }
    row
}

/// Makes bytes the scales and quants of an integer block.
fn integer_quants(panel_type: PanelType, block: &mut [u8]) {
    let levels = levels(panel_type);
    block[4..20].iter_mut().for_each(|scale| *scale = (*scale % 32) | 1);
    for quant in &mut block[20..] {
        *quant = levels[usize::from(*quant) % levels.len()] as u8;
    }
}

/// A subnormal half-precision float of either sign.
fn subnormal(random: &mut Random) -> [u8; 2] {
    ((random.next() >> 32) as u16 & 0x83ff).to_le_bytes()
}

/// What the activations of a test are.
#[derive(Clone, Copy, Debug)]
enum Inputs {
    Ordinary,
    /// All of one magnitude: quants are all 127 or -127.
    Extreme,
    /// Magnitudes from the smallest subnormal to 1e30, block by block.
    AnyScale,
    /// Here and there infinite or NaN.
    NotFinite,
}

const INPUTS: [Inputs; 4] = [Inputs::Ordinary, Inputs::Extreme, Inputs::AnyScale, Inputs::NotFinite];

fn input_row(k: usize, inputs: Inputs, random: &mut Random) -> Vec<f32> {
    let mut row: Vec<f32> = (0..k).map(|_| random.unit() * 3.0).collect();
    match inputs {
        Inputs::Ordinary => {}
        Inputs::Extreme => row.iter_mut().for_each(|x| *x = 2.5f32.copysign(*x)),
        Inputs::AnyScale => {
            for block in row.chunks_mut(32) {
                let scale = [0.0, -0.0, 1e-45, 1e-40, 3.7e-37, 1e-20, 1.0, 1e30][random.next() as usize % 8];
                block.iter_mut().for_each(|x| *x *= scale);
            }
        }
        Inputs::NotFinite => {
            let i = random.next() as usize % (2 * k);
            if let Some(x) = row.get_mut(i) {
                *x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.next() as usize % 3];
            }
        }
    }
    row
}

/// NaNs count as one value.
fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

/// A product to be computed in every way.
struct Case {
    panel_type: PanelType,
    k: usize,
    /// 1 to 16 rows as they are packed.
    weights: Vec<Vec<u8>>,
    /// Rows of activations.
    inputs: Vec<Vec<f32>>,
}

impl Case {
    fn new(
        panel_type: PanelType,
        k: usize,
        [outputs, rows]: [usize; 2],
        data: (Weights, Inputs),
        random: &mut Random,
    ) -> Case {
        let weights = (0..outputs)
            .map(|_| weight_row(panel_type, k, data.0, random))
            .collect();
        let inputs = (0..rows).map(|_| input_row(k, data.1, random)).collect();
        Case {
            panel_type,
            k,
            weights,
            inputs,
        }
    }

    fn panel(&self) -> Vec<u8> {
        let rows: Vec<&[u8]> = self.weights.iter().map(Vec::as_slice).collect();
        let mut panel = vec![0xaa; self.panel_type.panel_bytes(self.k)];
        self.panel_type.pack(&rows, self.k, &mut panel);
        panel
    }

    /// The 16 outputs of each row.
    fn multiply(&self, kernels: Kernels, activation_type: ActivationType) -> Vec<f32> {
        let panel = self.panel();
        let mut activations = Activations::new();
        activations.pack(kernels, activation_type, &self.inputs.concat(), self.k);
        let mut out = vec![f32::NAN; self.inputs.len() * PANEL_ROWS];
        for run in activations.runs() {
            let rows = run.row_range();
            let out = &mut out[rows.start * PANEL_ROWS..rows.end * PANEL_ROWS];
            kernels.matmul(self.panel_type, &panel, run, out);
        }
        out
    }

    fn oracle(&self, activation_type: ActivationType, row: usize, output: usize) -> f32 {
        let (weights, input) = (&self.weights[output], &self.inputs[row]);
        match activation_type {
            ActivationType::Q8 => oracle::dot_q8(self.panel_type, weights, input),
            ActivationType::F32 => oracle::dot_f32(self.panel_type, weights, input),
        }
    }

    /// Compares every instance with the oracle.
    fn check(&self) {
        for activation_type in activation_types(self.panel_type) {
            for instance in Instance::all() {
                let products = instance.run(|kernels| self.multiply(kernels, activation_type));
                for (row, products) in products.chunks_exact(PANEL_ROWS).enumerate() {
                    for (output, &product) in products.iter().enumerate() {
                        let what = format!(
                            "{} {activation_type:?} on {instance:?}: k {}, row {row} of {}, output {output} of {}",
                            self.panel_type,
                            self.k,
                            self.inputs.len(),
                            self.weights.len()
                        );
                        if output < self.weights.len() {
                            let expected = self.oracle(activation_type, row, output);
                            assert_eq!(bits(product), bits(expected), "{what}: {product} for {expected}");
                        } else if self.inputs[row].iter().all(|x| x.is_finite()) {
                            assert_eq!(product, 0.0, "{what}");
                        }
                    }
                }
            }
        }
    }
}

fn activation_types(panel_type: PanelType) -> impl Iterator<Item = ActivationType> {
    let q8 = panel_type.is_quantized().then_some(ActivationType::Q8);
    q8.into_iter().chain([ActivationType::F32])
}

/// Even and odd numbers of blocks, all types and both kinds of activations, for some number of rows.
pub(crate) fn compare_rows(stamps: &mut Stamps, rows: usize) {
    let mut random = Random::new(rows as u64);
    for panel_type in PanelType::ALL {
        let step = if panel_type.is_quantized() {
            panel_type.block_values()
        } else {
            11
        };
        for k in [2 * step, 3 * step] {
            Case::new(
                panel_type,
                k,
                [PANEL_ROWS.min(18 - rows), rows],
                (Weights::Ordinary, Inputs::Ordinary),
                &mut random,
            )
            .check();
        }
        stamps.stamp("matmul", panel_type);
    }
}

#[test]
fn all_instruction_sets_equal_the_oracle_for_any_length() {
    let mut random = Random::new(2);
    for panel_type in PanelType::ALL {
        for blocks in 1..=9 {
            let k = panel_type.block_values() * blocks;
            Case::new(
                panel_type,
                k,
                [5, 3],
                (Weights::Ordinary, Inputs::Ordinary),
                &mut random,
            )
            .check();
        }
    }
}

/// Several stretches of a panel, the last a whole one or not; several groups of rows, and several runs of groups.
#[test]
fn all_instruction_sets_equal_the_oracle_for_many_rows() {
    let mut random = Random::new(9);
    for panel_type in PanelType::ALL {
        let last = if panel_type.is_quantized() {
            panel_type.block_values()
        } else {
            7
        };
        for (k, rows) in [(512, 9), (512 + last, 18), (768, 37), (256 + last, 70)] {
            let data = (Weights::Ordinary, Inputs::Ordinary);
            Case::new(panel_type, k, [16, rows], data, &mut random).check();
        }
    }
}

#[test]
fn all_instruction_sets_equal_the_oracle_at_the_extremes() {
    let mut random = Random::new(3);
    for panel_type in PanelType::ALL {
        for weights in WEIGHTS {
            for inputs in INPUTS {
                for _ in 0..4 {
                    // Float weights take any k: here one that 8-bit activations could not have.
                    let k = if panel_type.is_quantized() { 256 } else { 77 };
                    Case::new(panel_type, k, [16, 9], (weights, inputs), &mut random).check();
                }
            }
        }
    }
}

/// The longest exact sums: every quant and every activation at its limit, in a row as long as a real model's.
#[test]
fn integer_sums_do_not_overflow() {
    let mut random = Random::new(4);
    for panel_type in PanelType::ALL.into_iter().filter(|t| t.is_quantized()) {
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let mut case = Case::new(
                panel_type,
                8192,
                [2, 2],
                (Weights::Constant(byte), Inputs::Extreme),
                &mut random,
            );
            case.inputs = vec![vec![-1.0; 8192], vec![1.0; 8192]];
            case.check();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bytes_and_any_shape_equal_the_oracle(
        seed: u64,
        panel_type in prop::sample::select(&PanelType::ALL[..]),
        (weights, inputs) in (prop::sample::select(&WEIGHTS[..]), prop::sample::select(&INPUTS[..])),
        values in 1..700usize,
        outputs in 1..=16usize,
        rows in 1..=40usize,
    ) {
        let k = values.next_multiple_of(panel_type.block_values());
        Case::new(panel_type, k, [outputs, rows], (weights, inputs), &mut Random::new(seed)).check();
    }
}

/// A chain of n fused multiply-adds whose factors carry one rounding each is within (n + 2) 2^-24 of the sum of the
/// terms' magnitudes.
#[test]
fn the_oracle_is_near_f64() {
    let mut random = Random::new(5);
    for panel_type in PanelType::ALL {
        for _ in 0..20 {
            let k = 512;
            let case = Case::new(
                panel_type,
                k,
                [1, 1],
                (Weights::Ordinary, Inputs::Ordinary),
                &mut random,
            );
            let weights = oracle::decode_row(panel_type, &case.weights[0]);
            for activation_type in activation_types(panel_type) {
                let inputs: Vec<f64> = match activation_type {
                    ActivationType::F32 => case.inputs[0].iter().map(|&x| x.into()).collect(),
                    ActivationType::Q8 => dequantize(&case.inputs[0]),
                };
                let terms = weights.iter().zip(&inputs).map(|(&w, x)| f64::from(w) * x);
                let (exact, magnitude) = terms.fold((0.0, 0.0), |(sum, all), term| (sum + term, all + term.abs()));
                // The weights of `decode_row` are themselves rounded, which the integer path does not do: up to twice
                // for types with a minimum, relative to parts that may cancel, each at most 31 * 63 * 0.01.
                let rounding = 31.0 * 63.0 * 0.01 * inputs.iter().map(|x| x.abs()).sum::<f64>();
                let bound = ((k + 2) as f64 * magnitude + 3.0 * rounding) / f64::from(1 << 24);
                let error = (f64::from(case.oracle(activation_type, 0, 0)) - exact).abs();
                assert!(
                    error <= bound,
                    "{panel_type} {activation_type:?}: {error} above {bound}"
                );
            }
        }
    }
}

/// The activations that the 8-bit blocks stand for.
fn dequantize(x: &[f32]) -> Vec<f64> {
    let blocks = x.as_chunks::<32>().0.iter().map(oracle::quantize_block);
    blocks
        .flat_map(|block| block.quants.map(|q| f64::from(q) * f64::from(block.scale)))
        .collect()
}

#[test]
fn quantized_activations_are_within_half_a_step() {
    let mut random = Random::new(6);
    for inputs in [Inputs::Ordinary, Inputs::Extreme] {
        let x = input_row(320, inputs, &mut random);
        for (x, q) in x.as_chunks::<32>().0.iter().zip(dequantize(&x).chunks_exact(32)) {
            let largest = x.iter().fold(0.0f32, |a, b| a.max(b.abs()));
            for (&x, q) in x.iter().zip(q) {
                assert!((f64::from(x) - q).abs() <= f64::from(largest) / 127.0 * 0.500_001);
            }
        }
    }
}

/// All rows or some, whole records or not.
#[test]
fn what_a_panel_held_before_does_not_show() {
    let mut random = Random::new(8);
    for panel_type in PanelType::ALL {
        for (blocks, outputs) in [(1, 16), (3, 16), (16, 16), (16, 15)] {
            let k = panel_type.block_values() * blocks;
            let data = (Weights::Ordinary, Inputs::Ordinary);
            let case = Case::new(panel_type, k, [outputs, 1], data, &mut random);
            let rows: Vec<&[u8]> = case.weights.iter().map(Vec::as_slice).collect();
            let [zeros, ones] = [0, 0xff].map(|before| {
                let mut panel = vec![before; panel_type.panel_bytes(k)];
                panel_type.pack(&rows, k, &mut panel);
                panel
            });
            assert!(zeros == ones, "{panel_type}: {outputs} rows of {k}");
        }
    }
}

#[test]
fn panels_unpack_to_the_published_decoding() {
    let mut random = Random::new(7);
    for panel_type in PanelType::ALL {
        for weights in WEIGHTS {
            let k = 3 * panel_type.block_values();
            let case = Case::new(panel_type, k, [16, 1], (weights, Inputs::Ordinary), &mut random);
            let panel = case.panel();
            for (lane, row) in case.weights.iter().enumerate() {
                let mut unpacked = vec![0.0; k];
                panel_type.unpack_row(&panel, lane, &mut unpacked);
                let unpacked: Vec<u32> = unpacked.into_iter().map(bits).collect();
                let published: Vec<u32> = oracle::decode_row(panel_type, row).into_iter().map(bits).collect();
                assert_eq!(unpacked, published, "{panel_type} {weights:?} row {lane}");
            }
        }
    }
}

/// The decoding that `goldcrest-format` is tested for against the published program.
#[test]
fn the_oracle_decodes_as_the_format_does() {
    let mut random = Random::new(8);
    let published = PanelType::ALL
        .into_iter()
        .filter(|panel_type| !panel_type.takes_integers());
    let types = published.map(|panel_type| {
        let named = |dtype: &DType| dtype.name() == panel_type.to_string();
        (panel_type, DType::ALL.into_iter().find(named).unwrap())
    });
    for (panel_type, dtype) in types {
        for weights in WEIGHTS {
            let row = weight_row(panel_type, 512, weights, &mut random);
            let mut decoded = vec![0.0; 512];
            blocks::decode(dtype, &row, &mut decoded).unwrap();
            let ours: Vec<u32> = oracle::decode_row(panel_type, &row).into_iter().map(bits).collect();
            let theirs: Vec<u32> = decoded.into_iter().map(bits).collect();
            assert_eq!(ours, theirs, "{panel_type} {weights:?}");
        }
    }
}

/// Integer blocks of the codebook types are what the format decodes.
#[test]
fn integer_blocks_stand_for_the_published_decoding() {
    let mut random = Random::new(9);
    let types = [
        (DType::IQ1_S, PanelType::IQ1),
        (DType::IQ1_M, PanelType::IQ1),
        (DType::IQ2_XXS, PanelType::IQ2),
        (DType::IQ2_XS, PanelType::IQ2),
        (DType::IQ2_S, PanelType::IQ2),
        (DType::IQ3_XXS, PanelType::IQ3_XXS),
        (DType::IQ3_S, PanelType::IQ3_S),
    ];
    for (dtype, panel_type) in types {
        for _ in 0..50 {
            let published: Vec<u8> = (0..dtype.block_bytes()).map(|_| (random.next() >> 32) as u8).collect();
            let mut decoded = vec![0.0; 256];
            blocks::decode(dtype, &published, &mut decoded).unwrap();
            let mut row = Vec::new();
            blocks::integers(dtype, &published, |block| row.extend(integer_block(block))).unwrap();
            assert!(
                row[20..]
                    .iter()
                    .all(|&quant| levels(panel_type).contains(&(quant as i8))),
                "{dtype}"
            );
            assert!(row[4..20].iter().all(|&scale| scale < 32), "{dtype}");
            let ours: Vec<u32> = oracle::decode_row(panel_type, &row).into_iter().map(bits).collect();
            let theirs: Vec<u32> = decoded.into_iter().map(bits).collect();
            assert_eq!(ours, theirs, "{dtype}");
        }
    }
}

/// As rows of codebook types are packed.
fn integer_block(block: &blocks::IntegerBlock) -> Vec<u8> {
    let signed = block.scales.iter().chain(&block.quants).map(|&x| x as u8);
    block.scale.to_le_bytes().into_iter().chain(signed).collect()
}

#[test]
#[should_panic(expected = "8-bit activations with F16 weights")]
fn eight_bit_activations_do_not_meet_float_weights() {
    let mut activations = Activations::new();
    activations.pack(Kernels::best(), ActivationType::Q8, &[1.0; 32], 32);
    let run = activations.runs().next().unwrap();
    Kernels::best().matmul(PanelType::F16, &[0; 1024], run, &mut [0.0; 16]);
}

#[test]
#[should_panic(expected = "bytes of a panel")]
fn a_panel_of_another_length_is_refused() {
    let mut activations = Activations::new();
    activations.pack(Kernels::best(), ActivationType::Q8, &[1.0; 64], 64);
    let run = activations.runs().next().unwrap();
    Kernels::best().matmul(PanelType::Q4_0, &[0; 575], run, &mut [0.0; 16]);
}
