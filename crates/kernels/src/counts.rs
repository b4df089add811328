//! How many vector operations each kernel is on registers like those of AVX-512, whose instructions no tool counts on every machine.
//! `tests/counts/README.md` says what becomes of the numbers.

use std::collections::BTreeMap;

use crate::{
    Activation, ActivationType, Activations, Alibi, CausalConv, Columns, ColumnsMut, Decay, GatedActivation,
    IndexQuery, Isa, Kernels, KvElement, KvLayout, LinearStep, PANEL_ROWS, PanelType, QueryRow, SEGMENT_POSITIONS,
    ScanStep, ScoreRule, SeenSlots, attention_state_len, count_operations,
};

/// One row, as in decode, and a full group of a prefill.
const ROWS: [usize; 2] = [1, 8];

/// Rows of products beside those: a run of groups, which share what is unpacked.
const RUN_ROWS: usize = 32;

/// Values of a row.
const WIDTH: usize = 256;

/// Name and operations of every kernel. Data decide none of them, so all numbers are zeros.
fn counts() -> Vec<(String, u64)> {
    let mut counts = Vec::new();
    for rows in ROWS {
        counts.extend(products(rows));
        counts.extend(norms_and_rotations(rows));
        counts.extend(elementwise(rows));
        counts.extend(attention(rows));
        counts.extend(recurrences(rows));
    }
    counts.extend(products(RUN_ROWS));
    counts
}

fn named(name: &str, rows: usize, work: impl FnOnce(Kernels)) -> (String, u64) {
    // Not the best, some of whose choices the processor decides.
    let kernels = Kernels::new(Isa::Scalar).unwrap();
    (format!("{name}, rows: {rows}"), count_operations(|| work(kernels)))
}

/// Packing, and a panel of each type times what was packed.
fn products(rows: usize) -> Vec<(String, u64)> {
    let x = vec![0.0; rows * WIDTH];
    let mut activations = Activations::new();
    let mut counts = vec![named("pack q8", rows, |kernels| {
        activations.pack(kernels, ActivationType::Q8, &x, WIDTH);
    })];
    for (name, activation_type) in [("q8", ActivationType::Q8), ("f32", ActivationType::F32)] {
        activations.pack(Kernels::best(), activation_type, &x, WIDTH);
        let types = PanelType::ALL.into_iter();
        for panel_type in types.filter(|panel| panel.is_quantized() || activation_type == ActivationType::F32) {
            let panel = vec![0; panel_type.panel_bytes(WIDTH)];
            let mut out = vec![0.0; rows * PANEL_ROWS];
            counts.push(named(&format!("matmul {panel_type} {name}"), rows, |kernels| {
                for run in activations.runs() {
                    kernels.matmul(panel_type, &panel, run, &mut out);
                }
            }));
        }
    }
    counts
}

fn norms_and_rotations(rows: usize) -> Vec<(String, u64)> {
    let (mut x, weight) = (vec![0.0; rows * WIDTH], [0.0; WIDTH]);
    let (cos, sin) = ([1.0; WIDTH / 2], [0.0; WIDTH / 2]);
    vec![
        named("rms norm", rows, |kernels| {
            kernels.rms_norm(&mut x, WIDTH, Some(&weight), 1e-6)
        }),
        named("layer norm", rows, |kernels| {
            kernels.layer_norm(&mut x, WIDTH, Some(&weight), Some(&weight), 1e-6);
        }),
        named("l2 norm", rows, |kernels| kernels.l2_norm(&mut x, WIDTH, 1e-6)),
        named("rope", rows, |kernels| kernels.rotate_halves(&mut x, WIDTH, &cos, &sin)),
        named("signed rotation", rows, |kernels| kernels.rotate_signed(&mut x, WIDTH)),
        named("signed rotation back", rows, |kernels| {
            kernels.unrotate_signed(&mut x, WIDTH)
        }),
    ]
}

fn elementwise(rows: usize) -> Vec<(String, u64)> {
    let (mut x, y, vector) = (vec![0.0; rows * WIDTH], vec![0.0; rows * WIDTH], [0.0; WIDTH]);
    let mut counts = vec![
        named("add", rows, |kernels| kernels.add(&mut x, &y)),
        named("add bias", rows, |kernels| kernels.add_bias(&mut x, &vector)),
        named("add scaled", rows, |kernels| kernels.add_scaled(&mut x, 0.5, &y)),
        named("mul", rows, |kernels| kernels.mul(&mut x, &y)),
        named("mul vector", rows, |kernels| kernels.mul_vector(&mut x, WIDTH, &vector)),
        named("scale", rows, |kernels| kernels.scale(&mut x, 0.5)),
        named("softcap", rows, |kernels| kernels.softcap(&mut x, 30.0)),
    ];
    let plain = [
        ("silu", Activation::Silu),
        ("gelu tanh", Activation::GeluTanh),
        ("gelu erf", Activation::GeluErf),
    ];
    for (name, activation) in plain {
        counts.push(named(name, rows, |kernels| kernels.activate(activation, &mut x)));
        counts.push(named(&format!("gated {name}"), rows, |kernels| {
            kernels.activate_gated(GatedActivation::Plain(activation), &mut x, &y);
        }));
    }
    counts
}

