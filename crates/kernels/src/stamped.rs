//! Every operation and type, on all that runs kernels here, over 1 to 17 rows: the bits of the oracle. What is compared is stamped, and
//! stamps are missing for an operation or a type that is new in the source.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};

use crate::exp_f64;
use crate::scalar::attention::Query;
use crate::vector::counted::count;
use crate::{
    Activation, ActivationType, Activations, CausalConv, Columns, ColumnsMut, Decay, GatedActivation, IndexQuery, Isa,
    Kernels, KvElement, KvLayout, LinearStep, MathFunction, Normalise, PANEL_ROWS, QueryRow, RouteRule, Router,
    SEGMENT_POSITIONS, ScaledRows, ScanStep, ScoreRule, Scoring, SeenSlots, Visible, Xielu, attention_state_len,
    clear_attention_states, matmul, quantize, scalar, visible_slots,
};

/// What runs kernels: the instruction sets of this machine, and 16 lanes of plain Rust.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instance {
    Of(Isa),
    Counted,
}

impl Instance {
    pub(crate) fn all() -> impl Iterator<Item = Instance> {
        Isa::available().map(Instance::Of).chain([Instance::Counted])
    }

    pub(crate) fn run<T>(self, work: impl FnOnce(Kernels) -> T) -> T {
        match self {
            Instance::Of(isa) => work(Kernels::new(isa).unwrap()),
            Instance::Counted => {
                let mut result = None;
                count(|| result = Some(work(Kernels::new(Isa::Scalar).unwrap())));
                result.unwrap()
            }
        }
    }
}

/// Methods of [`Kernels`] that compute no numbers of a model.
const NO_OPERATIONS: [&str; 4] = ["isa", "multiply_bytes", "multiply_floats", "read_through"];

/// Operations of many kinds, and the enums of these.
const KINDS: [(&str, &str); 7] = [
    ("activate", "Activation"),
    ("activate_gated", "GatedActivation"),
    ("apply", "MathFunction"),
    ("attend_segment", "KvElement"),
    ("index_scores", "KvElement"),
    ("matmul", "PanelType"),
    ("route", "Scoring"),
];

/// Operations and kinds that were compared.
#[derive(Default)]
pub(crate) struct Stamps(BTreeSet<(String, String)>);

impl Stamps {
    pub(crate) fn stamp(&mut self, operation: &str, kind: impl Debug) {
        let kind = format!("{kind:?}");
        let name = kind.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
        self.0.insert((operation.to_owned(), name.to_owned()));
    }

    /// Compares what an operation gives on every instance with what it should.
    fn compare(&mut self, operation: &str, kind: impl Debug, expected: &[f32], run: impl Fn(Kernels) -> Vec<f32>) {
        for instance in Instance::all() {
            let found = instance.run(&run);
            assert_eq!(bits(&found), bits(expected), "{operation} {kind:?} on {instance:?}");
        }
        self.stamp(operation, kind);
    }

    /// As [`Self::compare`], for an operation without kinds that changes `x`.
    fn compare_in_place(&mut self, operation: &str, x: &[f32], expected: &[f32], run: impl Fn(Kernels, &mut [f32])) {
        self.compare(operation, (), expected, |kernels| changed(x, |x| run(kernels, x)));
    }
}

fn changed(x: &[f32], change: impl FnOnce(&mut [f32])) -> Vec<f32> {
    let mut x = x.to_vec();
    change(&mut x);
    x
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Numbers in (-4, 4), a linear congruential generator.
struct Numbers(u64);

impl Numbers {
    fn take(&mut self, len: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self
                .0
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1 << 21) as f32 - 4.0
        };
        (0..len).map(|_| next()).collect()
    }
}

#[test]
fn every_operation_has_the_bits_of_the_oracle_for_1_to_17_rows() {
    let mut stamps = Stamps::default();
    for rows in 1..=17 {
        for row_len in [33, 64] {
            let mut numbers = Numbers((rows * 100 + row_len) as u64);
            elementwise(&mut stamps, [rows, row_len], &mut numbers);
            activations(&mut stamps, [rows, row_len], &mut numbers);
            norms_and_rotations(&mut stamps, [rows, row_len], &mut numbers);
            attention(&mut stamps, [rows, row_len], &mut numbers);
            convolution(&mut stamps, [rows, row_len], &mut numbers);
            recurrences(&mut stamps, [rows, row_len], &mut numbers);
            routers(&mut stamps, [rows, row_len], &mut numbers);
        }
        packing(rows, &mut Numbers(rows as u64));
        matmul::tests::compare_rows(&mut stamps, rows);
    }
    let operations = operations();
    let differences: Vec<_> = operations.symmetric_difference(&stamps.0).collect();
    assert!(
        differences.is_empty(),
        "compared, or in the source, but not both: {differences:?}"
    );
}

