//! Published models against what other software computes for them (`tests/reference/README.md`), and their logits bit for bit as
//! recorded (`tests/hashes/README.md`). The files are fetched by `cargo xtask fixtures`; a model whose file is absent is skipped.

mod support;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use goldcrest_engine::{Engine, EngineOptions, Session, Want};
use goldcrest_format::Checkpoint;
use serde_json::Value;
use support::hashes::{Hashes, LogitHash};
use support::{argmax, divergence, engine, feed, ids, json, log_prob, open, session};

const FILE: &str = "real_models.json";
const SMOLLM2: &str = "smollm2-135m-instruct-q4_1";
const GEMMA3: &str = "gemma-3-270m-q4_k_m";
const QWEN2: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m";

/// Tokens a chunk: the logits of 64 rows of a large vocabulary are 67 MB.
const CHUNK: usize = 64;

/// Where the reference's best two logits are closer than this, either may be the best.
const TIE: f64 = 1e-3;
const LEAST_AGREEMENT: f64 = 0.97;
const MOST_MEAN_DIVERGENCE: f64 = 2e-3;

/// One model at a time: each takes a gigabyte and all cores.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fixture(model: &str) -> Option<Checkpoint> {
    let named = std::env::var_os("GOLDCREST_FIXTURES").filter(|value| !value.is_empty());
    let target = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fixtures");
    let path = named.map_or_else(target, PathBuf::from).join(format!("{model}.gguf"));
    if !path.exists() {
        println!("SKIPPED: {} is absent; cargo xtask fixtures fetches it", path.display());
        return None;
    }
    Some(open(&path))
}

/// A model with exact and with default numerics, fed the same tokens side by side.
struct Pair {
    exact: Session,
    default: Session,
}

/// The logits of one chunk.
struct Rows {
    /// Position of the first row.
    start: usize,
    /// `[rows, vocabulary]` each.
    exact: Vec<f32>,
    default: Vec<f32>,
}

impl Pair {
    fn open(checkpoint: &Checkpoint, capacity: usize) -> Pair {
        let open = |options| session(&engine(checkpoint, options), capacity);
        Pair {
            exact: open(EngineOptions::exact()),
            default: open(EngineOptions::default()),
        }
    }

    fn engine(&self) -> &Engine {
        self.exact.engine()
    }

    /// Feeds all of `ids`, shows each chunk's rows to `look` and returns the hashes of all logits, exact and default.
    fn feed(&mut self, ids: &[u32], mut look: impl FnMut(&Rows) + Send) -> [LogitHash; 2] {
        let mut hashes = [LogitHash::new(); 2];
        for ids in ids.chunks(CHUNK) {
            let start = self.exact.position();
            let exact = feed(&mut self.exact, ids, Want::All);
            let rows = Rows {
                start,
                exact,
                default: feed(&mut self.default, ids, Want::All),
            };
            let [exact_hash, default_hash] = &mut hashes;
            // A hash goes byte by byte: beside the looking it costs no time of its own.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    exact_hash.add(&rows.exact);
                    default_hash.add(&rows.default);
                });
                look(&rows);
            });
        }
        hashes
    }
}

/// `teacher_forced.json`.
struct Reference {
    ids: Vec<u32>,
    argmax: Vec<u32>,
    top2_gap: Vec<f64>,
    next_log_prob: Vec<f64>,
    sample_columns: Vec<u32>,
    /// `[rows][columns]`.
    samples: Vec<Vec<f64>>,
    float32_max_abs: f64,
    vocabulary: usize,
}

fn numbers(array: &Value) -> Vec<f64> {
    array
        .as_array()
        .expect("an array")
        .iter()
        .map(|value| value.as_f64().expect("a number"))
        .collect()
}

impl Reference {
    fn open(model: &str) -> Reference {
        let file = json(&format!("reference/{model}/teacher_forced.json"));
        Reference {
            ids: ids(&file["ids"]),
            argmax: ids(&file["argmax"]),
            top2_gap: numbers(&file["top2_gap"]),
            next_log_prob: numbers(&file["next_log_prob"]),
            sample_columns: ids(&file["sample_columns"]),
            samples: file["samples"].as_array().expect("rows").iter().map(numbers).collect(),
            float32_max_abs: file["float32_max_abs"].as_f64().expect("a bound"),
            vocabulary: file["vocabulary"].as_u64().expect("a size") as usize,
        }
    }

    /// The tokens that are fed: all but the last, which is only predicted.
    fn fed(&self) -> &[u32] {
        &self.ids[..self.argmax.len()]
    }
}

/// What the rows of a model add up to.
#[derive(Default)]
struct Figures {
    rows: usize,
    agreeing: usize,
    divergence: f64,
    /// Largest differences from the reference.
    sample_difference: f64,
    log_prob_difference: f64,
}

