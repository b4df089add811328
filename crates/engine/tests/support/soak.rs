//! Whatever may happen to sessions of a model whose experts are read when they are wanted, at random, against a model that is loaded whole.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use goldcrest_engine::{
    BatchError, BatchFeed, Chunk, CpuError, Engine, EngineOptions, Eviction, FeedError, OpenError, RewindError,
    Session, StreamOptions, Streamed, Want, Watch,
};
use goldcrest_format::Checkpoint;

use super::faults::{Reads, Verdict, judged};
use super::random::Random;
use super::script::{Ending, Script};
use super::streaming::least_bytes;

/// Tokens of a stream.
const TOKENS: usize = 64;

/// Tokens that all streams begin with, so that a session may go on as another one.
const SHARED_TOKENS: usize = 24;

const STREAMS: usize = 3;

/// Things that happen to the sessions of one engine.
const STEPS: usize = 15;

/// Of so many reads two fail and one stops early, in rounds in which any does.
const READS_PER_FAULT: u64 = 100;

/// A sequence, and what the model makes of it.
struct Stream {
    ids: Vec<u32>,
    /// A hash of every row's logits.
    rows: Vec<u64>,
}

/// What happened so far.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub rounds: usize,
    /// Rows whose logits were compared.
    pub rows: usize,
    pub cancelled: usize,
    pub interrupted: usize,
    /// Reads that might have failed.
    pub judged: usize,
    /// Calls that ended because a read failed.
    pub failed: usize,
    pub forks: usize,
    pub batches: usize,
    pub hits: u64,
    pub misses: u64,
    pub bytes_read: u64,
}

/// A model and what is known of it.
pub struct Soak {
    checkpoint: Checkpoint,
    /// With all experts in memory.
    resident: Engine,
    /// The same file as `checkpoint`, of which reads fail.
    failing: Checkpoint,
    reads: Arc<Reads>,
    /// For the logits of two feeds; kept, so that memory does not grow and shrink with the rows that happen to be compared.
    logits: [Vec<f32>; 2],
    random: Random,
    /// What may be streamed, with the memory that the largest takes of what is read at once.
    kinds: Vec<(Streamed, usize)>,
    /// Of all layers.
    experts: usize,
    pub tally: Tally,
}

impl Soak {
    pub fn new(model: &Path, seed: u64) -> Result<Soak, OpenError> {
        let checkpoint = Checkpoint::open(model)?;
        let reads = Arc::default();
        let engine = Engine::open(&checkpoint, EngineOptions::default())?;
        let most_logits = TOKENS * engine.spec().vocabulary;
        Ok(Soak {
            logits: [0, 1].map(|_| Vec::with_capacity(most_logits)),
            failing: judged(Checkpoint::open(model)?, &reads),
            kinds: [Streamed::Experts, Streamed::All]
                .into_iter()
                .filter_map(|streamed| Some((streamed, least_bytes(&checkpoint, streamed)?)))
                .collect(),
            experts: engine.plan().experts.iter().map(|bank| bank.count).sum(),
            checkpoint,
            reads,
            resident: engine,
            random: Random(seed),
            tally: Tally::default(),
        })
    }

    /// Opens an engine with any memory for experts, and lets anything happen to two sessions.
    ///
    /// # Panics
    /// If anything is not as it should be.
    pub fn round(&mut self) {
        let streams = streams(&mut self.random, &self.resident);
        self.reads.judge_by(|_| Verdict::Done);
        let is_failing = self.random.below(4) == 0;
        let checkpoint = if is_failing { &self.failing } else { &self.checkpoint };
        let kind = self.kinds[self.random.below(self.kinds.len())];
        let options = options(&mut self.random, kind, self.experts);
        let engine = Engine::open(checkpoint, options).unwrap_or_else(|error| panic!("{error}"));
        if is_failing {
            let seed = self.random.next();
            self.reads
                .judge_by(move |read| match Random(seed ^ read as u64).next() % READS_PER_FAULT {
                    0 => Verdict::Error,
                    1 => Verdict::End,
                    2 => Verdict::Half,
                    _ => Verdict::Done,
                });
        }
        let walker = || Walker {
            session: engine.session(TOKENS).unwrap_or_else(|error| panic!("{error}")),
            stream: 0,
        };
        let mut round = Round {
            walkers: [walker(), walker()],
            engine: &engine,
            streams: &streams,
            logits: &mut self.logits,
            random: &mut self.random,
            is_failing,
            tally: &mut self.tally,
        };
        for _ in 0..STEPS {
            round.step();
        }
        if is_failing {
            self.tally.judged += self.reads.count();
        }
        let counters = engine.stream_counters().expect("experts are read when they are wanted");
        self.tally.rounds += 1;
        self.tally.hits += counters.hits;
        self.tally.misses += counters.misses;
        self.tally.bytes_read += counters.bytes_read;
    }
}