fn elementwise(stamps: &mut Stamps, [rows, row_len]: [usize; 2], numbers: &mut Numbers) {
    let (x, y, vector) = (
        numbers.take(rows * row_len),
        numbers.take(rows * row_len),
        numbers.take(row_len),
    );
    let zip = |join: fn(f32, f32) -> f32| x.iter().zip(&y).map(|(x, y)| join(*x, *y)).collect::<Vec<_>>();
    let zip_vector = |join: fn(f32, f32) -> f32| {
        let pairs = x.iter().zip(vector.iter().cycle());
        pairs.map(|(x, y)| join(*x, *y)).collect::<Vec<_>>()
    };
    let map = |map: fn(f32) -> f32| x.iter().map(|x| map(*x)).collect::<Vec<_>>();
    stamps.compare_in_place("add", &x, &zip(|x, y| x + y), |kernels, x| kernels.add(x, &y));
    stamps.compare_in_place("mul", &x, &zip(|x, y| x * y), |kernels, x| kernels.mul(x, &y));
    stamps.compare_in_place("add_scaled", &x, &zip(|x, y| y.mul_add(1.3, x)), |kernels, x| {
        kernels.add_scaled(x, 1.3, &y);
    });
    scaled_rows(stamps, rows, numbers);
    stamps.compare_in_place("add_bias", &x, &zip_vector(|x, y| x + y), |kernels, x| {
        kernels.add_bias(x, &vector);
    });
    stamps.compare_in_place("mul_vector", &x, &zip_vector(|x, y| x * y), |kernels, x| {
        kernels.mul_vector(x, row_len, &vector);
    });
    stamps.compare_in_place("scale", &x, &map(|x| x * 1.3), |kernels, x| kernels.scale(x, 1.3));
    stamps.compare_in_place(
        "softcap",
        &x,
        &map(|x| 2.0 * scalar::math::tanh(x / 2.0)),
        |kernels, x| {
            kernels.softcap(x, 2.0);
        },
    );
    let group_len = row_len / if row_len == 33 { 3 } else { 4 };
    let factors = &y[..x.len() / group_len];
    let groups = x.chunks(group_len).zip(factors);
    let expected: Vec<f32> = groups
        .flat_map(|(x, factor)| x.iter().map(move |x| x * factor))
        .collect();
    stamps.compare_in_place("mul_groups", &x, &expected, |kernels, x| kernels.mul_groups(x, factors));
}

fn activations(stamps: &mut Stamps, [rows, row_len]: [usize; 2], numbers: &mut Numbers) {
    let (x, up) = (numbers.take(rows * row_len), numbers.take(rows * row_len));
    let xielu = Xielu {
        alpha_p: 0.8,
        alpha_n: 1.6,
        beta: 0.5,
        eps: -1e-6,
    };
    let plain = [
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
        Activation::Xielu(xielu),
    ];
    let limits = [
        GatedActivation::ClampedSwiGlu { alpha: 1.7, limit: 3.0 },
        GatedActivation::LimitedSilu { limit: 3.0 },
    ];
    for activation in plain {
        let expected: Vec<f32> = x.iter().map(|x| scalar::activation::activate(activation, *x)).collect();
        stamps.compare("activate", activation, &expected, |kernels| {
            changed(&x, |x| kernels.activate(activation, x))
        });
    }
    for activation in plain.map(GatedActivation::Plain).into_iter().chain(limits) {
        let join = |(gate, up): (&f32, &f32)| scalar::activation::activate_gated(activation, *gate, *up);
        let expected: Vec<f32> = x.iter().zip(&up).map(join).collect();
        stamps.compare("activate_gated", activation, &expected, |kernels| {
            changed(&x, |gate| kernels.activate_gated(activation, gate, &up))
        });
    }
    for function in MathFunction::ALL {
        let expected: Vec<f32> = x.iter().map(|x| function.of(*x)).collect();
        stamps.compare("apply", function, &expected, |kernels| {
            changed(&x, |x| kernels.apply(function, x))
        });
    }
}

