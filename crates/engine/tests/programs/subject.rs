//! A session, and what the contract says about it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use goldcrest_engine::{
    BatchError, BatchFeed, Chunk, Engine, FeedError, KvElement, RewindError, Session, Snapshot, Want, Watch,
};
use goldcrest_model::plan::Kv;

use crate::CAPACITY;
use crate::program::{Feed, Mistake, Step, Wanted};
use crate::support::script::{Ending, Script};
use crate::support::{Random, bits, feed, session};

/// A chunk with a mistake, and the error that it meets.
struct WrongChunk {
    start: usize,
    ids: Vec<u32>,
    rows: Vec<usize>,
    /// Length of the buffer for logits.
    logits: usize,
    error: FeedError,
}

/// A session, and what the contract says about it.
pub struct Subject {
    session: Session,
    past: Past,
}

/// What has become of a session.
#[derive(Clone, Default)]
struct Past {
    ids: Vec<u32>,
    /// The logits that a feed gave for each position, as bits.
    rows: Vec<Option<Vec<u32>>>,
    /// The longest that it has been: how far windows have moved.
    longest: usize,
}

impl Past {
    /// Tokens were fed, and these rows of them gave logits.
    fn add(&mut self, ids: &[u32], rows: &[usize], logits: &[f32], vocabulary: usize) {
        let start = self.ids.len();
        self.ids.extend(ids);
        self.longest = self.longest.max(self.ids.len());
        self.rows.resize(self.ids.len(), None);
        for (row, logits) in rows.iter().zip(logits.chunks_exact(vocabulary)) {
            self.rows[start + row] = Some(bits(logits));
        }
    }
}

/// A snapshot, and what it is of.
pub struct Taken {
    snapshot: Snapshot,
    past: Past,
}

impl Subject {
    pub fn new(engine: &Engine) -> Subject {
        Subject {
            session: session(engine, CAPACITY),
            past: Past::default(),
        }
    }

    fn engine(&self) -> Engine {
        self.session.engine().clone()
    }

