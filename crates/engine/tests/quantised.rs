//! Weights of every stored type: a small model with its matrices in each of them.

mod support;

use std::sync::LazyLock;

use goldcrest_cpu::Cpu;
use goldcrest_engine::{Activations, EngineOptions, Isa, KvElement, Want};
use goldcrest_format::{Checkpoint, DType};
use support::gguf::{decode, reencode};
use support::{Random, bits, divergence, engine, feed, golden_gguf, open, session};

/// The types of GGUF files, with the bits that a weight takes in memory: where they are more than in the file, its values are held in
/// a form that the kernels read fast.
const TYPES: [(DType, f64); 23] = [
    (DType::F32, 32.0),
    (DType::F16, 16.0),
    (DType::BF16, 16.0),
    (DType::Q8_0, 8.5),
    (DType::Q4_0, 4.5),
    (DType::Q4_1, 5.0),
    (DType::Q5_0, 5.5),
    (DType::Q5_1, 6.0),
    (DType::Q2_K, 2.625),
    (DType::Q3_K, 3.625),
    (DType::Q4_K, 4.5),
    (DType::Q5_K, 5.5),
    (DType::Q6_K, 6.625),
    (DType::IQ1_S, 3.625),
    (DType::IQ1_M, 3.625),
    (DType::IQ2_XXS, 3.625),
    (DType::IQ2_S, 3.625),
    (DType::IQ3_XXS, 4.625),
    (DType::IQ4_NL, 4.5),
    (DType::IQ4_XS, 4.375),
    (DType::TQ2_0, 2.125),
    (DType::MXFP4, 4.25),
    (DType::NVFP4, 4.5),
];

/// Types that share the panels of one above: only their rows are packed in another way.
const SIBLINGS: [(DType, f64); 3] = [(DType::IQ2_XS, 3.625), (DType::IQ3_S, 4.625), (DType::TQ1_0, 2.125)];

/// Tokens of a run: into a third group of 16 rows, with a rest.
const TOKENS: usize = 37;

/// Quantised activations move the distribution of the next token by at most this on average, in nats: the bound for real models.
const MEAN_DIVERGENCE: f64 = 2e-3;

/// The case made for quantisation, whose matrices have rows of 256, in every type.
static MODELS: LazyLock<Vec<(DType, Checkpoint)>> =
    LazyLock::new(|| TYPES.into_iter().map(|(dtype, _)| (dtype, model(dtype))).collect());

fn model(dtype: DType) -> Checkpoint {
    let source = golden_gguf("llama_quant256").unwrap();
    open(&reencode(&source, &format!("quantised-{dtype}.gguf"), |_| dtype))
}

fn options(activations: Activations, kv: KvElement) -> EngineOptions {
    EngineOptions {
        activations: Some(activations),
        kv,
        threads: Some(1),
        ..EngineOptions::default()
    }
}

/// Logits of all rows, fed in chunks, and the state that they leave.
fn run(checkpoint: &Checkpoint, options: EngineOptions, chunk: usize) -> (Vec<f32>, Vec<u8>) {
    let engine = engine(checkpoint, options);
    let ids = Random(11).ids(TOKENS, engine.spec().vocabulary);
    let mut session = session(&engine, TOKENS);
    let logits = ids
        .chunks(chunk)
        .flat_map(|ids| feed(&mut session, ids, Want::All))
        .collect();
    (logits, session.visible_state())
}

/// The product with f32 activations is that of the decoded weights: the file's type makes no difference but its rounding.
#[test]
fn f32_activations_see_the_decoded_weights() {
    let exact = options(Activations::F32, KvElement::F32);
    let siblings = SIBLINGS.map(|(dtype, _)| (dtype, model(dtype)));
    for (dtype, checkpoint) in MODELS.iter().chain(&siblings) {
        let (logits, state) = run(checkpoint, exact, TOKENS);
        assert!(logits.iter().all(|x| x.is_finite()), "{dtype}");
        let decoded = open(&decode(checkpoint, &format!("quantised-{dtype}-decoded.gguf")));
        let scalar = EngineOptions {
            isa: Some(Isa::Scalar),
            ..exact
        };
        let (expected, expected_state) = run(&decoded, scalar, TOKENS);
        assert!(bits(&logits) == bits(&expected), "logits of {dtype}");
        assert!(state == expected_state, "state of {dtype}");
    }
}

