//! A short soak: `cargo xtask soak` is the long one.

mod support;

use std::path::PathBuf;

use support::goldens::{golden_folder, golden_gguf_path};
use support::soak::{Soak, slope};
use support::watchdog::watched;

const ROUNDS: usize = 30;

fn soak(model: PathBuf) {
    watched(move |watchdog| {
        let mut soak = Soak::new(&model, 5).unwrap();
        for _ in 0..ROUNDS {
            soak.round();
            watchdog.pat();
        }
        let tally = &soak.tally;
        let counts = [
            tally.rows,
            tally.cancelled,
            tally.interrupted,
            tally.failed,
            tally.forks,
            tally.batches,
            tally.hits as usize,
            tally.misses as usize,
        ];
        assert!(
            tally.rounds == ROUNDS && counts.iter().all(|count| *count > 0),
            "{tally:?}"
        );
    });
}

#[test]
fn bits_stay_whatever_happens_to_sessions_of_safetensors() {
    soak(golden_folder("mixtral"));
}

#[test]
fn bits_stay_whatever_happens_to_sessions_of_gguf() {
    soak(golden_gguf_path("qwen3_moe_quant256").unwrap());
}

/// Their memories go back to few positions only.
#[test]
fn bits_stay_whatever_happens_to_sessions_with_recurrent_memories() {
    soak(golden_folder("lfm2_moe"));
}

#[test]
fn the_slope_is_that_of_the_line_that_fits() {
    assert_eq!(slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]), 2.0);
    assert_eq!(slope(&[(1.0, 1.0), (2.0, 0.0), (3.0, 0.0), (4.0, 1.0)]), 0.0);
}
