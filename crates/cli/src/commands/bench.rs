//! `bench`: tokens a second of prompts and replies.

use std::io::{Write, stdout};
use std::time::{Duration, Instant};

use anyhow::Context;
use goldcrest_engine::{Chunk, Engine, OpKind, Session, Want};
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::model::open_checkpoint;
use crate::output::{rate, size, tell};

/// One test, measured.
struct Measured {
    /// `pp512`, `tg128`: as llama.cpp's users call them.
    name: String,
    tokens: usize,
    /// Tokens a second, ascending.
    rates: Vec<f64>,
    /// Weights that one forward call of one token reads, bytes; for replies alone.
    weight_bytes: Option<u64>,
}

pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let (path, checkpoint) = open_checkpoint(&args.model)?;
    let engine =
        Engine::open(&checkpoint, args.engine.options()).with_context(|| format!("cannot run {}", path.display()))?;
    let mut measured = Vec::new();
    if args.prompt > 0 {
        let rates = repeat(args, &engine, args.prompt, feed_whole)?;
        measured.push(Measured {
            name: format!("pp{}", args.prompt),
            tokens: args.prompt,
            rates,
            weight_bytes: None,
        });
    }
    if args.reply > 0 {
        let rates = repeat(args, &engine, args.reply, feed_singly)?;
        let weight_bytes = Some(weight_bytes_per_token(&engine)?);
        measured.push(Measured {
            name: format!("tg{}", args.reply),
            tokens: args.reply,
            rates,
            weight_bytes,
        });
    }
    let mut out = stdout().lock();
    if args.json {
        let tests: Vec<Value> = measured.iter().map(Measured::as_json).collect();
        let report = json!({
            "model": args.model.model,
            "family": engine.spec().family,
            "weight_bytes": engine.weight_bytes(),
            "threads": engine.threads(),
            "isa": engine.isa().to_string(),
            "activations": format!("{:?}", engine.activations()).to_lowercase(),
            "kv": engine.options().kv.name(),
            "repetitions": args.repetitions,
            "tests": tests,
        });
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    let (weights, threads) = (size(engine.weight_bytes() as u64), engine.threads());
    tell(format_args!(
        "{} of weights, {threads} threads, {}",
        weights,
        engine.isa()
    ));
    writeln!(
        out,
        "{:8} {:>10} {:>10} {:>10} {:>8}",
        "test", "tok/s", "min", "max", "GB/s"
    )?;
    for test in &measured {
        writeln!(out, "{test}")?;
    }
    Ok(())
}

impl Measured {
    fn median(&self) -> f64 {
        let half = self.rates.len() / 2;
        match (self.rates.get(half.wrapping_sub(1)), self.rates.get(half)) {
            (Some(low), Some(high)) if self.rates.len().is_multiple_of(2) => (low + high) / 2.0,
            (_, Some(middle)) => *middle,
            _ => 0.0,
        }
    }

    fn least(&self) -> f64 {
        self.rates.first().copied().unwrap_or(0.0)
    }

    fn most(&self) -> f64 {
        self.rates.last().copied().unwrap_or(0.0)
    }

    /// Gigabytes of weights read a second, at the median.
    fn weight_rate(&self) -> Option<f64> {
        self.weight_bytes.map(|bytes| bytes as f64 * self.median() / 1e9)
    }

    fn as_json(&self) -> Value {
        json!({
            "test": self.name,
            "tokens": self.tokens,
            "tokens_per_s": { "median": self.median(), "min": self.least(), "max": self.most(), "all": self.rates },
            "weight_gb_per_s": self.weight_rate(),
        })
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:8} {:>10.1} {:>10.1} {:>10.1}",
            self.name,
            self.median(),
            self.least(),
            self.most()
        )?;
        match self.weight_rate() {
            Some(rate) => write!(f, " {rate:>8.1}"),
            None => write!(f, " {:>8}", "-"),
        }
    }
}

type Test = fn(&mut Session, &[u32], &mut [f32]) -> anyhow::Result<()>;

/// Rates of a test over an empty context, ascending. The first run, which also brings memory in, is not counted.
fn repeat(args: &BenchArgs, engine: &Engine, tokens: usize, test: Test) -> anyhow::Result<Vec<f64>> {
    let ids = some_ids(tokens, engine.spec().vocabulary);
    let mut logits = vec![0.0; engine.spec().vocabulary];
    let mut rates = Vec::new();
    for counted in std::iter::once(false).chain(std::iter::repeat_n(true, args.repetitions)) {
        let mut session = engine.session(tokens)?;
        let started = Instant::now();
        test(&mut session, &ids, &mut logits)?;
        let time: Duration = started.elapsed();
        if counted {
            rates.push(rate(tokens as u64, time));
        }
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates)
}

fn feed_whole(session: &mut Session, ids: &[u32], logits: &mut [f32]) -> anyhow::Result<()> {
    Ok(session.feed(
        Chunk {
            start: session.position(),
            ids,
            want: Want::Last,
        },
        logits,
    )?)
}

fn feed_singly(session: &mut Session, ids: &[u32], logits: &mut [f32]) -> anyhow::Result<()> {
    for id in ids.chunks(1) {
        feed_whole(session, id, logits)?;
    }
    Ok(())
}

/// Ids spread over the vocabulary, the same in every run. Speed depends on their number alone.
fn some_ids(tokens: usize, vocabulary: usize) -> Vec<u32> {
    /// A prime, so that neighbours lie far apart.
    const STEP: usize = 7919;
    (1..=tokens)
        .map(|index| (index * STEP % vocabulary.max(1)) as u32)
        .collect()
}

/// Weights that a forward call of one token reads.
fn weight_bytes_per_token(engine: &Engine) -> anyhow::Result<u64> {
    let mut session = engine.session(1)?;
    session.count();
    let mut logits = vec![0.0; engine.spec().vocabulary];
    feed_whole(&mut session, &[0], &mut logits)?;
    let bytes = |kind| session.counters().map_or(0, |counters| counters.decode.op(kind).bytes);
    Ok(bytes(OpKind::MatMul) + bytes(OpKind::Embed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        let median = |rates: &[f64]| {
            Measured {
                name: "tg1".into(),
                tokens: 1,
                rates: rates.to_vec(),
                weight_bytes: Some(2_000_000_000),
            }
            .median()
        };
        assert_eq!(
            [median(&[1.0, 2.0, 9.0]), median(&[1.0, 2.0, 4.0, 9.0]), median(&[])],
            [2.0, 3.0, 0.0]
        );
    }
}