fn norms_and_rotations(stamps: &mut Stamps, [rows, row_len]: [usize; 2], numbers: &mut Numbers) {
    use scalar::{norm, rope, rotation};
    let x = numbers.take(rows * row_len);
    let (weight, bias) = (numbers.take(row_len), numbers.take(row_len));
    let (cos, sin) = (numbers.take(row_len / 2), numbers.take(row_len / 2));
    let each_row = |change: &dyn Fn(&mut [f32])| changed(&x, |x| x.chunks_mut(row_len).for_each(change));
    let expected = each_row(&|row| norm::rms_norm(row, Some(&weight), 1e-6));
    stamps.compare_in_place("rms_norm", &x, &expected, |kernels, x| {
        kernels.rms_norm(x, row_len, Some(&weight), 1e-6);
    });
    let expected = each_row(&|row| norm::layer_norm(row, Some(&weight), Some(&bias), 1e-6));
    stamps.compare_in_place("layer_norm", &x, &expected, |kernels, x| {
        kernels.layer_norm(x, row_len, Some(&weight), Some(&bias), 1e-6);
    });
    let expected = each_row(&|row| norm::l2_norm(row, 1e-6));
    stamps.compare_in_place("l2_norm", &x, &expected, |kernels, x| kernels.l2_norm(x, row_len, 1e-6));
    let expected: Vec<f32> = x.chunks(row_len).map(|row| norm::dot(row, &weight)).collect();
    stamps.compare("dot", (), &expected, |kernels| {
        x.chunks(row_len).map(|row| kernels.dot(row, &weight)).collect()
    });
    let terms = |row: &[f32]| row.iter().map(|x| exp_f64((f64::from(*x) - 1.0) / 0.75)).sum::<f64>();
    let expected: Vec<f32> = x.chunks(row_len).flat_map(|row| halves(terms(row))).collect();
    stamps.compare("sum_exp", (), &expected, |kernels| {
        let sums = x.chunks(row_len).map(|row| kernels.sum_exp(row, 1.0, 0.75));
        sums.flat_map(halves).collect()
    });
    let expected = each_row(&|row| rope::rotate_halves(row, &cos, &sin));
    stamps.compare_in_place("rotate_halves", &x, &expected, |kernels, x| {
        kernels.rotate_halves(x, row_len, &cos, &sin);
    });
    let expected = each_row(&rotation::rotate_signed);
    stamps.compare_in_place("rotate_signed", &x, &expected, |kernels, x| {
        kernels.rotate_signed(x, row_len)
    });
    let expected = each_row(&rotation::unrotate_signed);
    stamps.compare_in_place("unrotate_signed", &x, &expected, |kernels, x| {
        kernels.unrotate_signed(x, row_len)
    });
}

/// An f64 as two numbers of half of its bits.
fn halves(x: f64) -> [f32; 2] {
    let bits = x.to_bits();
    [f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32)]
}

/// Positions of a cache: a page and a part of the next.
const POSITIONS: usize = SEGMENT_POSITIONS + 41;

