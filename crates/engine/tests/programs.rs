//! Whatever is done to a session, it is where a straight run of the same tokens would be.
//!
//! Random programs feed two sessions of one engine in turns, in chunks of any size and with any rows wanted, cancel them, interrupt them
//! after any op, rewind them and hand them chunks that are wrong. An oracle that knows only the contract says what each step returns.
//! At the end ids, state and every row of logits equal those of a fresh session of another engine, fed in one go.

mod support;

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

use goldcrest_engine::{
    Activations, Chunk, Engine, EngineOptions, FeedError, KvElement, RewindError, Session, Want, Watch,
};
use goldcrest_format::{Checkpoint, DType};
use proptest::prelude::*;
use support::script::{Ending, Script};
use support::{Random, bits, engine, feed, golden, golden_gguf, session};

/// More than two pages of 256 positions, so that windows let pages go.
const CAPACITY: usize = 700;

/// Models of every kind of state: all positions, a window, both; rope in all forms; and quantised weights, for which the type of
/// activations matters.
static MODELS: LazyLock<Vec<Checkpoint>> = LazyLock::new(|| {
    let cases = [
        "llama3",
        "mistral_swa",
        "gemma3",
        "smollm3",
        "qwen2_swa",
        "llama_bias_linear",
    ];
    let types = [DType::Q4_1, DType::Q8_0, DType::Q5_0, DType::F16];
    let quantised = |case: &str| {
        let source = golden_gguf(case).unwrap();
        support::open(&support::gguf::reencode(
            &source,
            &format!("programs-{case}.gguf"),
            |i| types[i % types.len()],
        ))
    };
    cases
        .into_iter()
        .map(golden)
        .chain([quantised("gemma3"), quantised("llama3")])
        .collect()
});

#[derive(Clone, Debug)]
struct Program {
    model: usize,
    options: EngineOptions,
    /// With the session each is for.
    steps: Vec<(usize, Step)>,
}

#[derive(Clone, Debug)]
enum Step {
    Feed(Feed),
    /// The flag is up before the chunk, or goes up during the call of this number.
    Cancel {
        feed: Feed,
        during: Option<usize>,
    },
    /// A probe fails after so many ops, counted over the chunk's calls.
    Interrupt {
        feed: Feed,
        after_ops: usize,
    },
    /// To the length at this point of 0..256 between nothing and a little more than there is.
    Rewind {
        to: usize,
    },
    Wrong {
        feed: Feed,
        mistake: Mistake,
    },
}

/// Random tokens.
#[derive(Clone, Debug)]
struct Feed {
    tokens: usize,
    seed: u64,
    want: Wanted,
}

#[derive(Clone, Copy, Debug)]
enum Wanted {
    Nothing,
    Last,
    All,
    /// Each row with a probability of one half.
    Some,
}

#[derive(Clone, Copy, Debug)]
enum Mistake {
    Empty,
    Start,
    Id,
    Capacity,
    RowTwice,
    RowOutside,
    LogitsShort,
    LogitsLong,
}

fn feeds() -> impl Strategy<Value = Feed> {
    let tokens = prop_oneof![4 => 1..=12_usize, 2 => 13..=80_usize, 1 => 200..=400_usize];
    let want = prop_oneof![
        Just(Wanted::Nothing),
        Just(Wanted::Last),
        Just(Wanted::All),
        Just(Wanted::Some)
    ];
    (tokens, any::<u64>(), want).prop_map(|(tokens, seed, want)| Feed { tokens, seed, want })
}

fn mistakes() -> impl Strategy<Value = Mistake> {
    use Mistake::{Capacity, Empty, Id, LogitsLong, LogitsShort, RowOutside, RowTwice, Start};
    prop::sample::select(vec![
        Empty,
        Start,
        Id,
        Capacity,
        RowTwice,
        RowOutside,
        LogitsShort,
        LogitsLong,
    ])
}

fn steps() -> impl Strategy<Value = Step> {
    let during = prop::option::of(0..6_usize);
    prop_oneof![
        6 => feeds().prop_map(Step::Feed),
        1 => (feeds(), during).prop_map(|(feed, during)| Step::Cancel { feed, during }),
        2 => (feeds(), 0..400_usize).prop_map(|(feed, after_ops)| Step::Interrupt { feed, after_ops }),
        2 => (0..300_usize).prop_map(|to| Step::Rewind { to }),
        1 => (feeds(), mistakes()).prop_map(|(feed, mistake)| Step::Wrong { feed, mistake }),
    ]
}

