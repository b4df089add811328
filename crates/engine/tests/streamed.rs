//! Weights that are read when they are wanted, those of experts or all: whatever memory they have, results are those of a model that is
//! loaded whole.

mod support;

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use goldcrest_engine::{
    Chunk, CpuError, Engine, EngineOptions, Eviction, FeedError, Interrupted, Op, OpOutput, OpenError, Probe,
    RouterCounting, Session, StreamOptions, Streamed, Want, Watch,
};
use goldcrest_format::Checkpoint;
use support::goldens::{golden_cases, golden_gguf_path};
use support::streaming::least_bytes;
use support::{bits, feed, golden, golden_gguf, ids, json, open, session};

/// The prompt of a case, and the ids after it.
fn tokens(case: &str) -> (Vec<u32>, Vec<u32>) {
    let file = json(&format!("goldens/{case}/case.json"));
    (ids(&file["prompt_ids"]), ids(&file["greedy_ids"]))
}

/// Every row's logits, bit for bit: of the prompt cut in two, and of the ids after it one by one.
fn run(engine: &Engine, tokens: &(Vec<u32>, Vec<u32>)) -> Vec<Vec<u32>> {
    run_in(&mut session(engine, tokens.0.len() + tokens.1.len()), tokens)
}

/// The same in a session.
fn run_in(session: &mut Session, (prompt, after): &(Vec<u32>, Vec<u32>)) -> Vec<Vec<u32>> {
    let (first, second) = prompt.split_at(prompt.len() / 2);
    let chunks = [first, second]
        .into_iter()
        .chain(after.chunks(1))
        .filter(|chunk| !chunk.is_empty());
    chunks.map(|chunk| bits(&feed(session, chunk, Want::All))).collect()
}

/// Experts that rows of a session chose, of all layers.
fn chosen_experts(session: &Session) -> usize {
    let mut counting = RouterCounting::new(session.engine());
    counting.add(session.counters().expect("it counts"));
    let layers = counting.counters();
    layers
        .iter()
        .flat_map(|of_layer| &of_layer.chosen)
        .filter(|rows| **rows > 0)
        .count()
}

fn streaming(bytes: usize) -> StreamOptions {
    StreamOptions {
        streamed: Streamed::Experts,
        bytes,
        eviction: Eviction::LeastFrequent,
        readers: 3,
    }
}

fn open_with(checkpoint: &Checkpoint, base: EngineOptions, experts: StreamOptions) -> Result<Engine, OpenError> {
    let options = EngineOptions {
        streaming: Some(experts),
        ..base
    };
    Engine::open(checkpoint, options)
}

/// All cases with experts, from both kinds of file.
fn models() -> impl Iterator<Item = (String, String, Checkpoint)> {
    golden_cases().into_iter().flat_map(|case| {
        let checkpoint = golden(&case);
        let has_experts = least_bytes(&checkpoint, Streamed::Experts).is_some();
        let gguf = golden_gguf(&case).filter(|_| has_experts);
        let gguf = gguf.map(|gguf| (case.clone(), format!("{case}.gguf"), gguf));
        let checkpoint = has_experts.then(|| (case.clone(), case.clone(), checkpoint));
        checkpoint.into_iter().chain(gguf)
    })
}

