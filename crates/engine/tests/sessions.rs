//! What sessions promise beyond being fed: forks, snapshots, batches, files.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use goldcrest_engine::{
    BatchError, BatchFeed, Chunk, Engine, EngineOptions, FeedError, Interrupted, KvElement, LoadProblem, Op, OpOutput,
    Probe, RestoreError, Session, SessionError, Want, Watch,
};
use support::{Random, bits, engine, feed, golden, session};

const VOCABULARY: usize = 256;
const HIDDEN: usize = 64;

/// Two layers with a window of 16 (`mistral_swa`), in calls of at most so many rows.
fn windowed(max_rows: usize) -> Engine {
    let options = EngineOptions {
        threads: Some(2),
        max_rows,
        ..EngineOptions::exact()
    };
    engine(&golden("mistral_swa"), options)
}

fn ids(seed: u64, count: usize) -> Vec<u32> {
    Random(seed).ids(count, VOCABULARY)
}

/// A session that was fed `ids(5, count)`.
fn fed(engine: &Engine, count: usize) -> Session {
    let mut session = session(engine, 700);
    if count > 0 {
        feed(&mut session, &ids(5, count), Want::Nothing);
    }
    session
}

#[test]
fn a_snapshot_belongs_to_its_engine_and_needs_room() {
    let engine = windowed(64);
    let mut source = fed(&engine, 30);
    let snapshot = source.snapshot();
    assert_eq!((snapshot.position(), snapshot.ids()), (30, &ids(5, 30)[..]));
    assert_eq!(snapshot.bytes(), source.bytes());
    let mut stranger = fed(&windowed(64), 3);
    assert_eq!(stranger.restore(&snapshot), Err(RestoreError::OtherEngine));
    assert_eq!(stranger.position(), 3);
    let mut small = session(&engine, 29);
    let (position, capacity) = (30, 29);
    assert_eq!(
        small.restore(&snapshot),
        Err(RestoreError::CapacityExceeded { position, capacity })
    );
    assert_eq!((small.position(), small.bytes()), (0, 0));
    // Any session of the engine that has the room, and more than once.
    let mut exact = session(&engine, 30);
    assert_eq!(exact.restore(&snapshot), Ok(()));
    feed(&mut source, &[1, 2], Want::Last);
    assert_eq!(source.restore(&snapshot), Ok(()));
    assert!(source.visible_state() == exact.visible_state());
    assert_eq!((exact.capacity(), exact.position()), (30, 30));
}

/// A snapshot reaches where a rewind does not.
#[test]
fn a_snapshot_is_the_way_back_behind_a_window() {
    let engine = windowed(64);
    let mut long = fed(&engine, 100);
    let snapshot = long.snapshot();
    feed(&mut long, &ids(6, 500), Want::Nothing);
    let error = long.rewind(100).unwrap_err().to_string();
    assert!(error.contains("snapshot"), "{error}");
    long.restore(&snapshot).unwrap();
    let mut straight = fed(&engine, 100);
    let chunk = ids(7, 300);
    assert_eq!(
        bits(&feed(&mut long, &chunk, Want::All)),
        bits(&feed(&mut straight, &chunk, Want::All))
    );
}

#[test]
fn a_fork_starts_where_the_session_is() {
    let engine = windowed(64);
    let mut source = fed(&engine, 270);
    source.count();
    let mut fork = source.fork();
    assert_eq!((fork.ids(), fork.capacity()), (source.ids(), source.capacity()));
    assert_eq!(fork.saturated(), source.saturated());
    assert!(fork.counters().is_none());
    let (first, second) = (ids(8, 20), ids(9, 20));
    feed(&mut source, &first, Want::Nothing);
    let logits = feed(&mut fork, &second, Want::All);
    drop(source);
    let mut straight = fed(&engine, 270);
    assert_eq!(bits(&logits), bits(&feed(&mut straight, &second, Want::All)));
}

/// One feed of a batch: the session, its tokens and its wanted rows.
struct Share {
    session: Session,
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl Share {
    fn new(engine: &Engine, past: usize, seed: u64, tokens: usize) -> Share {
        Share {
            session: fed(engine, past),
            ids: ids(seed, tokens),
            logits: vec![f32::NAN; VOCABULARY],
        }
    }

    fn feed(&mut self) -> BatchFeed<'_> {
        let chunk = Chunk {
            start: self.session.position(),
            ids: &self.ids,
            want: Want::Last,
        };
        BatchFeed {
            session: &mut self.session,
            chunk,
            logits: &mut self.logits,
        }
    }
}