    pub fn run(&mut self, step: &Step, taken: &mut Option<Taken>) {
        match step {
            Step::Feed(feed) => self.feed(feed, None, &mut Script::default()),
            Step::Cancel { feed, during } => {
                let cancel = AtomicBool::new(during.is_none());
                let mut script = Script {
                    cancel_during: *during,
                    cancel: Some(&cancel),
                    ..self.script()
                };
                self.feed(feed, Some(&cancel), &mut script);
            }
            Step::Interrupt { feed, after_ops } => {
                let mut script = Script {
                    interrupt_after: Some(*after_ops),
                    ..self.script()
                };
                self.feed(feed, None, &mut script);
            }
            Step::Rewind { to } => self.rewind(self.past.ids.len() * to / 256),
            Step::Wrong { feed, mistake } => self.refuse(feed, *mistake),
            Step::Snapshot => {
                *taken = Some(Taken {
                    snapshot: self.session.snapshot(),
                    past: self.past.clone(),
                });
            }
            Step::Restore => {
                if let Some(taken) = taken {
                    assert_eq!(self.session.restore(&taken.snapshot), Ok(()));
                    self.past.clone_from(&taken.past);
                }
            }
            Step::Save => self.save(),
            Step::Batch { .. } | Step::Fork => unreachable!("a step of both sessions"),
        }
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.session.ids(), self.past.ids);
        assert_eq!(self.session.position(), self.past.ids.len());
        self.check_bytes();
    }

    pub fn fork(&self) -> Subject {
        let fork = Subject {
            session: self.session.fork(),
            past: self.past.clone(),
        };
        fork.check();
        fork
    }

    /// Goes on as the session that a file of this one holds.
    fn save(&mut self) {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let name = format!(
            "program-{}-{}",
            std::process::id(),
            FILES.fetch_add(1, Ordering::Relaxed)
        );
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        self.session.save(&path).unwrap();
        let loaded = self.engine().restore(&path, CAPACITY).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(loaded.visible_state() == self.session.visible_state());
        assert_eq!(loaded.saturated(), self.session.saturated());
        self.session = loaded;
    }

    fn script(&self) -> Script<'static> {
        Script {
            ops_per_call: self.engine().plan().ops.len(),
            ..Script::default()
        }
    }

    fn tokens(&self, feed: &Feed) -> (Vec<u32>, Vec<usize>) {
        let mut random = Random(feed.seed);
        let ids = random.ids(feed.tokens, self.engine().spec().vocabulary);
        let rows = (0..feed.tokens).filter(|row| match feed.want {
            Wanted::Nothing => false,
            Wanted::Last => row + 1 == feed.tokens,
            Wanted::All => true,
            Wanted::Some => random.below(2) == 0,
        });
        let rows = rows.collect();
        (ids, rows)
    }

    /// Feeds under a script, whose end the contract foretells.
    fn feed(&mut self, feed: &Feed, cancel: Option<&AtomicBool>, script: &mut Script) {
        let (ids, rows) = self.tokens(feed);
        let want = feed.want.of(&rows);
        let start = self.past.ids.len();
        let engine = self.engine();
        let (vocabulary, max_rows) = (engine.spec().vocabulary, engine.options().max_rows);
        let mut logits = vec![f32::NAN; rows.len() * vocabulary];
        let expected = script.ending(ids.len().div_ceil(max_rows));
        let watch = Watch {
            cancel,
            probe: Some(script),
        };
        let result = self
            .session
            .feed_watched(Chunk { start, ids: &ids, want }, &mut logits, watch);
        if start + ids.len() > CAPACITY {
            let expected = FeedError::CapacityExceeded {
                tokens: ids.len(),
                position: start,
                capacity: CAPACITY,
            };
            assert_eq!(result.unwrap_err().to_string(), expected.to_string());
            return;
        }
        let (calls, fed) = match expected {
            Ending::Done => (None, ids.len()),
            Ending::Cancelled { calls } | Ending::Interrupted { calls } => {
                (Some(calls), ids.len().min(calls * max_rows))
            }
        };
        match (expected, result) {
            (Ending::Done, Ok(())) => {}
            (Ending::Cancelled { .. }, Err(FeedError::Cancelled { position })) => assert_eq!(position, start + fed),
            (Ending::Interrupted { .. }, Err(FeedError::Forward { position, .. })) => assert_eq!(position, start + fed),
            (expected, result) => panic!("{result:?} instead of {expected:?}"),
        }
        let rows = if calls.is_none() { &rows[..] } else { &[] };
        self.past.add(&ids[..fed], rows, &logits, vocabulary);
    }

    /// The shortest length but 0 that rewinding reaches: windowed layers hold whole pages of 256 positions, from the one on that the
    /// longest sequence so far still needed.
    fn shortest(&self) -> usize {
        let windows = self.session.engine().plan().kvs.iter().filter_map(|kv| kv.window);
        if !self.session.engine().plan().recurrents.is_empty() {
            return self.past.ids.len();
        }
        let shortest = windows.map(|window| match (self.past.longest + 1).saturating_sub(window) / 256 {
            0 => 0,
            first_page => first_page * 256 + window - 1,
        });
        shortest.max().unwrap_or(0).min(self.past.ids.len())
    }

    fn rewind(&mut self, length: usize) {
        let (position, shortest) = (self.past.ids.len(), self.shortest());
        let before = self.session.visible_state();
        let result = self.session.rewind(length);
        if length > position {
            assert_eq!(result, Err(RewindError::Ahead { length, position }));
        } else if length != 0 && length < shortest {
            assert_eq!(result, Err(RewindError::Gone { length, shortest }));
        } else {
            assert_eq!(result, Ok(()));
            self.past.ids.truncate(length);
            self.past.rows.truncate(length);
            if length == 0 {
                self.past.longest = 0;
            }
        }
        if result.is_err() {
            assert!(
                self.session.visible_state() == before,
                "a refused rewind changed the state"
            );
        }
    }

    /// A wrong chunk is refused with the error that names the mistake, and nothing changes.
    fn refuse(&mut self, feed: &Feed, mistake: Mistake) {
        if self.past.ids.len() == CAPACITY {
            return;
        }
        let wrong = self.wrong_chunk(feed, mistake);
        let before = (self.session.visible_state(), self.session.bytes());
        let mut logits = vec![f32::NAN; wrong.logits];
        let (start, ids, want) = (wrong.start, &wrong.ids, Want::Rows(&wrong.rows));
        let result = self.session.feed(Chunk { start, ids, want }, &mut logits);
        assert_eq!(format!("{:?}", result.unwrap_err()), format!("{:?}", wrong.error));
        let after = (self.session.visible_state(), self.session.bytes());
        assert!(after == before, "{mistake:?} changed the session");
        assert!(logits.iter().all(|x| x.is_nan()), "{mistake:?} wrote logits");
    }

    /// A right chunk with one mistake.
    fn wrong_chunk(&self, feed: &Feed, mistake: Mistake) -> WrongChunk {
        let vocabulary = self.engine().spec().vocabulary;
        let (position, room) = (self.past.ids.len(), CAPACITY - self.past.ids.len());
        let (mut start, mut surplus) = (position, 0_isize);
        let (mut ids, mut rows) = self.tokens(feed);
        ids.truncate(room);
        rows.retain(|row| *row < ids.len());
        let mut random = Random(!feed.seed);
        let error = match mistake {
            Mistake::Empty => {
                (ids, rows) = (Vec::new(), Vec::new());
                FeedError::EmptyChunk
            }
            Mistake::Start => {
                let before = position.checked_sub(1).filter(|_| random.below(2) == 0);
                start = before.unwrap_or(position + 1);
                FeedError::WrongStart { start, position }
            }
            Mistake::Id => {
                let (index, id) = (random.below(ids.len()), (vocabulary + random.below(9)) as u32);
                ids[index] = id;
                FeedError::IdOutsideVocabulary { index, id, vocabulary }
            }
            Mistake::Capacity => {
                let (tokens, capacity) = (room + 1 + random.below(9), CAPACITY);
                ids.resize(tokens, 0);
                FeedError::CapacityExceeded {
                    tokens,
                    position,
                    capacity,
                }
            }
            Mistake::RowTwice | Mistake::RowOutside => {
                let tokens = ids.len();
                let row = if matches!(mistake, Mistake::RowTwice) {
                    tokens - 1
                } else {
                    tokens
                };
                rows = vec![tokens - 1, row];
                FeedError::WantedRow { row, tokens }
            }
            Mistake::LogitsShort | Mistake::LogitsLong => {
                rows = vec![0];
                surplus = if matches!(mistake, Mistake::LogitsShort) { -1 } else { 1 };
                let found = vocabulary.strict_add_signed(surplus);
                FeedError::LogitsLength {
                    found,
                    expected: vocabulary,
                }
            }
        };
        let logits = (rows.len() * vocabulary).strict_add_signed(surplus);
        WrongChunk {
            start,
            ids,
            rows,
            logits,
            error,
        }
    }

    /// Memory is the pages that hold what can be seen, however long the sequence.
    fn check_bytes(&self) {
        let engine = self.session.engine();
        let pages = |window: Option<usize>| {
            let oldest = window.map_or(0, |window| (self.past.longest + 1).saturating_sub(window));
            self.past.ids.len().div_ceil(256).saturating_sub(oldest / 256)
        };
        let element = engine.options().kv;
        let keys = |len: usize| match element {
            KvElement::F32 => len * 4,
            KvElement::F16 => len * 2,
            KvElement::Q8_0 | KvElement::Q4 => len,
        };
        let values = |len: usize| match element {
            KvElement::Q4 => len / 32 * 16 + (len % 32).min(16),
            _ => keys(len),
        };
        let scales = |len: usize| 2 * len.div_ceil(32) * usize::from(element.is_quantized());
        let page = |kv: &Kv| {
            let (key, value) = (kv.key_dim, kv.value_dim);
            let plain = if element.is_quantized() { kv.plain_key_dims } else { 0 };
            let key_bytes = keys(key - plain) + scales(key - plain) + 2 * plain;
            256 * kv.heads * (key_bytes + values(value.next_multiple_of(16)) + scales(value))
        };
        let kvs = engine.plan().kvs.iter();
        let expected: usize = kvs.map(|kv| pages(kv.window) * page(kv)).sum();
        // A recurrent memory is held once or, after calls of this session, twice.
        let numbers: usize = engine.plan().recurrents.iter().map(|recurrent| recurrent.len).sum();
        let (bytes, copy) = (self.session.bytes(), numbers * size_of::<f32>());
        let least = expected + copy * usize::from(!self.past.ids.is_empty());
        let range = least..=expected + 2 * copy;
        assert!(
            range.contains(&bytes),
            "{bytes} bytes of {} positions",
            self.past.ids.len()
        );
    }

    /// Compares with a fresh session of `engine`, then with its next row.
    pub fn compare(mut self, engine: &Engine) {
        let mut straight = session(engine, CAPACITY);
        let vocabulary = engine.spec().vocabulary;
        if !self.past.ids.is_empty() {
            let logits = feed(&mut straight, &self.past.ids, Want::All);
            for (position, (got, expected)) in self.past.rows.iter().zip(logits.chunks_exact(vocabulary)).enumerate() {
                assert!(
                    got.as_ref().is_none_or(|got| *got == bits(expected)),
                    "logits at position {position}"
                );
            }
        }
        assert!(
            self.session.visible_state() == straight.visible_state(),
            "state at {} positions",
            self.past.ids.len()
        );
        if self.past.ids.len() < CAPACITY {
            let next = feed(&mut self.session, &[7], Want::Last);
            assert_eq!(
                bits(&next),
                bits(&feed(&mut straight, &[7], Want::Last)),
                "logits of the next row"
            );
        }
    }
}

