//! Runs a test.

use std::ops::Range;
use std::time::{Duration, Instant};

use goldcrest_engine::{
    BatchFeed, Chunk, Cost, Counters, Engine, PeakProbe, Peaks, RouterCounters, RouterCounting, Session,
    StreamCounters, Want,
};

use super::case::{Case, Work};
use super::profile::Profile;
use super::spread::Spread;
use crate::args::BenchArgs;
use crate::output::rate;

/// One test, measured.
pub struct Measured {
    pub case: Case,
    pub threads: usize,
    /// Tokens a second, of all sequences together.
    pub rates: Spread,
    /// Of one run.
    pub cost: Cost,
    /// Right before and after.
    pub peaks: Option<[Peaks; 2]>,
    pub profile: Option<Profile>,
    /// Of all timed runs, if that is to be told.
    pub routers: Option<Vec<RouterCounters>>,
    /// Of all timed runs, where experts are read when they are wanted.
    pub experts: Option<ExpertUse>,
}

/// What became of the experts that runs wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertUse {
    /// That were in memory or on their way there, of those wanted.
    pub hit_share: f64,
    /// From files, a token.
    pub bytes_read_per_token: f64,
    /// In which threads waited, of the time of the runs.
    pub waited_share: f64,
}

impl ExpertUse {
    /// Between two readings of the counters, in which so many tokens took so long.
    fn between(before: &StreamCounters, after: &StreamCounters, tokens: usize, time: Duration) -> ExpertUse {
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        ExpertUse {
            hit_share: hits as f64 / (hits + misses).max(1) as f64,
            bytes_read_per_token: (after.bytes_read - before.bytes_read) as f64 / tokens as f64,
            waited_share: (after.waited - before.waited).as_secs_f64() / time.as_secs_f64(),
        }
    }
}

impl Measured {
    /// Runs a second, at the median.
    fn runs_per_s(&self) -> f64 {
        self.rates.median() / (self.case.tokens() * self.case.sequences()) as f64
    }

    /// Bytes of weights that were read a second.
    pub fn weight_bytes_per_s(&self) -> f64 {
        self.cost.weight_bytes as f64 * self.runs_per_s()
    }

    /// Bytes of keys, values and recurrent memories that were read and written a second.
    pub fn state_bytes_per_s(&self) -> f64 {
        self.cost.state_bytes as f64 * self.runs_per_s()
    }

    pub fn operations_per_s(&self) -> f64 {
        self.cost.operations as f64 * self.runs_per_s()
    }

    /// What the machine could do meanwhile.
    pub fn mean_peaks(&self) -> Option<Peaks> {
        let [before, after] = self.peaks?;
        let mean = |of: fn(&Peaks) -> f64| (of(&before) + of(&after)) / 2.0;
        Some(Peaks {
            read_bytes_per_s: mean(|peaks| peaks.read_bytes_per_s),
            int8_ops_per_s: mean(|peaks| peaks.int8_ops_per_s),
            f32_ops_per_s: mean(|peaks| peaks.f32_ops_per_s),
        })
    }
}

/// Measures all cases on one engine.
pub fn measure_all(args: &BenchArgs, engine: &Engine, cases: &[Case]) -> anyhow::Result<Vec<Measured>> {
    let mut probe = match args.roofline {
        true => Some(engine.peak_probe()?),
        false => None,
    };
    cases
        .iter()
        .map(|case| measure(args, engine, *case, &mut probe))
        .collect()
}

fn measure(args: &BenchArgs, engine: &Engine, case: Case, probe: &mut Option<PeakProbe>) -> anyhow::Result<Measured> {
    let mut runner = Runner::new(engine, case)?;
    // The first run, which also brings memory in, tells what a run costs; its time does not count.
    let (_, counters) = runner.run(true)?;
    let cost = Profile::new(engine, &counters).total().cost;
    let mut peaks = || probe.as_mut().map(|probe| engine.measure_peaks(probe)).transpose();
    let before = peaks()?;
    let experts_before = engine.stream_counters();
    let tokens = case.tokens() * case.sequences();
    let mut total = Duration::ZERO;
    let mut routers = args.routers.is_given().then(|| RouterCounting::new(engine));
    let mut rates = Vec::with_capacity(args.repetitions);
    for _ in 0..args.repetitions {
        let (time, counters) = runner.run(routers.is_some())?;
        routers.iter_mut().for_each(|routers| routers.add(&counters));
        total += time;
        rates.push(rate(tokens as u64, time));
    }
    let experts = experts_before.zip(engine.stream_counters());
    let experts = experts.map(|(before, after)| ExpertUse::between(&before, &after, tokens * args.repetitions, total));
    let routers = routers.map(|routers| routers.counters());
    let profile = match args.profile {
        true => Some(runner.profile()?),
        false => None,
    };
    let after = peaks()?;
    Ok(Measured {
        case,
        threads: engine.threads(),
        rates: Spread::new(rates),
        cost,
        peaks: before.zip(after).map(|(before, after)| [before, after]),
        profile,
        routers,
        experts,
    })
}