/// A cache of one head, and its keys and values as they read back.
struct Cache {
    layout: KvLayout,
    pages: [Vec<u8>; 2],
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Cache {
    fn new(layout: KvLayout, numbers: &mut Numbers) -> Cache {
        let KvLayout { k_dim, v_dim, .. } = layout;
        let mut cache = Cache {
            layout,
            pages: [vec![0; layout.page_bytes()], vec![0; layout.page_bytes()]],
            keys: vec![0.0; POSITIONS * k_dim],
            values: vec![0.0; POSITIONS * v_dim],
        };
        let places = cache.keys.chunks_mut(k_dim).zip(cache.values.chunks_mut(v_dim));
        for (position, (k, v)) in places.enumerate() {
            let (page, slot) = (
                &mut cache.pages[position / SEGMENT_POSITIONS],
                position % SEGMENT_POSITIONS,
            );
            layout.write(page, slot, &numbers.take(k_dim), &numbers.take(v_dim));
            layout.read_k(page, slot, k);
            layout.read_v(page, slot, v);
        }
        cache
    }

    /// The states of query heads that have seen a segment.
    fn attend(&self, kernels: Kernels, q: &[f32], rule: &ScoreRule, segment: usize) -> Vec<f32> {
        let row = |q| QueryRow {
            q,
            seen: SeenSlots::Range(visible_slots(POSITIONS - 1, Visible::All, segment)),
            alibi: None,
        };
        let heads: Vec<QueryRow> = q.chunks(self.layout.k_dim).map(row).collect();
        let mut states = vec![0.0; heads.len() * attention_state_len(self.layout.v_dim)];
        clear_attention_states(&mut states, self.layout.v_dim);
        kernels.attend_segment(&self.layout, (&self.pages[segment], None), rule, &heads, &mut states);
        states
    }
}

/// Heads that attend to two segments, each with states of its own, and heads that score the keys of the first.
fn attention(stamps: &mut Stamps, [rows, k_dim]: [usize; 2], numbers: &mut Numbers) {
    let (q, weights) = (numbers.take(rows * k_dim), numbers.take(rows));
    let v_dim = k_dim - 1;
    let rule = ScoreRule {
        scale: 0.2,
        softcap: None,
    };
    for element in KvElement::ALL {
        let layout = KvLayout {
            k_dim,
            plain_k_dims: 0,
            v_dim,
            element,
        };
        let cache = Cache::new(layout, numbers);
        let query = |q| Query {
            q,
            position: POSITIONS - 1,
            visible: 0..POSITIONS,
            chosen: None,
            slope: None,
        };
        let read_back = (&cache.keys[..], &cache.values[..], v_dim);
        let outputs = q
            .chunks(k_dim)
            .map(|q| scalar::attention::attend(&query(q), read_back, &rule, Some(0.5)));
        let expected: Vec<f32> = outputs.flatten().collect();
        stamps.compare("attend_segment", element, &expected, |kernels| {
            let [mut states, next] = [0, 1].map(|segment| cache.attend(kernels, &q, &rule, segment));
            kernels.merge_attention(&mut states, &next, v_dim);
            let mut out = vec![f32::NAN; rows * v_dim];
            for (state, out) in states.chunks(attention_state_len(v_dim)).zip(out.chunks_mut(v_dim)) {
                kernels.finish_attention(state, Some(0.5), out);
            }
            out
        });
        stamps.stamp("merge_attention", ());
        stamps.stamp("finish_attention", ());
        let query = IndexQuery {
            q: &q,
            weights: &weights,
        };
        let expected = scalar::attention::index_scores(&q, &weights, &cache.keys[..SEGMENT_POSITIONS * k_dim]);
        stamps.compare("index_scores", element, &expected, |kernels| {
            let mut scores = vec![f32::NAN; SEGMENT_POSITIONS];
            kernels.index_scores(&layout, &cache.pages[0], query, 0..SEGMENT_POSITIONS, &mut scores);
            scores
        });
    }
}

/// Rows of one sequence, and the tail that they leave behind.
fn convolution(stamps: &mut Stamps, [rows, channels]: [usize; 2], numbers: &mut Numbers) {
    const TAPS: usize = 4;
    let (x, tail) = (numbers.take(rows * channels), numbers.take((TAPS - 1) * channels));
    let (weight, bias) = (numbers.take(TAPS * channels), numbers.take(channels));
    let (mut tail_after, mut out) = (tail.clone(), x.clone());
    for row in out.chunks_mut(channels) {
        scalar::recurrent::conv_step(&mut tail_after, &weight, Some(&bias), row);
    }
    stamps.compare("causal_conv", (), &[out, tail_after].concat(), |kernels| {
        let (mut tail, mut out) = (tail.clone(), x.clone());
        let conv = CausalConv {
            weight: Columns::new(&weight, channels),
            bias: Some(&bias),
        };
        let mut tail_columns = ColumnsMut::new(&mut tail, channels);
        kernels.causal_conv(&conv, &mut tail_columns, &mut ColumnsMut::new(&mut out, channels));
        [out, tail].concat()
    });
}

/// Changes the state by a row of this index, and gives its output.
type Step<'a> = &'a dyn Fn(&mut [f32], usize, &mut [f32]);

/// Rows of one sequence, one after the other, and the state that they leave behind.
fn recurrences(stamps: &mut Stamps, [rows, channels]: [usize; 2], numbers: &mut Numbers) {
    use scalar::recurrent;
    const STATE_DIM: usize = 5;
    let x = numbers.take(rows * channels);
    let row = |row: usize| &x[row * channels..][..channels];
    let before = numbers.take(STATE_DIM * channels);
    let (key, query) = (numbers.take(STATE_DIM), numbers.take(STATE_DIM));
    let (direct, rates) = (numbers.take(channels), numbers.take(STATE_DIM * channels));
    let rates: Vec<f32> = rates.iter().map(|x| -x.abs()).collect();
    let dt: Vec<f32> = numbers.take(channels).iter().map(|x| x.abs() + 0.1).collect();
    let all_rows = |step: Step| {
        let (mut state, mut out) = (before.clone(), vec![f32::NAN; rows * channels]);
        for (row, out) in out.chunks_mut(channels).enumerate() {
            step(&mut state, row, out);
        }
        [out, state].concat()
    };
    let linear = |index: usize| LinearStep {
        query: &query,
        key: &key,
        value: row(index),
        decay: Decay::One(0.7),
        beta: Some(0.03),
    };
    let expected = all_rows(&|state, row, out| recurrent::linear_state_step(state, &linear(row), out));
    stamps.compare("linear_state_step", (), &expected, |kernels| {
        all_rows(&|state, row, out| {
            kernels.linear_state_step(&mut ColumnsMut::new(state, channels), &linear(row), out);
        })
    });
    let scan = |index: usize| ScanStep {
        x: row(index),
        dt: &dt,
        a: Columns::new(&rates, channels),
        b: &key,
        c: &query,
        d: &direct,
    };
    let expected = all_rows(&|state, row, out| recurrent::selective_scan_step(state, &scan(row), out));
    stamps.compare("selective_scan_step", (), &expected, |kernels| {
        all_rows(&|state, row, out| {
            kernels.selective_scan_step(&mut ColumnsMut::new(state, channels), &scan(row), out);
        })
    });
}

/// Experts of rows of logits. Plain Rust is the oracle: only the scores are made in lanes.
fn routers(stamps: &mut Stamps, [rows, experts]: [usize; 2], numbers: &mut Numbers) {
    const CHOSEN: usize = 3;
    let logits = numbers.take(rows * experts);
    let scorings = [
        Scoring::Softmax,
        Scoring::SoftmaxOfChosen,
        Scoring::Sigmoid,
        Scoring::SigmoidOfChosen,
        Scoring::SqrtSoftplus,
        Scoring::SparseMixer { jitter: 0.1 },
    ];
    for scoring in scorings {
        let rule = RouteRule {
            scoring,
            groups: None,
            normalise: Normalise::None,
            scale: 1.0,
        };
        let router = Router {
            rule: &rule,
            correction: None,
            per_expert: None,
        };
        let chosen = if matches!(scoring, Scoring::SparseMixer { .. }) {
            2
        } else {
            CHOSEN
        };
        let route = |kernels: Kernels| {
            let (mut ids, mut weights, mut scratch) = (vec![0; chosen], vec![0.0; chosen], Vec::new());
            let mut all = Vec::new();
            for row in logits.chunks(experts) {
                kernels
                    .route(&router, row, &mut ids, &mut weights, &mut scratch)
                    .unwrap();
                all.extend(ids.iter().map(|id| *id as f32).chain(weights.iter().copied()));
                if chosen == CHOSEN {
                    kernels
                        .weigh_chosen(&router, row, &mut ids, &mut weights, &mut scratch)
                        .unwrap();
                    all.extend_from_slice(&weights);
                }
            }
            all
        };
        let expected = Instance::Of(Isa::Scalar).run(route);
        stamps.compare("route", scoring, &expected, route);
    }
    stamps.stamp("weigh_chosen", ());
}

/// Rows as words for products: 8-bit blocks of the oracle, whose scales and sums lie beside them.
fn scaled_rows(stamps: &mut Stamps, rows: usize, numbers: &mut Numbers) {
    /// Places of some width, the last row first, factors rising.
    struct Places<'a>(&'a mut [f32], usize);
    fn factor(i: usize) -> f32 {
        i as f32 + 0.3
    }
    impl ScaledRows for Places<'_> {
        fn row(&mut self, i: usize) -> (&mut [f32], f32) {
            (self.0.chunks_exact_mut(self.1).nth_back(i).unwrap(), factor(i))
        }
    }
    let y = numbers.take(rows * PANEL_ROWS);
    let y = y.as_chunks().0;
    for width in [PANEL_ROWS, 11] {
        let x = numbers.take(rows * width);
        let mut expected = x.clone();
        for (i, (x, y)) in expected.chunks_exact_mut(width).rev().zip(y).enumerate() {
            x.iter_mut().zip(y).for_each(|(x, y)| *x = y.mul_add(factor(i), *x));
        }
        stamps.compare_in_place("add_scaled_rows", &x, &expected, |kernels, x| {
            kernels.add_scaled_rows(&mut Places(x, width), y);
        });
    }
}