#[test]
fn bits_do_not_depend_on_the_memory_for_experts() {
    let mut seen = 0;
    for (case, model, checkpoint) in models() {
        let tokens = tokens(&case);
        let least = least_bytes(&checkpoint, Streamed::Experts).unwrap();
        for base in [EngineOptions::exact(), EngineOptions::default()] {
            let whole = Engine::open(&checkpoint, base).unwrap();
            assert!(whole.stream_counters().is_none());
            let expected = run(&whole, &tokens);
            let settings = [
                (1, Eviction::LeastFrequent, 1),
                (2, Eviction::LeastFrequent, 2),
                (3, Eviction::LeastRecent, 3),
                (5, Eviction::LeastFrequent, 2),
                (1 << 20, Eviction::LeastRecent, 2),
            ];
            for (experts, eviction, threads) in settings {
                let options = StreamOptions {
                    eviction,
                    ..streaming(experts * least)
                };
                let base = EngineOptions {
                    threads: Some(threads),
                    ..base
                };
                let engine = open_with(&checkpoint, base, options).unwrap();
                let mut session = session(&engine, tokens.0.len() + tokens.1.len());
                session.count();
                assert_eq!(
                    run_in(&mut session, &tokens),
                    expected,
                    "{model}: {experts} experts in memory, {threads} threads"
                );
                let counters = engine.stream_counters().unwrap();
                let all: usize = engine.plan().experts.iter().map(|bank| bank.count).sum();
                let chosen = chosen_experts(&session);
                assert!(
                    counters.misses as usize >= chosen && counters.bytes_read > 0,
                    "{model}: {counters:?}"
                );
                match experts {
                    1 => assert!(
                        counters.misses as usize > all,
                        "{model}: nothing had to leave, {counters:?}"
                    ),
                    2.. if experts > all => assert_eq!(counters.misses as usize, chosen, "{model}: read once"),
                    _ => {}
                }
            }
        }
        seen += 1;
    }
    assert!(seen >= 40, "{seen} models with experts");
}

/// All weights of products and tables are read when they are wanted, experts among them.
#[test]
fn bits_do_not_depend_on_the_memory_for_all_weights() {
    let mut seen = 0;
    for case in golden_cases() {
        let tokens = tokens(&case);
        let formats = [Some(golden(&case)), golden_gguf(&case)];
        for checkpoint in formats.into_iter().flatten() {
            let least = least_bytes(&checkpoint, Streamed::All).unwrap();
            for base in [EngineOptions::exact(), EngineOptions::default()] {
                let whole = Engine::open(&checkpoint, base).unwrap();
                let expected = run(&whole, &tokens);
                for (units, eviction, threads) in [
                    (1, Eviction::LeastFrequent, 1),
                    (2, Eviction::LeastRecent, 2),
                    (4, Eviction::LeastFrequent, 3),
                    (1 << 20, Eviction::LeastFrequent, 2),
                ] {
                    let options = StreamOptions {
                        streamed: Streamed::All,
                        eviction,
                        ..streaming(units * least)
                    };
                    let base = EngineOptions {
                        threads: Some(threads),
                        ..base
                    };
                    let engine = open_with(&checkpoint, base, options).unwrap();
                    assert!(engine.weight_bytes() < whole.weight_bytes(), "{case}");
                    assert_eq!(
                        run(&engine, &tokens),
                        expected,
                        "{case}: {units} in memory, {threads} threads"
                    );
                    assert!(engine.stream_counters().is_some_and(|counters| counters.bytes_read > 0));
                }
            }
            seen += 1;
        }
    }
    assert!(seen >= 150, "{seen} models");
}

/// A processor that is slower than the disk.
struct Slow;

impl Probe for Slow {
    fn after_op(&mut self, _: usize, _: &Op, _: OpOutput) -> Result<(), Interrupted> {
        std::thread::sleep(Duration::from_micros(500));
        Ok(())
    }
}

/// Feeds a token while what is read ahead mostly comes before it is wanted.
fn feed_slowly(session: &mut Session) {
    let chunk = Chunk {
        start: session.position(),
        ids: &[1],
        want: Want::Last,
    };
    let mut logits = vec![0.0; session.engine().spec().vocabulary];
    let watch = Watch {
        probe: Some(&mut Slow),
        ..Watch::default()
    };
    session.feed_watched(chunk, &mut logits, watch).unwrap();
}