/// Query heads that share a full page of keys and values.
fn attention(rows: usize) -> Vec<(String, u64)> {
    const HEAD_DIM: usize = 64;
    let query = [0.0; HEAD_DIM];
    let mut counts = Vec::new();
    for element in KvElement::ALL {
        let layout = KvLayout {
            k_dim: HEAD_DIM,
            plain_k_dims: 0,
            v_dim: HEAD_DIM,
            element,
        };
        let page = vec![0; layout.page_bytes()];
        let rule = ScoreRule {
            scale: 0.125,
            softcap: None,
        };
        let heads = vec![
            QueryRow {
                q: &query,
                seen: SeenSlots::Range(0..SEGMENT_POSITIONS),
                alibi: None::<Alibi>,
            };
            rows
        ];
        // Those of rows that have seen keys before.
        let mut states = vec![1.0; rows * attention_state_len(HEAD_DIM)];
        counts.push(named(&format!("attend {element:?}"), rows, |kernels| {
            kernels.attend_segment(&layout, (&page, None), &rule, &heads, &mut states);
        }));
        let mut scores = [0.0; SEGMENT_POSITIONS];
        let index = IndexQuery {
            q: &vec![0.0; rows * HEAD_DIM],
            weights: &vec![0.0; rows],
        };
        counts.push(named(&format!("index {element:?}"), rows, |kernels| {
            kernels.index_scores(&layout, &page, index, 0..SEGMENT_POSITIONS, &mut scores);
        }));
    }
    let next = vec![1.0; rows * attention_state_len(HEAD_DIM)];
    let mut states = next.clone();
    counts.push(named("merge attention", rows, |kernels| {
        kernels.merge_attention(&mut states, &next, HEAD_DIM)
    }));
    counts.push(named("finish attention", rows, |kernels| {
        let mut out = [0.0; HEAD_DIM];
        for state in states.chunks_exact(attention_state_len(HEAD_DIM)) {
            kernels.finish_attention(state, Some(0.0), &mut out);
        }
    }));
    counts
}

fn recurrences(rows: usize) -> Vec<(String, u64)> {
    const STATE_DIM: usize = 16;
    const TAPS: usize = 4;
    let (row, weights) = ([0.0; WIDTH], [0.0; STATE_DIM * WIDTH]);
    let (mut state, mut out) = ([0.0; STATE_DIM * WIDTH], [0.0; WIDTH]);
    let conv = CausalConv {
        weight: Columns::new(&weights[..TAPS * WIDTH], WIDTH),
        bias: None,
    };
    let mut x = vec![0.0; rows * WIDTH];
    let linear = LinearStep {
        query: &row[..STATE_DIM],
        key: &row[..STATE_DIM],
        value: &row,
        decay: Decay::One(0.5),
        beta: Some(0.5),
    };
    let scan = ScanStep {
        x: &row,
        dt: &row,
        a: Columns::new(&weights, WIDTH),
        b: &row[..STATE_DIM],
        c: &row[..STATE_DIM],
        d: &row,
    };
    vec![
        named("convolution", rows, |kernels| {
            let mut tail = ColumnsMut::new(&mut state[..(TAPS - 1) * WIDTH], WIDTH);
            kernels.causal_conv(&conv, &mut tail, &mut ColumnsMut::new(&mut x, WIDTH));
        }),
        named("linear attention", rows, |kernels| {
            let mut state = ColumnsMut::new(&mut state, WIDTH);
            (0..rows).for_each(|_| kernels.linear_state_step(&mut state, &linear, &mut out));
        }),
        named("selective scan", rows, |kernels| {
            let mut state = ColumnsMut::new(&mut state, WIDTH);
            (0..rows).for_each(|_| kernels.selective_scan_step(&mut state, &scan, &mut out));
        }),
    ]
}

/// Where the numbers are recorded, and by how much they may grow without a word.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/counts/avx512.tsv");
const MOST_GROWTH: f64 = 1.05;

#[test]
fn operations_are_those_recorded() {
    let text = std::fs::read_to_string(RECORDED).unwrap();
    let fields = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let mut recorded: BTreeMap<&str, u64> = fields
        .filter(|fields| fields.len() > 1)
        .map(|fields| (fields[0], fields[1].parse().unwrap()))
        .collect();
    let mut wrong = Vec::new();
    for (name, now) in counts() {
        match recorded.remove(&*name) {
            None => wrong.push(format!("{name}: {now} now, none recorded")),
            Some(before) if now as f64 > before as f64 * MOST_GROWTH => {
                let ratio = now as f64 / before as f64;
                wrong.push(format!("{name}: {before} recorded, {now} now, x {ratio:.4}"));
            }
            Some(_) => {}
        }
    }
    wrong.extend(
        recorded
            .keys()
            .map(|name| format!("{name}: recorded, but not counted any more")),
    );
    assert!(
        wrong.is_empty(),
        "operations of kernels; if they have to be: `cargo xtask count --record REASON`\n{}",
        wrong.join("\n")
    );
}

/// For `cargo xtask count --record`.
#[test]
#[ignore = "prints the numbers to record"]
fn print_operations() {
    for (name, operations) in counts() {
        println!("{name}\t{operations}");
    }
}