fn streams(random: &mut Random, resident: &Engine) -> Vec<Stream> {
    let vocabulary = resident.spec().vocabulary;
    let shared = random.ids(SHARED_TOKENS, vocabulary);
    let streams = (0..STREAMS).map(|_| {
        let own = random.ids(TOKENS - SHARED_TOKENS, vocabulary);
        Stream::of([&shared[..], &own].concat(), resident)
    });
    streams.collect()
}

impl Stream {
    fn of(ids: Vec<u32>, engine: &Engine) -> Stream {
        let mut session = engine.session(TOKENS).unwrap_or_else(|error| panic!("{error}"));
        let mut rows = Vec::new();
        for ids in ids.chunks(16) {
            let mut logits = vec![0.0; ids.len() * engine.spec().vocabulary];
            let chunk = Chunk {
                start: session.position(),
                ids,
                want: Want::All,
            };
            session
                .feed(chunk, &mut logits)
                .unwrap_or_else(|error| panic!("{error}"));
            rows.extend(logits.chunks_exact(engine.spec().vocabulary).map(hash));
        }
        Stream { ids, rows }
    }
}

fn hash(row: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    row.iter().for_each(|x| hasher.write_u32(x.to_bits()));
    hasher.finish()
}

/// From room for a single expert, or for what else is read at once, to more than there are.
fn options(random: &mut Random, (streamed, least_bytes): (Streamed, usize), experts: usize) -> EngineOptions {
    let fit = match random.below(4) {
        0 => 1,
        1 => 1 + random.below(8),
        _ => 1 + random.below(experts + 1),
    };
    EngineOptions {
        threads: Some(1 + random.below(2)),
        max_rows: [1, 3, 8, 64][random.below(4)],
        streaming: Some(StreamOptions {
            streamed,
            bytes: fit * least_bytes,
            eviction: [Eviction::LeastFrequent, Eviction::LeastRecent][random.below(2)],
            readers: [1, 2, 3, 8][random.below(4)],
        }),
        ..EngineOptions::default()
    }
}

/// A session on its way along a stream.
struct Walker {
    session: Session,
    stream: usize,
}

struct Round<'a> {
    engine: &'a Engine,
    streams: &'a [Stream],
    logits: &'a mut [Vec<f32>; 2],
    random: &'a mut Random,
    is_failing: bool,
    walkers: [Walker; 2],
    tally: &'a mut Tally,
}

/// Some tokens of a stream, and those of their rows that are compared.
struct Part<'a> {
    stream: &'a Stream,
    start: usize,
    ids: &'a [u32],
    rows: Vec<usize>,
    logits: Vec<f32>,
}

impl Part<'_> {
    fn chunk(&mut self) -> (Chunk<'_>, &mut [f32]) {
        let Part {
            start,
            ids,
            rows,
            logits,
            ..
        } = self;
        let want = Want::Rows(rows);
        (
            Chunk {
                start: *start,
                ids,
                want,
            },
            logits,
        )
    }

    /// Compares what was computed, and returns the number of rows.
    fn compare(&self) -> usize {
        let Part {
            stream, start, rows, ..
        } = self;
        let vocabulary = self.logits.len() / rows.len().max(1);
        for (row, logits) in rows.iter().zip(self.logits.chunks_exact(vocabulary.max(1))) {
            let position = start + row;
            assert_eq!(hash(logits), stream.rows[position], "logits at position {position}");
        }
        rows.len()
    }
}

impl<'a> Round<'a> {
    fn step(&mut self) {
        let which = self.random.below(2);
        match self.random.below(10) {
            0 => self.rewind(which),
            1 => self.fork(which),
            2 => self.cancel(which),
            3 => self.interrupt(which),
            4 => self.feed_both(),
            _ => self.feed(which, &mut Script::default(), None),
        }
    }