impl Wanted {
    fn of(self, rows: &[usize]) -> Want<'_> {
        match self {
            Wanted::Nothing => Want::Nothing,
            Wanted::Last => Want::Last,
            Wanted::All => Want::All,
            Wanted::Some => Want::Rows(rows),
        }
    }
}

/// Feeds both in one batch, which a probe may interrupt.
pub fn feed_both(subjects: &mut [Subject; 2], feeds: &[Feed; 2], interrupt_after: Option<usize>) {
    let engine = subjects[0].engine();
    let (vocabulary, max_rows) = (engine.spec().vocabulary, engine.options().max_rows);
    let tokens = [0, 1].map(|i| subjects[i].tokens(&feeds[i]));
    let mut logits = [0, 1].map(|i| vec![f32::NAN; tokens[i].1.len() * vocabulary]);
    let starts = [0, 1].map(|i| subjects[i].past.ids.len());
    let mut batch: Vec<BatchFeed> = Vec::new();
    for (i, (subject, logits)) in subjects.iter_mut().zip(&mut logits).enumerate() {
        let (ids, rows) = &tokens[i];
        let (start, want) = (starts[i], feeds[i].want.of(rows));
        let chunk = Chunk { start, ids, want };
        batch.push(BatchFeed {
            session: &mut subject.session,
            chunk,
            logits,
        });
    }
    let mut script = Script {
        ops_per_call: engine.plan().ops.len(),
        interrupt_after,
        ..Script::default()
    };
    let total: usize = feeds.iter().map(|feed| feed.tokens).sum();
    let expected = script.ending(total.div_ceil(max_rows));
    let watch = Watch {
        cancel: None,
        probe: Some(&mut script),
    };
    let result = engine.feed_batch_watched(&mut batch, watch);
    let too_long = (0..2).find(|&i| starts[i] + feeds[i].tokens > CAPACITY);
    let fed = match (too_long, expected, result) {
        (Some(i), _, Err(BatchError::Feed { index, source })) => {
            assert!(matches!(source, FeedError::CapacityExceeded { .. }) && index == i);
            0
        }
        (None, Ending::Done, Ok(())) => total,
        // Calls are full but for the last.
        (None, Ending::Interrupted { calls }, Err(BatchError::Forward { .. })) => calls * max_rows,
        (too_long, expected, result) => panic!("{result:?} instead of {expected:?}, too long: {too_long:?}"),
    };
    let positions = [0, 1].map(|i| subjects[i].session.position() - starts[i]);
    assert_eq!(positions[0] + positions[1], fed);
    for (i, subject) in subjects.iter_mut().enumerate() {
        let (ids, rows) = &tokens[i];
        let rows = if fed == total { &rows[..] } else { &[] };
        subject.past.add(&ids[..positions[i]], rows, &logits[i], vocabulary);
        subject.check();
    }
}
