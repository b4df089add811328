//! Runs a test.

use std::time::{Duration, Instant};

use goldcrest_engine::{BatchFeed, Chunk, Cost, Counters, Engine, PeakProbe, Peaks, Session, Want};

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
    let cost = Profile::new(engine, &runner.run_counting()?).total().cost;
    let mut peaks = || probe.as_mut().map(|probe| engine.measure_peaks(probe)).transpose();
    let before = peaks()?;
    let mut rates = Vec::with_capacity(args.repetitions);
    for _ in 0..args.repetitions {
        let time = runner.run()?;
        rates.push(rate((case.tokens() * case.sequences()) as u64, time));
    }
    let profile = match args.profile {
        true => Some(Profile::new(engine, &runner.run_counting()?)),
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
    })
}

/// Runs a case again and again.
struct Runner<'a> {
    engine: &'a Engine,
    case: Case,
    /// A sequence of the case's depth, forked for every run.
    base: Session,
    /// What every sequence is fed.
    ids: Vec<u32>,
    /// One row a sequence.
    logits: Vec<f32>,
}

impl<'a> Runner<'a> {
    fn new(engine: &'a Engine, case: Case) -> anyhow::Result<Runner<'a>> {
        let vocabulary = engine.spec().vocabulary;
        let mut ids = some_ids(case.positions(), vocabulary);
        let mut base = engine.session(case.positions())?;
        if case.depth > 0 {
            base.feed(
                Chunk {
                    start: 0,
                    ids: &ids[..case.depth],
                    want: Want::Nothing,
                },
                &mut [],
            )?;
        }
        ids.drain(..case.depth);
        Ok(Runner {
            engine,
            case,
            base,
            ids,
            logits: vec![0.0; vocabulary * case.sequences()],
        })
    }

    /// The time that a run takes.
    fn run(&mut self) -> anyhow::Result<Duration> {
        let mut sessions = self.sessions();
        let started = Instant::now();
        self.feed(&mut sessions)?;
        Ok(started.elapsed())
    }

    /// What a run counts.
    fn run_counting(&mut self) -> anyhow::Result<Counters> {
        let mut sessions = self.sessions();
        // Every call has a row of the first sequence, and counts in whole for it.
        let Some(first) = sessions.first_mut() else {
            return Ok(Counters::default());
        };
        first.count();
        self.feed(&mut sessions)?;
        Ok(sessions
            .first()
            .and_then(Session::counters)
            .cloned()
            .unwrap_or_default())
    }

    fn sessions(&self) -> Vec<Session> {
        (0..self.case.sequences()).map(|_| self.base.fork()).collect()
    }

    fn feed(&mut self, sessions: &mut [Session]) -> anyhow::Result<()> {
        let chunk_tokens = match self.case.work {
            Work::Prompt(tokens) => tokens,
            Work::Reply { .. } => 1,
        };
        let vocabulary = self.engine.spec().vocabulary;
        for ids in self.ids.chunks(chunk_tokens) {
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

/// Ids spread over the vocabulary, the same in every run. Speed depends on their number alone, but for the choice of experts.
fn some_ids(tokens: usize, vocabulary: usize) -> Vec<u32> {
    /// A prime, so that neighbours lie far apart.
    const STEP: usize = 7919;
    (1..=tokens)
        .map(|index| (index * STEP % vocabulary.max(1)) as u32)
        .collect()
}
