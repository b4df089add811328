//! What is planned of memory, against what is taken.

mod support;

use goldcrest_engine::{EngineOptions, Fit, FitError, KvElement, Sequences, Want};
use goldcrest_format::Checkpoint;
use support::goldens::golden_cases;
use support::{bits, engine, feed, golden, golden_gguf, ids, json, session};

fn all_options() -> [EngineOptions; 2] {
    let quantised = EngineOptions {
        kv: KvElement::Q8_0,
        ..EngineOptions::default()
    };
    [EngineOptions::exact(), quantised].map(|options| EngineOptions {
        threads: Some(2),
        ..options
    })
}

/// Every golden in both formats, with its prompt.
fn models() -> impl Iterator<Item = (String, Checkpoint, Vec<u32>)> {
    golden_cases().into_iter().flat_map(|case| {
        let prompt = ids(&json(&format!("goldens/{case}/case.json"))["prompt_ids"]);
        let models = [Some(golden(&case)), golden_gguf(&case)];
        let models = models.into_iter().flatten();
        models.map(move |checkpoint| (case.clone(), checkpoint, prompt.clone()))
    })
}

/// Fed whole and then token by token, as calls of few rows share attention in another way.
#[test]
fn no_more_is_taken_than_planned() {
    for (case, checkpoint, prompt) in models() {
        for options in all_options() {
            let capacity = 2 * prompt.len();
            let options = EngineOptions {
                max_rows: prompt.len(),
                ..options
            };
            let fit = Fit::of(&checkpoint, &options, Sequences { count: 1, capacity }).unwrap();
            let engine = engine(&checkpoint, options);
            let mut session = session(&engine, capacity);
            feed(&mut session, &prompt, Want::All);
            for id in &prompt {
                feed(&mut session, &[*id], Want::Last);
            }
            assert_eq!(fit.budget.weights, engine.weight_bytes() as u64, "{case}: weights");
            let taken = [session.bytes(), engine.scratch_bytes()].map(|bytes| bytes as u64);
            let planned = [fit.budget.state, fit.budget.scratch];
            assert!(taken[0] <= planned[0], "{case}: states {taken:?} of {planned:?}");
            assert!(taken[1] <= planned[1], "{case}: calls {taken:?} of {planned:?}");
        }
    }
}

/// The plan of calls is no guess: without attention's and experts' worst cases it is what calls take.
#[test]
fn what_is_planned_for_calls_is_taken() {
    let (checkpoint, prompt) = (golden("llama3"), vec![1; 64]);
    let options = EngineOptions {
        max_rows: prompt.len(),
        threads: Some(1),
        ..EngineOptions::exact()
    };
    let sequences = Sequences { count: 1, capacity: 64 };
    let fit = Fit::of(&checkpoint, &options, sequences).unwrap();
    let engine = engine(&checkpoint, options);
    feed(&mut session(&engine, 64), &prompt, Want::Last);
    let taken = engine.scratch_bytes() as u64;
    assert!(
        fit.budget.scratch <= taken + taken / 4,
        "{taken} of {} planned",
        fit.budget.scratch
    );
}

/// Under every limit either the bits of the model without one, within the limit, or an error that names a limit which is enough. Tiny
/// experts take less than what they would be read into, so what changes here is the number of rows of a call.
#[test]
fn a_limit_is_kept_or_refused_with_one_that_is_enough() {
    let sequences = Sequences {
        count: 1,
        capacity: 300,
    };
    for case in ["mixtral", "qwen3_moe", "llama3"] {
        let checkpoint = golden(case);
        let prompt = ids(&json(&format!("goldens/{case}/case.json"))["prompt_ids"]);
        let options = EngineOptions::exact();
        let logits = |options: EngineOptions| {
            let engine = engine(&checkpoint, options);
            bits(&feed(&mut session(&engine, 300), &prompt, Want::All))
        };
        let all = Fit::of(&checkpoint, &options, sequences).unwrap();
        let expected = logits(options);
        let resident = Fit::within(all.sum(), &checkpoint, &options, sequences).unwrap();
        assert_eq!(resident.budget, all.budget, "{case}");
        let Err(FitError::TooLittle { limit: 1, least }) = Fit::within(1, &checkpoint, &options, sequences) else {
            panic!("{case} in one byte");
        };
        assert!(least.sum() < all.sum(), "{case}: fewer rows need less");
        let too_little = Fit::within(least.sum() - 1, &checkpoint, &options, sequences);
        let message = too_little.unwrap_err().to_string();
        assert!(message.contains("MiB program and vocabulary"), "{message}");
        for limit in [least.sum(), (least.sum() + all.sum()) / 2, all.sum() - 1] {
            let fit = Fit::within(limit, &checkpoint, &options, sequences).unwrap();
            assert!(fit.sum() <= limit, "{case}: {} of {limit}", fit.sum());
            assert_eq!(logits(fit.options), expected, "{case} in {limit} bytes");
        }
    }
}

/// Some thousand positions, where pages are shared, copied, let go of behind a window and taken apart among threads.
#[test]
fn long_and_forked_sequences_take_no_more_than_planned() {
    const POSITIONS: usize = 1500;
    let (mut windows, mut recurrents) = (0, 0);
    for case in ["llama3", "gemma3", "gpt_oss", "qwen3_next", "deepseek_v3", "mamba2"] {
        let checkpoint = golden(case);
        for options in all_options() {
            let options = EngineOptions {
                max_rows: 96,
                ..options
            };
            let sequences = Sequences {
                count: 3,
                capacity: POSITIONS + 8,
            };
            let fit = Fit::of(&checkpoint, &options, sequences).unwrap();
            let engine = engine(&checkpoint, options);
            windows += engine.plan().kvs.iter().filter(|kv| kv.window.is_some()).count();
            recurrents += engine.plan().recurrents.len();
            let ids: Vec<u32> = (0..POSITIONS as u32)
                .map(|i| i * 7 % engine.plan().vocabulary as u32)
                .collect();
            let mut first = session(&engine, sequences.capacity);
            let (start, rest) = ids.split_at(POSITIONS / 2 + 3);
            feed(&mut first, start, Want::Last);
            let mut second = first.fork();
            feed(&mut second, rest, Want::Last);
            let mut third = second.fork();
            for session in [&mut first, &mut second, &mut third] {
                (0..8).for_each(|id| drop(feed(session, &[id], Want::Last)));
            }
            feed(&mut first, &rest[..rest.len() - 8], Want::Last);
            let taken: usize = [&first, &second, &third].map(|session| session.bytes()).iter().sum();
            assert!(
                taken as u64 <= fit.budget.state,
                "{case}: states {taken} of {}",
                fit.budget.state
            );
            let taken = engine.scratch_bytes() as u64;
            assert!(
                taken <= fit.budget.scratch,
                "{case}: calls {taken} of {}",
                fit.budget.scratch
            );
        }
    }
    assert!(windows > 0 && recurrents > 0);
}
