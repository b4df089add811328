//! What the tests of engines share: models, ids, bits of logits, recorded hashes.
#![allow(dead_code)] // each test binary uses its own part

pub mod faults;
pub mod gguf;
#[path = "../../../../tests/support/goldens.rs"]
pub mod goldens;
pub mod hashes;
pub mod random;
pub mod script;
pub mod soak;
pub mod streaming;
pub mod watchdog;

use std::path::Path;

use goldcrest_engine::{Chunk, Engine, EngineOptions, Session, Want};
use goldcrest_format::Checkpoint;
use goldens::{golden_folder, golden_gguf_path, tests_folder};
pub use random::Random;
use serde_json::Value;

/// A JSON file below [`tests_folder`].
pub fn json(path: &str) -> Value {
    let path = tests_folder().join(path);
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The integers of a JSON array.
pub fn ids(array: &Value) -> Vec<u32> {
    let number = |value: &Value| {
        value
            .as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .expect("a token id")
    };
    array.as_array().expect("an array of ids").iter().map(number).collect()
}

/// A golden case's checkpoint.
pub fn golden(case: &str) -> Checkpoint {
    open(&golden_folder(case))
}

/// A golden case as another program converted it.
pub fn golden_gguf(case: &str) -> Option<Checkpoint> {
    golden_gguf_path(case).map(|path| open(&path))
}

pub fn open(path: &Path) -> Checkpoint {
    Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"))
}

pub fn engine(checkpoint: &Checkpoint, options: EngineOptions) -> Engine {
    Engine::open(checkpoint, options).unwrap_or_else(|error| panic!("{error}"))
}

pub fn session(engine: &Engine, capacity: usize) -> Session {
    engine.session(capacity).unwrap_or_else(|error| panic!("{error}"))
}

/// Feeds `ids` as the next chunk and returns the wanted rows' logits.
pub fn feed(session: &mut Session, ids: &[u32], want: Want) -> Vec<f32> {
    let mut logits = vec![f32::NAN; want.count(ids.len()) * session.engine().spec().vocabulary];
    let chunk = Chunk {
        start: session.position(),
        ids,
        want,
    };
    session
        .feed(chunk, &mut logits)
        .unwrap_or_else(|error| panic!("{error}"));
    logits
}

/// Bits, so that equality is exact and NaN equals itself.
pub fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The index of the largest number, the first of equal ones.
pub fn argmax(row: &[f32]) -> usize {
    (0..row.len())
        .reduce(|best, i| if row[i] > row[best] { i } else { best })
        .expect("a row of logits")
}

/// KL(p ‖ q) of the distributions of two rows of logits, in nats.
pub fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_max, q_max) = (f64::from(p[argmax(p)]), f64::from(q[argmax(q)]));
    let (mut p_sum, mut q_sum, mut weighted) = (0.0, 0.0, 0.0);
    for (&p, &q) in p.iter().zip(q) {
        let (p, q) = (f64::from(p) - p_max, f64::from(q) - q_max);
        let weight = libm::exp(p);
        p_sum += weight;
        q_sum += libm::exp(q);
        weighted += weight * (p - q);
    }
    weighted / p_sum - libm::log(p_sum) + libm::log(q_sum)
}

/// The natural log-probability of `id`.
pub fn log_prob(row: &[f32], id: u32) -> f64 {
    let max = f64::from(row[argmax(row)]);
    let sum: f64 = row.iter().map(|x| libm::exp(f64::from(*x) - max)).sum();
    f64::from(row[id as usize]) - max - libm::log(sum)
}