fn packing(rows: usize, numbers: &mut Numbers) {
    const K: usize = 64;
    let x = numbers.take(rows * K);
    for instance in Instance::all() {
        let mut packed = Activations::new();
        instance.run(|kernels| packed.pack(kernels, ActivationType::Q8, &x, K));
        for group in packed.runs().flat_map(quantize::GroupRun::groups) {
            let word = |block: usize, i: usize, row: usize| {
                group.words[(block * quantize::BLOCK_WORDS + i) * quantize::interleaved(group.rows) + row]
            };
            for (row, block) in (0..group.rows).flat_map(|row| [(row, 0), (row, 1)]) {
                let x = &x[(group.first_row + row) * K + block * 32..][..32];
                let expected = scalar::matmul::quantize_block(x.try_into().unwrap());
                let sum: i32 = expected.quants.iter().map(|q| i32::from(*q)).sum();
                let quants = expected.quants.as_chunks::<4>().0.iter();
                let mut words: Vec<u32> = quants.map(|four| u32::from_le_bytes(four.map(|q| q as u8))).collect();
                let first: i32 = expected.quants[..16].iter().map(|q| i32::from(*q)).sum();
                words.extend([expected.scale.to_bits(), (expected.scale * sum as f32).to_bits()]);
                words.extend([-sum as u32, -first as u32]);
                let found: Vec<u32> = (0..quantize::BLOCK_WORDS).map(|i| word(block, i, row)).collect();
                assert_eq!(found, words, "block {block} of row {row} of {rows} on {instance:?}");
            }
        }
    }
}

