//! Predicted speeds follow from what is given for the machine.

mod support;

use goldcrest_engine::{EngineOptions, Fit, Peaks, Predictor, Sequences, Speeds, StreamOptions, Streamed};
use goldcrest_format::Checkpoint;
use support::golden;

/// A machine that computes `times` as fast as another, and reads files at this rate.
fn speeds(times: f64, disk_bytes_per_s: Option<f64>) -> Speeds {
    Speeds {
        peaks: Peaks {
            read_bytes_per_s: times * 10e9,
            int8_ops_per_s: times * 1e12,
            f32_ops_per_s: times * 300e9,
        },
        disk_bytes_per_s,
    }
}

fn with_memory(checkpoint: &Checkpoint, bytes: usize, max_rows: usize) -> Predictor {
    let options = EngineOptions {
        max_rows,
        streaming: Some(StreamOptions {
            bytes,
            ..StreamOptions::default()
        }),
        ..EngineOptions::default()
    };
    Predictor::new(checkpoint, &options).unwrap()
}

#[track_caller]
fn assert_close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} for {expected}");
}

#[test]
fn what_is_in_memory_is_as_fast_as_memory_and_products() {
    let checkpoint = golden("llama3");
    let predictor = Predictor::new(&checkpoint, &EngineOptions::default()).unwrap();
    assert_eq!(predictor.experts(), None);
    let [one, two] = [1.0, 2.0].map(|times| speeds(times, None));
    let decode = predictor.decode_tokens_per_s(&one);
    assert_close(predictor.decode_tokens_per_s(&two), 2.0 * decode);
    let prefill = predictor.prefill_tokens_per_s(&one, 100);
    assert_close(predictor.prefill_tokens_per_s(&two, 100), 2.0 * prefill);
    assert!(prefill > decode, "rows of a call share its weights");
    // A token cannot be faster than its weights are read.
    let sequences = Sequences { count: 1, capacity: 65 };
    let fit = Fit::of(&checkpoint, &EngineOptions::default(), sequences).unwrap();
    assert!(decode < one.peaks.read_bytes_per_s / (fit.budget.weights as f64 / 2.0));
}

#[test]
fn experts_that_are_not_in_memory_are_read() {
    // The first of three layers is dense.
    const LAYERS: f64 = 2.0;
    const EXPERTS: usize = 16;
    let checkpoint = golden("qwen3_moe");
    let none = with_memory(&checkpoint, 0, 512);
    let share = none.experts().unwrap();
    assert_eq!((share.kept, share.count), (0, EXPERTS));
    let stored: u64 = checkpoint
        .tensors()
        .filter(|tensor| tensor.name.contains("experts"))
        .map(|tensor| tensor.bytes)
        .sum();
    assert_eq!(share.bytes, stored / EXPERTS as u64);
    // Nothing else takes time.
    let disk = speeds(1e9, Some(1e6));
    let expert_s = share.bytes as f64 / 1e6;
    assert_close(none.decode_tokens_per_s(&disk), 1.0 / (3.0 * LAYERS * expert_s));
    // Of many rows one at least chooses any expert: each is read once a call.
    assert_close(
        none.prefill_tokens_per_s(&disk, 512),
        512.0 / (EXPERTS as f64 * expert_s),
    );
    let four_calls = with_memory(&checkpoint, 0, 128);
    assert_close(
        four_calls.prefill_tokens_per_s(&disk, 512),
        128.0 / (EXPERTS as f64 * expert_s),
    );
    // Those that are kept are not read, and there cannot be more of them than there are.
    let half = with_memory(&checkpoint, stored as usize / 2, 512);
    let kept = half.experts().unwrap().kept;
    assert!((6..=8).contains(&kept), "{kept}");
    let missing = 1.0 - kept as f64 / EXPERTS as f64;
    assert_close(
        half.decode_tokens_per_s(&disk),
        1.0 / (3.0 * LAYERS * expert_s * missing),
    );
    assert_eq!(half.products_missing(), 0.0);
    let all = with_memory(&checkpoint, 1 << 30, 512);
    let resident = Predictor::new(&checkpoint, &EngineOptions::default()).unwrap();
    assert_eq!(all.experts().unwrap().kept, EXPERTS);
    assert_close(all.decode_tokens_per_s(&disk), resident.decode_tokens_per_s(&disk));
}

#[test]
fn weights_that_every_token_wants_are_read_for_every_call() {
    let checkpoint = golden("llama3");
    let streaming = |bytes| {
        let options = EngineOptions {
            streaming: Some(StreamOptions {
                streamed: Streamed::All,
                bytes,
                ..StreamOptions::default()
            }),
            ..EngineOptions::default()
        };
        Predictor::new(&checkpoint, &options).unwrap()
    };
    let disk = speeds(1e9, Some(1e6));
    let none = streaming(0);
    assert_eq!((none.experts(), none.products_missing()), (None, 1.0));
    let decode = none.decode_tokens_per_s(&disk);
    // The head is the table of the words.
    let products: u64 = checkpoint
        .tensors()
        .filter(|tensor| tensor.name.contains("proj") || tensor.name.contains("embed"))
        .map(|tensor| tensor.bytes)
        .sum();
    assert_close(decode, 1e6 / products as f64);
    // Once for all rows of a call.
    assert_close(none.prefill_tokens_per_s(&disk, 100), 100.0 * decode);
    let half = streaming(products as usize / 2);
    assert_close(half.decode_tokens_per_s(&disk), 2.0 * decode);
    assert_eq!(streaming(1 << 30).products_missing(), 0.0);
}