#[test]
fn no_way_of_computing_changes_a_bit_of_any_type() {
    for (dtype, checkpoint) in MODELS.iter() {
        for activations in [Activations::Q8, Activations::F32] {
            let default = options(activations, KvElement::F16);
            let scalar = EngineOptions {
                isa: Some(Isa::Scalar),
                ..default
            };
            let (logits, state) = run(checkpoint, scalar, TOKENS);
            let same = |options: EngineOptions, chunk: usize| {
                let (found, found_state) = run(checkpoint, options, chunk);
                let how = format!("{dtype}, {activations:?}, chunks of {chunk}, {options:?}");
                assert!(bits(&found) == bits(&logits), "logits of {how}");
                assert!(found_state == state, "state of {how}");
            };
            // The scalar code is slow where it emulates fused multiply-adds: it gets one run more.
            same(
                EngineOptions {
                    threads: Some(3),
                    ..scalar
                },
                7,
            );
            for isa in Isa::available().filter(|isa| *isa != Isa::Scalar) {
                let fast = EngineOptions {
                    isa: Some(isa),
                    ..default
                };
                for threads in 1..=3 {
                    same(
                        EngineOptions {
                            threads: Some(threads),
                            ..fast
                        },
                        TOKENS,
                    );
                }
                for chunk in [1, 2, 7, 16] {
                    same(fast, chunk);
                }
            }
            same(
                EngineOptions {
                    threads: Some(2),
                    max_rows: 5,
                    ..default
                },
                TOKENS,
            );
        }
    }
}

#[test]
fn quantised_activations_stay_close_and_matter_only_to_quantised_weights() {
    for (dtype, checkpoint) in MODELS.iter() {
        let (exact, _) = run(checkpoint, options(Activations::F32, KvElement::F32), TOKENS);
        let (rounded, _) = run(checkpoint, options(Activations::Q8, KvElement::F32), TOKENS);
        if !Cpu::integer_types(*dtype) {
            assert!(bits(&exact) == bits(&rounded), "{dtype} has no integer product");
            continue;
        }
        assert!(
            bits(&exact) != bits(&rounded),
            "activations of {dtype} are not quantised"
        );
        let vocabulary = exact.len() / TOKENS;
        let rows = exact.chunks_exact(vocabulary).zip(rounded.chunks_exact(vocabulary));
        let mean = rows.map(|(exact, rounded)| divergence(exact, rounded)).sum::<f64>() / TOKENS as f64;
        println!("{dtype}: mean KL of quantised activations {mean:.1e}");
        assert!(mean <= MEAN_DIVERGENCE, "{dtype}: mean KL {mean}");
    }
}

/// The case made for quantisation, with its weights as they are.
fn exact_model() -> &'static Checkpoint {
    &MODELS[0].1
}

/// Bounds on the mean KL to f32 keys and values, in nats: twice what was measured.
const KV_DIVERGENCE: [(KvElement, f64); 3] = [(KvElement::F16, 5e-7), (KvElement::Q8_0, 4e-4), (KvElement::Q4, 5e-2)];

#[test]
fn stored_keys_and_values_stay_close() {
    let (exact, _) = run(exact_model(), options(Activations::F32, KvElement::F32), TOKENS);
    let vocabulary = exact.len() / TOKENS;
    for (kv, bound) in KV_DIVERGENCE {
        let (stored, _) = run(exact_model(), options(Activations::F32, kv), TOKENS);
        let rows = exact.chunks_exact(vocabulary).zip(stored.chunks_exact(vocabulary));
        let mean = rows.map(|(exact, stored)| divergence(exact, stored)).sum::<f64>() / TOKENS as f64;
        println!("{kv}: mean KL {mean:.1e}");
        assert!(mean > 0.0 && mean <= bound, "{kv}: mean KL {mean}");
    }
}

#[test]
fn no_way_of_computing_changes_a_bit_of_quantised_keys_and_values() {
    for kv in [KvElement::Q8_0, KvElement::Q4] {
        let scalar = EngineOptions {
            isa: Some(Isa::Scalar),
            ..options(Activations::F32, kv)
        };
        let (logits, state) = run(exact_model(), scalar, TOKENS);
        for (isa, threads) in Isa::available().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            for chunk in [1, 7, TOKENS] {
                let same = EngineOptions {
                    isa: Some(isa),
                    threads: Some(threads),
                    ..scalar
                };
                let (found, found_state) = run(exact_model(), same, chunk);
                assert!(
                    bits(&found) == bits(&logits),
                    "logits with {kv}, {isa}, {threads} threads, chunks of {chunk}"
                );
                assert!(
                    found_state == state,
                    "state with {kv}, {isa}, {threads} threads, chunks of {chunk}"
                );
            }
        }
    }
}

#[test]
fn weights_keep_their_size_in_memory() {
    for (dtype, bits) in TYPES.into_iter().chain(SIBLINGS) {
        let checkpoint = model(dtype);
        let tensors = checkpoint.tensors().map(|info| match info.shape.len() {
            2 => info.elements() as f64 * bits / 8.0,
            _ => info.bytes as f64,
        });
        let expected = tensors.sum::<f64>();
        let found = engine(&checkpoint, options(Activations::Q8, KvElement::F16)).weight_bytes() as f64;
        // The records of a panel have whole lines.
        assert!(
            (expected..=expected * 1.02).contains(&found),
            "{dtype}: {found} bytes for {expected}"
        );
    }
}