/// Runs a case again and again.
struct Runner<'a> {
    engine: &'a Engine,
    case: Case,
    /// A sequence of the case's depth, forked for every run.
    base: Session,
    /// Ids that were taken so far.
    taken: usize,
    /// One row a sequence.
    logits: Vec<f32>,
}

impl<'a> Runner<'a> {
    fn new(engine: &'a Engine, case: Case) -> anyhow::Result<Runner<'a>> {
        let vocabulary = engine.spec().vocabulary;
        let ids = some_ids(0..case.depth, vocabulary);
        let mut base = engine.session(case.positions())?;
        if case.depth > 0 {
            base.feed(
                Chunk {
                    start: 0,
                    ids: &ids,
                    want: Want::Nothing,
                },
                &mut [],
            )?;
        }
        Ok(Runner {
            engine,
            case,
            base,
            taken: case.depth,
            logits: vec![0.0; vocabulary * case.sequences()],
        })
    }

    /// The time that a run takes, and what it counts, if it does.
    fn run(&mut self, counts: bool) -> anyhow::Result<(Duration, Counters)> {
        let ids = self.take_ids();
        let mut sessions = self.sessions();
        // Every call has a row of the first sequence, and counts in whole for it.
        if let Some(first) = sessions.first_mut().filter(|_| counts) {
            first.count();
        }
        let started = Instant::now();
        self.feed(&mut sessions, &ids)?;
        let time = started.elapsed();
        let counters = sessions.first().and_then(Session::counters).cloned();
        Ok((time, counters.unwrap_or_default()))
    }

    /// The profile of a run.
    fn profile(&mut self) -> anyhow::Result<Profile> {
        let mut routers = RouterCounting::new(self.engine);
        let (_, counters) = self.run(true)?;
        routers.add(&counters);
        Ok(Profile {
            routers: routers.counters(),
            ..Profile::new(self.engine, &counters)
        })
    }

    /// What every sequence of a run is fed, other ids in every run: experts that were chosen last time are not to be at hand for that
    /// reason.
    fn take_ids(&mut self) -> Vec<u32> {
        let first = self.taken;
        self.taken += self.case.tokens();
        some_ids(first..self.taken, self.engine.spec().vocabulary)
    }

    fn sessions(&self) -> Vec<Session> {
        (0..self.case.sequences()).map(|_| self.base.fork()).collect()
    }

    fn feed(&mut self, sessions: &mut [Session], ids: &[u32]) -> anyhow::Result<()> {
        let chunk_tokens = match self.case.work {
            Work::Prompt(tokens) => tokens,
            Work::Reply { .. } => 1,
        };
        let vocabulary = self.engine.spec().vocabulary;
        for ids in ids.chunks(chunk_tokens) {
            let with_logits = sessions.iter_mut().zip(self.logits.chunks_exact_mut(vocabulary));
            let mut feeds: Vec<BatchFeed> = with_logits
                .map(|(session, logits)| BatchFeed {
                    chunk: Chunk {
                        start: session.position(),
                        ids,
                        want: Want::Last,
                    },
                    session,
                    logits,
                })
                .collect();
            self.engine.feed_batch(&mut feeds)?;
        }
        Ok(())
    }
}

/// Ids spread over the vocabulary, the same ones whenever the program runs. Speed depends on their number alone, but for the choice of
/// experts.
fn some_ids(indices: Range<usize>, vocabulary: usize) -> Vec<u32> {
    /// A prime, so that neighbours lie far apart.
    const STEP: usize = 7919;
    indices
        .map(|index| ((index + 1) * STEP % vocabulary.max(1)) as u32)
        .collect()
}
