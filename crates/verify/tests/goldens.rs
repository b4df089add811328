//! Every golden case against the reference implementation, in every way in which a sequence can be cut and computed.

#[path = "../../../tests/support/goldens.rs"]
mod goldens;

use goldcrest_engine::{EngineOptions, Isa};
use goldcrest_verify::{Options, Report, VerifyError, logits_hash_in_company, verify};
use goldens::{faithful_gguf_path, golden_cases, golden_folder};

fn run(case: &str, options: Options) -> Report {
    verify(&golden_folder(case), &options).unwrap_or_else(|error| panic!("{case}: {error}"))
}

#[test]
fn checkpoints_give_the_reference_outputs() {
    for case in golden_cases() {
        let report = run(&case, Options::default());
        println!(
            "{case}: {:.2e} of {:.2e}, {:.1} × noise",
            report.logits_max_abs, report.bound, report.ratio_to_noise_floor
        );
        assert!(report.passed, "{report:#?}");
    }
}

#[test]
fn gguf_files_give_the_reference_outputs() {
    let mut judged = 0;
    for case in golden_cases() {
        let Some(model) = faithful_gguf_path(&case) else {
            continue;
        };
        let report = run(
            &case,
            Options {
                model: Some(model),
                ..Options::default()
            },
        );
        assert!(report.passed, "{report:#?}");
        judged += 1;
    }
    assert!(judged >= 10, "only {judged} GGUF files judged");
}

#[test]
fn any_cut_and_any_machine_give_the_same_bits() {
    for case in golden_cases() {
        let whole = run(&case, Options::default()).logits_hash;
        let same = |options: Options| {
            let found = run(&case, options.clone()).logits_hash;
            assert_eq!(found, whole, "{case} with {options:?}");
        };
        for chunk in [1, 2, 3, 7, 16] {
            same(Options {
                chunk: Some(chunk),
                ..Options::default()
            });
        }
        for threads in 1..=3 {
            for isa in Isa::available() {
                let engine = EngineOptions {
                    threads: Some(threads),
                    isa: Some(isa),
                    ..EngineOptions::exact()
                };
                same(Options {
                    engine,
                    ..Options::default()
                });
            }
        }
        let engine = EngineOptions {
            max_rows: 5,
            ..EngineOptions::exact()
        };
        same(Options {
            engine,
            ..Options::default()
        });
    }
}

#[test]
fn strangers_in_a_batch_change_no_bit() {
    for case in golden_cases() {
        let alone = run(&case, Options::default());
        // Where the declared length decides rotations, `verify` declares the prompt's, and this the whole.
        if case == "llama_dynamic_ntk" {
            continue;
        }
        for chunk in [None, Some(1), Some(7)] {
            let options = Options {
                chunk,
                ..Options::default()
            };
            let hash = logits_hash_in_company(&golden_folder(&case), &options);
            let hash = hash.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(hash, alone.logits_hash, "{case} in chunks of {chunk:?}");
        }
    }
}

#[test]
fn every_setting_that_matters_is_judged() {
    let mut perturbed = 0;
    for case in golden_cases() {
        let file = std::fs::read(golden_folder(&case).join("case.json")).unwrap();
        let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
        for (key, moved) in file["sensitivity"]["config"].as_object().unwrap() {
            let options = Options {
                perturb: Some(key.clone()),
                ..Options::default()
            };
            // A key that moves nothing in the reference must move nothing here; any other is found out, or refused at open.
            match (moved.as_f64(), verify(&golden_folder(&case), &options)) {
                (Some(0.0), Ok(report)) => assert!(report.passed, "{case} with {key} changed: {report:#?}"),
                (_, Ok(report)) => assert!(!report.passed, "{case} with {key} changed: {report:#?}"),
                (Some(0.0), Err(error)) => panic!("{case} with {key} changed: {error}"),
                (_, Err(VerifyError::Open(_))) => {}
                (_, Err(error)) => panic!("{case} with {key} changed: {error}"),
            }
            perturbed += 1;
        }
    }
    assert!(perturbed >= 50, "only {perturbed} settings perturbed");
}