fn programs() -> impl Strategy<Value = Program> {
    let options = (
        prop::sample::select(vec![Activations::Q8, Activations::F32]),
        prop::sample::select(&KvElement::ALL[..]),
        1..=3_usize,
        prop::sample::select(vec![1, 3, 5, 64_usize]),
    );
    let options = options.prop_map(|(activations, kv, threads, max_rows)| EngineOptions {
        activations: Some(activations),
        kv,
        threads: Some(threads),
        isa: None,
        max_rows,
    });
    let steps = prop::collection::vec((prop_oneof![3 => Just(0_usize), 1 => Just(1)], steps()), 1..14);
    (0..MODELS.len(), options, steps).prop_map(|(model, options, steps)| Program { model, options, steps })
}

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
struct Subject {
    session: Session,
    ids: Vec<u32>,
    /// The logits that a feed gave for each position, as bits.
    rows: Vec<Option<Vec<u32>>>,
    /// The longest that it has been: how far windows have moved.
    longest: usize,
}

impl Subject {
    fn new(engine: &Engine) -> Subject {
        Subject {
            session: session(engine, CAPACITY),
            ids: Vec::new(),
            rows: Vec::new(),
            longest: 0,
        }
    }

    fn engine(&self) -> Engine {
        self.session.engine().clone()
    }