    /// The next tokens of a session: one, some or many. At the end of its stream it goes back first. The memory for logits is to be given
    /// back.
    fn next_part(&mut self, which: usize) -> Part<'a> {
        if self.walkers[which].session.position() == TOKENS {
            self.rewind_to(which, 0);
        }
        let stream = &self.streams[self.walkers[which].stream];
        let start = self.walkers[which].session.position();
        let most = [1, 8, TOKENS][self.random.below(3)].min(TOKENS - start);
        let tokens = 1 + self.random.below(most);
        let rows: Vec<usize> = (0..tokens).filter(|_| self.random.below(2) == 0).collect();
        let mut logits = std::mem::take(&mut self.logits[which]);
        logits.clear();
        logits.resize(rows.len() * self.engine.spec().vocabulary, f32::NAN);
        Part {
            stream,
            start,
            ids: &stream.ids[start..start + tokens],
            rows,
            logits,
        }
    }

    fn script(&self) -> Script<'static> {
        Script {
            ops_per_call: self.engine.plan().ops.len(),
            ..Script::default()
        }
    }

    fn cancel(&mut self, which: usize) {
        let cancel = AtomicBool::new(false);
        let mut script = Script {
            cancel: Some(&cancel),
            cancel_during: Some(self.random.below(4)),
            ..self.script()
        };
        self.feed(which, &mut script, Some(&cancel));
    }

    fn interrupt(&mut self, which: usize) {
        let script = self.script();
        let mut script = Script {
            interrupt_after: Some(self.random.below(3 * script.ops_per_call)),
            ..script
        };
        self.feed(which, &mut script, None);
    }

    /// Feeds under a script, whose end the contract foretells, unless a read fails.
    fn feed(&mut self, which: usize, script: &mut Script, cancel: Option<&AtomicBool>) {
        let mut part = self.next_part(which);
        let max_rows = self.engine.options().max_rows;
        let ending = script.ending(part.ids.len().div_ceil(max_rows));
        let (start, tokens) = (part.start, part.ids.len());
        let (chunk, logits) = part.chunk();
        let watch = Watch {
            cancel,
            probe: Some(script),
        };
        let session = &mut self.walkers[which].session;
        let result = session.feed_watched(chunk, logits, watch);
        let fed = session.position() - start;
        let after = |calls: usize| tokens.min(calls * max_rows);
        match (ending, result) {
            (Ending::Done, Ok(())) => {
                assert_eq!(fed, tokens);
                self.tally.rows += part.compare();
            }
            (Ending::Cancelled { calls }, Err(FeedError::Cancelled { position })) => {
                assert_eq!((position, fed), (start + fed, after(calls)));
                self.tally.cancelled += 1;
            }
            (
                Ending::Interrupted { calls },
                Err(FeedError::Forward {
                    position,
                    source: CpuError::Interrupted(_),
                }),
            ) => {
                assert_eq!((position, fed), (start + fed, after(calls)));
                self.tally.interrupted += 1;
            }
            (_, Err(FeedError::Forward { position, source })) => {
                assert!(
                    self.is_failing && matches!(source, CpuError::Weights { .. }),
                    "{source}"
                );
                assert!(position == start + fed && fed.is_multiple_of(max_rows) && fed < tokens);
                self.tally.failed += 1;
            }
            (ending, result) => panic!("{result:?} instead of {ending:?}"),
        }
        self.logits[which] = part.logits;
    }

    /// Feeds both in one batch.
    fn feed_both(&mut self) {
        let mut parts = [self.next_part(0), self.next_part(1)];
        let mut feeds: Vec<BatchFeed> = Vec::new();
        for (walker, part) in self.walkers.iter_mut().zip(&mut parts) {
            let (chunk, logits) = part.chunk();
            let session = &mut walker.session;
            feeds.push(BatchFeed { session, chunk, logits });
        }
        match self.engine.feed_batch(&mut feeds) {
            Ok(()) => self.tally.rows += parts.iter().map(Part::compare).sum::<usize>(),
            Err(BatchError::Forward { source, .. }) => {
                assert!(
                    self.is_failing && matches!(source, CpuError::Weights { .. }),
                    "{source}"
                );
                self.tally.failed += 1;
            }
            Err(other) => panic!("{other}"),
        }
        self.tally.batches += 1;
        *self.logits = parts.map(|part| part.logits);
    }

    /// The other session becomes a fork, which may go on as another stream.
    fn fork(&mut self, which: usize) {
        let Walker { session, stream } = &self.walkers[which];
        self.walkers[1 - which] = Walker {
            session: session.fork(),
            stream: *stream,
        };
        self.change_stream(1 - which);
        self.tally.forks += 1;
    }

    fn rewind(&mut self, which: usize) {
        let position = self.walkers[which].session.position();
        let length = self.random.below(position + 1);
        self.rewind_to(which, length);
    }

    fn rewind_to(&mut self, which: usize, length: usize) {
        match self.walkers[which].session.rewind(length) {
            Ok(()) => self.change_stream(which),
            // Windows and recurrent memories do not go back everywhere.
            Err(error) => assert!(matches!(error, RewindError::Gone { .. }), "{error}"),
        }
    }

    fn change_stream(&mut self, which: usize) {
        if self.walkers[which].session.position() <= SHARED_TOKENS {
            self.walkers[which].stream = self.random.below(STREAMS);
        }
    }
}

/// The slope of the line through some points that leaves the least squares.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (x_mean, y_mean) = (mean(&|point| point.0), mean(&|point| point.1));
    let covariance = mean(&|(x, y)| (x - x_mean) * (y - y_mean));
    covariance / mean(&|(x, _)| (x - x_mean) * (x - x_mean))
}