/// Every token wants all weights in the same order: with room for half of them about half are read again, not all of them.
#[test]
fn what_every_token_wants_is_kept_as_far_as_there_is_room() {
    let checkpoint = golden("llama3");
    let open = |bytes| {
        let options = StreamOptions {
            streamed: Streamed::All,
            ..streaming(bytes)
        };
        open_with(&checkpoint, EngineOptions::exact(), options).unwrap()
    };
    let whole = open(1 << 30);
    let misses = |engine: &Engine, tokens: usize| {
        let mut session = session(engine, tokens);
        (0..tokens).for_each(|_| feed_slowly(&mut session));
        engine.stream_counters().unwrap().misses
    };
    let steps = misses(&whole, 5);
    let half = open(least_bytes(&checkpoint, Streamed::All).unwrap() * steps as usize / 2);
    let (first, later) = (misses(&half, 1), misses(&half, 11));
    assert!(first <= steps, "{first} of {steps}");
    let again = (later - first) as f64 / 11.0;
    assert!(again > 0.0 && again < 0.7 * steps as f64, "{again} of {steps} a token");
}

/// Cuts a file short after an op of a call, so that whatever is read of it from then on fails.
struct Cut<'a> {
    after: usize,
    file: &'a Path,
    ops: usize,
}

impl Probe for Cut<'_> {
    fn after_op(&mut self, _: usize, _: &Op, _: OpOutput) -> Result<(), Interrupted> {
        if self.ops == self.after {
            OpenOptions::new()
                .write(true)
                .open(self.file)
                .unwrap()
                .set_len(64)
                .unwrap();
        }
        self.ops += 1;
        Ok(())
    }
}

/// A copy of a golden's GGUF file that a test may spoil.
fn copy(case: &str, name: &str) -> (PathBuf, Vec<u8>) {
    let bytes = std::fs::read(golden_gguf_path(case).unwrap()).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

/// The file that is open keeps its identity.
fn restore(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, 0)
        .unwrap();
}

#[test]
fn a_read_that_fails_leaves_the_session_where_it_was() {
    let (path, bytes) = copy("qwen3_moe_quant256", "shrinking.gguf");
    let (prompt, _) = tokens("qwen3_moe_quant256");
    let checkpoint = open(&path);
    let whole = Engine::open(&checkpoint, EngineOptions::default()).unwrap();
    let expected = bits(&feed(&mut session(&whole, prompt.len()), &prompt, Want::All));
    let ops = whole.plan().ops.len();
    let engine = open_with(
        &checkpoint,
        EngineOptions::default(),
        streaming(least_bytes(&checkpoint, Streamed::Experts).unwrap()),
    )
    .unwrap();
    let mut session = session(&engine, prompt.len());
    let mut failed = 0;
    for after in 0..ops {
        let mut logits = vec![0.0; prompt.len() * engine.spec().vocabulary];
        let chunk = Chunk {
            start: 0,
            ids: &prompt,
            want: Want::All,
        };
        let mut cut = Cut {
            after,
            file: &path,
            ops: 0,
        };
        let watch = Watch {
            probe: Some(&mut cut),
            ..Watch::default()
        };
        let result = session.feed_watched(chunk, &mut logits, watch);
        restore(&path, &bytes);
        match result {
            // Nothing had to be read any more.
            Ok(()) => {
                assert_eq!(bits(&logits), expected, "after op {after}");
                session.rewind(0).unwrap();
                continue;
            }
            Err(FeedError::Forward {
                position: 0,
                source: CpuError::Weights { tensor, source },
            }) => {
                failed += 1;
                assert!(tensor.contains("exps"), "{tensor}");
                assert!(source.to_string().contains("shrinking.gguf"), "{source}");
            }
            Err(other) => panic!("after op {after}: {other:?}"),
        }
        assert_eq!(session.position(), 0);
        assert_eq!(
            bits(&feed(&mut session, &prompt, Want::All)),
            expected,
            "after op {after}"
        );
        session.rewind(0).unwrap();
    }
    assert!(failed > ops / 2, "{failed} of {ops} calls had something to read");
    std::fs::remove_file(&path).unwrap();
}