fn feeds(shares: &mut [Share]) -> Vec<BatchFeed<'_>> {
    shares.iter_mut().map(Share::feed).collect()
}

fn positions(shares: &[Share]) -> Vec<usize> {
    shares.iter().map(|share| share.session.position()).collect()
}

/// Sessions of other lengths, chunks of other lengths, calls of any size.
#[test]
fn a_batch_gives_each_session_what_it_gets_alone() {
    for max_rows in [1, 2, 5, 64] {
        let engine = windowed(max_rows);
        let lengths = [(0, 7), (30, 1), (250, 20), (3, 1)];
        let mut shares: Vec<Share> = (10..)
            .zip(lengths)
            .map(|(seed, (past, tokens))| Share::new(&engine, past, seed, tokens))
            .collect();
        engine.feed_batch(&mut feeds(&mut shares)).unwrap();
        for (share, (past, _)) in shares.iter_mut().zip(lengths) {
            let mut alone = fed(&engine, past);
            let logits = feed(&mut alone, &share.ids, Want::Last);
            assert_eq!(bits(&share.logits), bits(&logits), "from {past}, calls of {max_rows}");
            assert_eq!(share.session.ids(), alone.ids());
            assert!(share.session.visible_state() == alone.visible_state());
        }
    }
    assert!(windowed(4).feed_batch(&mut []).is_ok());
}

#[test]
fn a_wrong_feed_is_named_and_nothing_changes() {
    let engine = windowed(64);
    let mut shares = vec![Share::new(&engine, 10, 1, 4), Share::new(&engine, 20, 2, 4)];
    shares[1].ids[3] = 256;
    let error = engine.feed_batch(&mut feeds(&mut shares)).unwrap_err();
    let source = FeedError::IdOutsideVocabulary {
        index: 3,
        id: 256,
        vocabulary: VOCABULARY,
    };
    assert_eq!(
        format!("{error:?}"),
        format!("{:?}", BatchError::Feed { index: 1, source })
    );
    assert_eq!(positions(&shares), [10, 20]);
    assert!(shares.iter().flat_map(|share| &share.logits).all(|x| x.is_nan()));

    let mut shares = vec![Share::new(&engine, 10, 1, 4), Share::new(&windowed(64), 20, 2, 4)];
    let error = engine.feed_batch(&mut feeds(&mut shares)).unwrap_err();
    let source = FeedError::OtherEngine;
    assert!(
        matches!(
            error,
            BatchError::Feed {
                index: 1,
                source: FeedError::OtherEngine
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains(&source.to_string()));
    assert_eq!(positions(&shares), [10, 20]);
}

/// Sees what calls there are, and stops during one of them.
#[derive(Default)]
struct Onlooker<'a> {
    /// Rows of each call.
    rows: Vec<usize>,
    /// Raised during the call of this number.
    cancel: Option<(usize, &'a AtomicBool)>,
    /// Fails in the call of this number.
    fail: Option<usize>,
}

impl Probe for Onlooker<'_> {
    fn after_op(&mut self, index: usize, op: &Op, output: OpOutput) -> Result<(), Interrupted> {
        let (Op::Boundary { layer: 0, .. }, OpOutput::Stream(stream)) = (op, output) else {
            return Ok(());
        };
        let call = self.rows.len();
        self.rows.push(stream.len() / HIDDEN);
        if let Some((_, cancel)) = self.cancel.filter(|(during, _)| *during == call) {
            cancel.store(true, Ordering::Relaxed);
        }
        match self.fail {
            Some(fails) if fails == call => Err(Interrupted { op: index }),
            _ => Ok(()),
        }
    }
}

#[test]
fn calls_are_full_and_shared_fairly() {
    let engine = windowed(8);
    assert_eq!(engine.spec().hidden, HIDDEN);
    let shares = || {
        let lengths = [20, 1, 6];
        let shares = (1..)
            .zip(lengths)
            .map(|(seed, tokens)| Share::new(&engine, 0, seed, tokens));
        shares.collect::<Vec<_>>()
    };
    let mut onlooker = Onlooker::default();
    let watch = Watch {
        cancel: None,
        probe: Some(&mut onlooker),
    };
    engine.feed_batch_watched(&mut feeds(&mut shares()), watch).unwrap();
    assert_eq!(onlooker.rows, [8, 8, 8, 3]);

    // 8 = 4 + 1 + 3, then 8 = 5 + 3, then the first alone.
    for (calls, expected) in [(1, [4, 1, 3]), (2, [9, 1, 6]), (3, [17, 1, 6])] {
        let mut failed = shares();
        let mut onlooker = Onlooker {
            fail: Some(calls),
            ..Onlooker::default()
        };
        let watch = Watch {
            cancel: None,
            probe: Some(&mut onlooker),
        };
        let error = engine.feed_batch_watched(&mut feeds(&mut failed), watch).unwrap_err();
        assert!(matches!(error, BatchError::Forward { .. }), "{error}");
        assert_eq!(positions(&failed), expected, "failed in call {calls}");

        let mut cancelled = shares();
        let cancel = AtomicBool::new(false);
        let mut onlooker = Onlooker {
            cancel: Some((calls - 1, &cancel)),
            ..Onlooker::default()
        };
        let watch = Watch {
            cancel: Some(&cancel),
            probe: Some(&mut onlooker),
        };
        let error = engine
            .feed_batch_watched(&mut feeds(&mut cancelled), watch)
            .unwrap_err();
        assert!(matches!(error, BatchError::Cancelled), "{error}");
        assert_eq!(positions(&cancelled), expected, "cancelled in call {}", calls - 1);
        for (failed, cancelled) in failed.iter().zip(&cancelled) {
            assert!(failed.session.visible_state() == cancelled.session.visible_state());
        }
    }
}

#[test]
fn counters_of_a_batch_count_the_session_s_tokens_and_the_call_s_bytes() {
    let engine = windowed(64);
    let mut shares = vec![
        Share::new(&engine, 0, 1, 5),
        Share::new(&engine, 30, 2, 1),
        Share::new(&engine, 0, 3, 2),
    ];
    shares[0].session.count();
    shares[1].session.count();
    engine.feed_batch(&mut feeds(&mut shares)).unwrap();
    let counters = |i: usize| shares[i].session.counters().expect("counting");
    assert_eq!((counters(0).prefill.calls, counters(0).prefill.tokens), (1, 5));
    assert_eq!((counters(0).decode.calls, counters(1).prefill.calls), (0, 0));
    assert_eq!((counters(1).decode.calls, counters(1).decode.tokens), (1, 1));
    assert!(shares[2].session.counters().is_none());
    use goldcrest_engine::OpKind::{Attend, KvWrite};
    // Two layers of two heads, 16 + 16 f32 each. The sequences see 5, 16 and 2 positions.
    let position = 2 * 2 * (16 + 16) * 4;
    let (written, seen) = (8 * position, (5 + 16 + 2) * position);
    for phase in [&counters(0).prefill, &counters(1).decode] {
        let bytes = |kind| phase.op(kind).cost.state_bytes;
        assert_eq!((bytes(KvWrite), bytes(Attend)), (written, seen));
    }
}

fn scratch_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sessions-{name}"))
}

