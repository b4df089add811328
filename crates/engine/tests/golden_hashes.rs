//! The logits of every golden case, bit for bit as recorded. `tests/hashes/README.md` says how to record them anew.

mod support;

use goldcrest_engine::{EngineOptions, Want};
use goldcrest_format::Checkpoint;
use support::goldens::golden_cases;
use support::hashes::{Hashes, LogitHash};
use support::{engine, feed, golden, golden_gguf, ids, json, session};

const FILE: &str = "goldens.json";

fn numerics() -> [(&'static str, EngineOptions); 2] {
    [("exact", EngineOptions::exact()), ("default", EngineOptions::default())]
}

/// All models, named by their case.
fn models() -> impl Iterator<Item = (String, String, Checkpoint)> {
    golden_cases().into_iter().flat_map(|case| {
        let checkpoint = Some((case.clone(), case.clone(), golden(&case)));
        let gguf = golden_gguf(&case).map(|gguf| (case.clone(), format!("{case}.gguf"), gguf));
        checkpoint.into_iter().chain(gguf)
    })
}

/// The prompt's logits, then those of each greedy step, the first of which is the prompt's last row again: what `verify` hashes.
fn hash(case: &str, checkpoint: &Checkpoint, options: EngineOptions) -> LogitHash {
    let file = json(&format!("goldens/{case}/case.json"));
    let (prompt, greedy) = (ids(&file["prompt_ids"]), ids(&file["greedy_ids"]));
    let engine = engine(checkpoint, options);
    let mut session = session(&engine, prompt.len() + greedy.len());
    let mut hash = LogitHash::new();
    let logits = feed(&mut session, &prompt, Want::All);
    hash.add(&logits);
    hash.add(&logits[logits.len() - engine.spec().vocabulary..]);
    hash.add(&feed(&mut session, &greedy[..greedy.len() - 1], Want::All));
    hash
}

fn check(recorded: &Hashes, case: &str, model: &str, checkpoint: &Checkpoint) {
    for (name, options) in numerics() {
        let hash = hash(case, checkpoint, options);
        assert_eq!(hash.to_string(), recorded.get(model, name), "{model}, {name} numerics");
    }
}

/// What an emulated machine without fused multiply-add gets through: dense, experts, a state space.
#[test]
fn logits_of_three_kinds_are_those_recorded() {
    let recorded = Hashes::open(FILE);
    for case in ["llama3", "mixtral", "mamba2"] {
        check(&recorded, case, case, &golden(case));
    }
}

#[test]
fn logits_are_those_recorded() {
    let recorded = Hashes::open(FILE);
    let mut seen = Vec::new();
    for (case, model, checkpoint) in models() {
        check(&recorded, &case, &model, &checkpoint);
        seen.push(model);
    }
    seen.sort();
    assert_eq!(
        recorded.models().collect::<Vec<_>>(),
        seen,
        "models recorded, models found"
    );
}

#[test]
#[ignore = "writes tests/hashes/goldens.json"]
fn record_hashes() {
    let mut hashes = Hashes::open(FILE);
    for (case, model, checkpoint) in models() {
        for (name, options) in numerics() {
            hashes.set(&model, name, hash(&case, &checkpoint, options));
        }
    }
    hashes.save();
}