/// The operations and kinds in the source.
fn operations() -> BTreeSet<(String, String)> {
    let sources = sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")));
    let methods = sources.iter().flat_map(|source| items(source, "impl Kernels {"));
    let methods = methods.filter_map(|line| line.strip_prefix("pub fn "));
    let methods = methods.filter(|line| line.contains("(self") || line.ends_with('('));
    let names = methods.map(|line| line.split(['(', '<']).next().unwrap());
    let operations = names.filter(|name| !NO_OPERATIONS.contains(name));
    operations
        .flat_map(|operation| {
            let kinds = KINDS.iter().find(|(name, _)| *name == operation);
            let variants = kinds.map_or_else(|| vec![String::new()], |(_, kind)| variants(&sources, kind));
            variants.into_iter().map(move |variant| (operation.to_owned(), variant))
        })
        .collect()
}

/// The variants of an enum.
fn variants(sources: &[String], name: &str) -> Vec<String> {
    let head = format!("pub enum {name} {{");
    let lines = sources.iter().flat_map(|source| items(source, &head));
    let named = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    named
        .map(|line| line.split([',', '(', ' ']).next().unwrap().to_owned())
        .collect()
}

/// The lines right inside of what begins with the line `head`, without their indentation.
fn items<'a>(source: &'a str, head: &'a str) -> impl Iterator<Item = &'a str> {
    let mut inside = false;
    source.lines().filter_map(move |line| {
        inside = (inside || line == head) && line != "}";
        line.strip_prefix("    ")
            .filter(|line| inside && !line.starts_with(' '))
    })
}

fn sources(folder: &Path) -> Vec<String> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let texts = paths.iter().flat_map(|path| match path.is_dir() {
        true => sources(path),
        false => vec![fs::read_to_string(path).unwrap()],
    });
    texts.collect()
}