    fn run(&mut self, step: &Step) {
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
            Step::Rewind { to } => self.rewind(self.ids.len() * to / 256),
            Step::Wrong { feed, mistake } => self.refuse(feed, *mistake),
        }
        assert_eq!(self.session.ids(), self.ids);
        assert_eq!(self.session.position(), self.ids.len());
        self.check_bytes();
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
        let want = match feed.want {
            Wanted::Nothing => Want::Nothing,
            Wanted::Last => Want::Last,
            Wanted::All => Want::All,
            Wanted::Some => Want::Rows(&rows),
        };
        let start = self.ids.len();
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
        self.ids.extend(&ids[..fed]);
        self.longest = self.longest.max(self.ids.len());
        self.rows.resize(self.ids.len(), None);
        if calls.is_none() {
            for (row, logits) in rows.iter().zip(logits.chunks_exact(vocabulary)) {
                self.rows[start + row] = Some(bits(logits));
            }
        }
    }

    /// The shortest length but 0 that rewinding reaches: windowed layers hold whole pages of 256 positions, from the one on that the
    /// longest sequence so far still needed.
    fn shortest(&self) -> usize {
        let windows = self.session.engine().plan().kvs.iter().filter_map(|kv| kv.window);
        let shortest = windows.map(|window| match (self.longest + 1).saturating_sub(window) / 256 {
            0 => 0,
            first_page => first_page * 256 + window - 1,
        });
        shortest.max().unwrap_or(0).min(self.ids.len())
    }

    fn rewind(&mut self, length: usize) {
        let (position, shortest) = (self.ids.len(), self.shortest());
        let before = self.session.visible_state();
        let result = self.session.rewind(length);
        if length > position {
            assert_eq!(result, Err(RewindError::Ahead { length, position }));
        } else if length != 0 && length < shortest {
            assert_eq!(result, Err(RewindError::Gone { length, shortest }));
        } else {
            assert_eq!(result, Ok(()));
            self.ids.truncate(length);
            self.rows.truncate(length);
            if length == 0 {
                self.longest = 0;
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
        if self.ids.len() == CAPACITY {
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
        let (position, room) = (self.ids.len(), CAPACITY - self.ids.len());
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
            let oldest = window.map_or(0, |window| (self.longest + 1).saturating_sub(window));
            self.ids.len().div_ceil(256).saturating_sub(oldest / 256)
        };
        let element = engine.options().kv;
        let codes = |len: usize| match element {
            KvElement::F32 => len * 4,
            KvElement::F16 => len * 2,
            KvElement::Q8_0 => len,
            KvElement::Q4 => len / 32 * 16 + (len % 32).min(16),
        };
        let scales = |len: usize| 2 * len.div_ceil(32) * usize::from(element.is_quantized());
        let page = |heads: usize, key: usize, value: usize| {
            256 * heads * (codes(key) + scales(key) + codes(value.next_multiple_of(16)) + scales(value))
        };
        let kvs = engine.plan().kvs.iter();
        let expected: usize = kvs
            .map(|kv| pages(kv.window) * page(kv.heads, kv.key_dim, kv.value_dim))
            .sum();
        assert_eq!(self.session.bytes(), expected, "bytes of {} positions", self.ids.len());
    }

    /// Compares with a fresh session of `engine`, then with its next row.
    fn compare(mut self, engine: &Engine) {
        let mut straight = session(engine, CAPACITY + 1);
        let vocabulary = engine.spec().vocabulary;
        if !self.ids.is_empty() {
            let logits = feed(&mut straight, &self.ids, Want::All);
            for (position, (got, expected)) in self.rows.iter().zip(logits.chunks_exact(vocabulary)).enumerate() {
                assert!(
                    got.as_ref().is_none_or(|got| *got == bits(expected)),
                    "logits at position {position}"
                );
            }
        }
        assert!(
            self.session.visible_state() == straight.visible_state(),
            "state at {} positions",
            self.ids.len()
        );
        if self.ids.len() < CAPACITY {
            let next = feed(&mut self.session, &[7], Want::Last);
            assert_eq!(
                bits(&next),
                bits(&feed(&mut straight, &[7], Want::Last)),
                "logits of the next row"
            );
        }
    }
}

fn run(program: &Program) {
    let checkpoint = &MODELS[program.model];
    let subject = engine(checkpoint, program.options);
    let mut subjects = [Subject::new(&subject), Subject::new(&subject)];
    for (which, step) in &program.steps {
        subjects[*which].run(step);
    }
    // Other threads, other calls, and the same numbers.
    let straight = engine(
        checkpoint,
        EngineOptions {
            threads: Some(1),
            max_rows: 96,
            ..program.options
        },
    );
    for subject in subjects {
        subject.compare(&straight);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn a_session_is_where_a_straight_run_would_be(program in programs()) {
        run(&program);
    }
}

/// Every op of a model, in a call that crosses a page, is a place to fail at.
#[test]
fn an_interrupt_after_any_op_leaves_nothing_behind() {
    for (model, checkpoint) in MODELS.iter().enumerate() {
        let options = EngineOptions {
            threads: Some(2),
            max_rows: 16,
            ..EngineOptions::default()
        };
        let ops = engine(checkpoint, options).plan().ops.len();
        let all = Wanted::All;
        let mut steps = vec![Step::Feed(Feed {
            tokens: 250,
            seed: 1,
            want: Wanted::Nothing,
        })];
        steps.extend((0..ops).map(|op| {
            let feed = Feed {
                tokens: 10 + op % 7,
                seed: op as u64,
                want: all,
            };
            Step::Interrupt { feed, after_ops: op }
        }));
        steps.push(Step::Feed(Feed {
            tokens: 30,
            seed: 2,
            want: all,
        }));
        run(&Program {
            model,
            options,
            steps: steps.into_iter().map(|step| (0, step)).collect(),
        });
    }
}

/// Windows move over pages and let them go; what is gone cannot be rewound to, the rest can.
#[test]
fn long_sequences_let_go_of_pages_and_rewind_within_them() {
    for (model, max_rows) in (0..MODELS.len()).zip([64, 3, 64, 5, 1, 64, 7, 300]) {
        let options = EngineOptions {
            threads: Some(2),
            max_rows,
            ..EngineOptions::default()
        };
        let feed = |tokens, seed| {
            Step::Feed(Feed {
                tokens,
                seed,
                want: Wanted::Last,
            })
        };
        let steps = [
            feed(255, 1),
            feed(1, 2),
            Step::Rewind { to: 128 },
            feed(400, 3),
            Step::Rewind { to: 20 },
            // A few tokens back, into the page before.
            Step::Rewind { to: 250 },
            feed(150, 4),
            Step::Rewind { to: 257 },
            Step::Rewind { to: 256 },
            Step::Rewind { to: 0 },
            feed(20, 5),
        ];
        run(&Program {
            model,
            options,
            steps: steps.map(|step| (0, step)).to_vec(),
        });
    }
}