/// Models whose sessions are continued by another process.
const CONTINUED: [&str; 4] = ["llama3", "mistral_swa", "gemma3", "qwen2_swa"];
const CONTINUATION: u64 = 77;

fn default_engine(case: &str) -> Engine {
    engine(&golden(case), EngineOptions::default())
}

/// The half of [`a_saved_session_continues_in_a_new_process`] that runs in a process of its own. It does what the files left for it ask.
#[test]
#[ignore = "started by another test"]
fn continue_saved_sessions() {
    for case in CONTINUED {
        let saved = scratch_path(&format!("continued-{case}"));
        if saved.exists() {
            let engine = default_engine(case);
            let mut session = engine.restore(&saved, 700).unwrap();
            let ids = Random(CONTINUATION).ids(40, engine.spec().vocabulary);
            let logits = feed(&mut session, &ids, Want::All);
            let mut bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
            bytes.extend(session.visible_state());
            fs::write(saved.with_extension("result"), bytes).unwrap();
            fs::remove_file(saved).unwrap();
        }
    }
}

#[test]
fn a_saved_session_continues_in_a_new_process() {
    let mut expected = Vec::new();
    for case in CONTINUED {
        let engine = default_engine(case);
        let vocabulary = engine.spec().vocabulary;
        let mut session = session(&engine, 700);
        feed(&mut session, &Random(5).ids(300, vocabulary), Want::Nothing);
        let saved = scratch_path(&format!("continued-{case}"));
        session.save(&saved).unwrap();
        let logits = feed(&mut session, &Random(CONTINUATION).ids(40, vocabulary), Want::All);
        let mut bytes: Vec<u8> = logits.iter().flat_map(|x| x.to_le_bytes()).collect();
        bytes.extend(session.visible_state());
        expected.push((saved.with_extension("result"), bytes));
    }
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "continue_saved_sessions"])
        .output()
        .unwrap();
    assert!(process.status.success(), "{}", String::from_utf8_lossy(&process.stdout));
    for (path, expected) in expected {
        assert!(fs::read(&path).unwrap() == expected, "{}", path.display());
        fs::remove_file(path).unwrap();
    }
}