impl Figures {
    fn add(&mut self, reference: &Reference, position: usize, exact: &[f32], default: &[f32]) {
        let best = argmax(exact);
        assert!(
            best == reference.argmax[position] as usize || reference.top2_gap[position] < TIE,
            "row {position}: the best id is {best}, the reference's {} is ahead by {}",
            reference.argmax[position],
            reference.top2_gap[position]
        );
        for (&column, sample) in reference.sample_columns.iter().zip(&reference.samples[position]) {
            let difference = (f64::from(exact[column as usize]) - sample).abs();
            assert!(
                difference <= reference.float32_max_abs,
                "row {position}, column {column}: off by {difference}"
            );
            self.sample_difference = self.sample_difference.max(difference);
        }
        let next = log_prob(exact, reference.ids[position + 1]);
        let difference = (next - reference.next_log_prob[position]).abs();
        // A log-probability is a logit less the logarithm of a sum, each of which may be off by the bound.
        assert!(
            difference <= 2.0 * reference.float32_max_abs,
            "row {position}: log-probability off by {difference}"
        );
        self.log_prob_difference = self.log_prob_difference.max(difference);
        self.rows += 1;
        self.agreeing += usize::from(argmax(default) == best);
        self.divergence += divergence(exact, default);
    }
}

/// Feeds the reference's tokens and compares everything that is known about them.
fn judge(model: &str) {
    let _turn = turn();
    let Some(checkpoint) = fixture(model) else { return };
    let reference = Reference::open(model);
    let mut pair = Pair::open(&checkpoint, reference.ids.len());
    assert_eq!(pair.engine().spec().vocabulary, reference.vocabulary);
    let mut figures = Figures::default();
    let [exact, default] = pair.feed(reference.fed(), |rows| {
        let exact = rows.exact.chunks_exact(reference.vocabulary);
        let default = rows.default.chunks_exact(reference.vocabulary);
        for (row, (exact, default)) in exact.zip(default).enumerate() {
            figures.add(&reference, rows.start + row, exact, default);
        }
    });
    let agreement = figures.agreeing as f64 / figures.rows as f64;
    let divergence = figures.divergence / figures.rows as f64;
    println!(
        "{model}: {} rows; samples within {:.1e}, log-probabilities within {:.1e} (bound {:.1e}); default numerics: top-1 {:.2} %, \
         mean KL {divergence:.2e}; hashes {exact} {default}",
        figures.rows,
        figures.sample_difference,
        figures.log_prob_difference,
        reference.float32_max_abs,
        100.0 * agreement,
    );
    assert_eq!(figures.rows, reference.argmax.len());
    assert!(
        agreement >= LEAST_AGREEMENT,
        "default numerics agree with exact ones in {agreement} of the rows"
    );
    assert!(
        divergence <= MOST_MEAN_DIVERGENCE,
        "default numerics are {divergence} nats from exact ones"
    );
    let recorded = Hashes::open(FILE);
    assert_eq!(exact.to_string(), recorded.get(model, "exact"), "exact numerics");
    assert_eq!(default.to_string(), recorded.get(model, "default"), "default numerics");
}

#[test]
fn smollm2_gives_the_reference_outputs() {
    judge(SMOLLM2);
}

#[test]
fn gemma3_gives_the_reference_outputs() {
    judge(GEMMA3);
}

#[test]
fn qwen2_gives_the_reference_outputs() {
    judge(QWEN2);
}

#[test]
fn smollm2_answers_as_the_reference_does() {
    let _turn = turn();
    let Some(checkpoint) = fixture(SMOLLM2) else { return };
    let file = json(&format!("reference/{SMOLLM2}/greedy.json"));
    let (prompt, expected) = (ids(&file["prompt_ids"]), ids(&file["greedy_ids"]));
    let engine = engine(&checkpoint, EngineOptions::exact());
    let mut session = session(&engine, prompt.len() + expected.len());
    let mut logits = feed(&mut session, &prompt, Want::Last);
    let mut greedy = Vec::new();
    while greedy.len() < expected.len() {
        let best = argmax(&logits) as u32;
        greedy.push(best);
        logits = feed(&mut session, &[best], Want::Last);
    }
    assert_eq!(greedy, expected);
}

#[test]
#[ignore = "writes tests/hashes/real_models.json"]
fn record_hashes() {
    let _turn = turn();
    let mut hashes = Hashes::open(FILE);
    for model in [SMOLLM2, GEMMA3, QWEN2] {
        let Some(checkpoint) = fixture(model) else { continue };
        let reference = Reference::open(model);
        let mut pair = Pair::open(&checkpoint, reference.ids.len());
        let [exact, default] = pair.feed(reference.fed(), |_| {});
        hashes.set(model, "exact", exact);
        hashes.set(model, "default", default);
    }
    hashes.save();
}