/// A saved session as bytes, and how to try to load some.
struct SavedFile {
    engine: Engine,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl SavedFile {
    fn new(name: &str, positions: usize) -> SavedFile {
        let engine = windowed(64);
        let path = scratch_path(name);
        fed(&engine, positions).save(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        SavedFile { engine, path, bytes }
    }

    fn load(&self, bytes: &[u8]) -> Result<Session, LoadProblem> {
        fs::write(&self.path, bytes).unwrap();
        let loaded = self.engine.restore(&self.path, 700);
        loaded.map_err(|error| {
            assert_eq!(error.path, self.path);
            error.problem
        })
    }
}

impl Drop for SavedFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Magic, version, fingerprint, numerics, positions, capacity.
const HEAD_BYTES: usize = 8 + 4 + 32 + 48 + 32 + 8 + 8;
const SEAL_BYTES: usize = 32;

#[test]
fn a_flipped_byte_anywhere_refuses_the_file() {
    let saved = SavedFile::new("flipped", 30);
    let mut random = Random(3);
    // The head, its seal, the ids, their seal and the start of the state one by one; the pages here and there; the last seal.
    let start = HEAD_BYTES + SEAL_BYTES + 30 * 4 + SEAL_BYTES + 8 + SEAL_BYTES + 64;
    let here_and_there = (0..150).map(|_| random.below(saved.bytes.len()));
    let places = (0..start)
        .chain(here_and_there)
        .chain(saved.bytes.len() - SEAL_BYTES..saved.bytes.len());
    let places: Vec<usize> = places.collect();
    for place in places {
        let mut bytes = saved.bytes.clone();
        bytes[place] ^= 1 << random.below(8);
        let problem = saved
            .load(&bytes)
            .err()
            .unwrap_or_else(|| panic!("byte {place} flipped"));
        let right = match place {
            0..8 => matches!(problem, LoadProblem::NotASession),
            8..12 => matches!(problem, LoadProblem::Version { expected: 2, .. }),
            _ => matches!(problem, LoadProblem::Damaged { offset, bytes }
                if (offset..offset + bytes).contains(&(place as u64))),
        };
        assert!(right, "byte {place}: {problem:?}");
    }
    assert!(saved.load(&saved.bytes).is_ok());
}

#[test]
fn a_file_of_another_length_is_refused() {
    let saved = SavedFile::new("length", 30);
    let full = saved.bytes.len();
    for length in (0..HEAD_BYTES + SEAL_BYTES + 3).chain([full / 2, full - SEAL_BYTES, full - 1]) {
        let problem = saved.load(&saved.bytes[..length]).err().expect("cut short");
        let right = if length < HEAD_BYTES + SEAL_BYTES {
            matches!(problem, LoadProblem::NotASession)
        } else {
            matches!(problem, LoadProblem::Length { found, expected } if (found, expected) == (length as u64, full as u64))
        };
        assert!(right, "{length} bytes: {problem:?}");
    }
    let longer = [&saved.bytes[..], &[0]].concat();
    assert!(matches!(saved.load(&longer), Err(LoadProblem::Length { .. })));
}

/// Records of two files, each whole, do not make a third.
#[test]
fn files_cannot_be_mixed() {
    let first = SavedFile::new("mixed-1", 30);
    let mut other = session(&first.engine, 700);
    feed(&mut other, &ids(99, 30), Want::Nothing);
    let path = scratch_path("mixed-2");
    other.save(&path).unwrap();
    let second = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(first.bytes.len(), second.len());
    // The heads are the same, so a cut after them makes the second file.
    let head = HEAD_BYTES + SEAL_BYTES;
    assert_eq!(first.bytes[..head], second[..head]);
    let after_ids = head + 30 * 4 + SEAL_BYTES;
    let mixed = [&first.bytes[..after_ids], &second[after_ids..]].concat();
    assert!(matches!(first.load(&mixed), Err(LoadProblem::Damaged { .. })));
}

#[test]
fn other_models_numbers_and_capacities_are_refused() {
    let saved = SavedFile::new("other", 30);
    let problem = |engine: &Engine, capacity| engine.restore(&saved.path, capacity).err().expect("refused").problem;
    for case in ["llama3", "gemma3"] {
        let other = engine(&golden(case), EngineOptions::exact());
        assert!(matches!(problem(&other, 700), LoadProblem::OtherModel), "{case}");
    }
    let half = EngineOptions {
        kv: KvElement::F16,
        ..EngineOptions::exact()
    };
    let LoadProblem::OtherNumerics { found, expected } = problem(&engine(&golden("mistral_swa"), half), 700) else {
        panic!("another type of keys and values")
    };
    assert_eq!(found, "f32 keys and values, f32 activations");
    assert_eq!(expected, "f16 keys and values, f32 activations");
    assert!(matches!(
        problem(&saved.engine, 29),
        LoadProblem::CapacityExceeded {
            positions: 30,
            capacity: 29
        }
    ));
    assert!(matches!(
        problem(&saved.engine, 0),
        LoadProblem::Session(SessionError::NoCapacity)
    ));
    assert!(saved.engine.restore(&saved.path, 30).is_ok());
    // What changes no bit is no part of it.
    assert!(windowed(3).restore(&saved.path, 30).is_ok());
    let missing = saved.engine.restore(&scratch_path("missing"), 30);
    assert!(matches!(missing.err().expect("no file").problem, LoadProblem::Io(_)));
}

/// Where rotations depend on how long a sequence may become, a past of another capacity is another past.
#[test]
fn capacities_that_decide_bits_are_kept() {
    let engine = default_engine("phi3_longrope_short");
    let mut source = session(&engine, 50);
    feed(&mut source, &Random(5).ids(20, engine.spec().vocabulary), Want::Nothing);
    let (snapshot, path) = (source.snapshot(), scratch_path("capacity"));
    source.save(&path).unwrap();
    let (found, expected) = (50, 51);
    let refused = session(&engine, expected).restore(&snapshot);
    assert_eq!(refused, Err(RestoreError::OtherCapacity { found, expected }));
    let problem = engine.restore(&path, expected).err().expect("refused").problem;
    assert!(
        matches!(
            problem,
            LoadProblem::OtherCapacity {
                found: 50,
                expected: 51
            }
        ),
        "{problem:?}"
    );
    let mut fork = source.fork();
    let mut restored = session(&engine, found);
    restored.restore(&snapshot).unwrap();
    let mut loaded = engine.restore(&path, found).unwrap();
    fs::remove_file(path).unwrap();
    let next = bits(&feed(&mut source, &[1, 2, 3], Want::All));
    for session in [&mut fork, &mut restored, &mut loaded] {
        assert_eq!(bits(&feed(session, &[1, 2, 3], Want::All)), next);
    }
}

#[test]
fn a_save_is_whole_or_not_there() {
    let engine = windowed(64);
    let folder = scratch_path("folder");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("session");
    fed(&engine, 0).save(&path).unwrap();
    assert_eq!(engine.restore(&path, 5).unwrap().position(), 0);
    fed(&engine, 300).save(&path).unwrap();
    let loaded = engine.restore(&path, 700).unwrap();
    assert!(loaded.visible_state() == fed(&engine, 300).visible_state());
    // A folder stands in the way, is missing, is no name.
    let taken = folder.join("taken");
    fs::create_dir_all(taken.join("full")).unwrap();
    for path in [taken, folder.join("missing/session"), PathBuf::from("/")] {
        let error = fed(&engine, 3).save(&path).unwrap_err();
        assert_eq!(error.path, path);
    }
    let mut left: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["session", "taken"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_session_is_no_longer_than_the_learned_positions() {
    let engine = engine(&golden("gpt2"), EngineOptions::default());
    let positions = engine.plan().positions_max().unwrap();
    let mut longest = session(&engine, positions);
    feed(&mut longest, &vec![1; positions], Want::Last);
    match engine.session(positions + 1).map(|_| ()) {
        Err(SessionError::TooManyPositions {
            capacity,
            positions: most,
        }) => {
            assert_eq!((capacity, most), (positions + 1, positions));
        }
        other => panic!("{other:?}"),
    }
}
