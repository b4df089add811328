//! `plan`: what a model takes of memory, and how fast it would be.

use std::io::{self, Write, stdout};

use anyhow::Context;
use goldcrest_engine::{Fit, PROBE_BYTES, Predictor, Sequences, Speeds, Streamed, available_bytes};
use goldcrest_format::Checkpoint;
use goldcrest_model::read_spec;
use serde_json::{Map, Value, json};

use crate::memory::{LIMITED_CONTEXT, Limit, PlanArgs};
use crate::model::open_checkpoint;
use crate::output::{note, size};

/// Tokens of the prompt whose speed is predicted, if the context has room for them.
const PROMPT_TOKENS: usize = 512;
/// Memory without which the machine is not probed.
const PROBING_BYTES: u64 = PROBE_BYTES as u64 + (64 << 20);
const GIGA: f64 = 1e9;

pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let (path, checkpoint) = open_checkpoint(&args.model)?;
    let cannot_run = || format!("cannot run {}", path.display());
    let trained = read_spec(&checkpoint).with_context(cannot_run)?.context;
    let sequences = Sequences {
        count: 1,
        capacity: args.context.unwrap_or(trained.min(LIMITED_CONTEXT)),
    };
    let options = args.engine.options();
    let limit = args.engine.arithmetic.memory.memory.map(Limit::bytes).transpose()?;
    let fit = match limit {
        None => Fit::of(&checkpoint, &options, sequences),
        Some(limit) => Fit::within(limit, &checkpoint, &options, sequences),
    }
    .with_context(cannot_run)?;
    let predictor = Predictor::new(&checkpoint, &fit.options).with_context(cannot_run)?;
    let speeds = match args.no_probe {
        true => None,
        false => measure(&predictor, &checkpoint, limit).with_context(cannot_run)?,
    };
    let outlook = Outlook {
        predictor,
        speeds,
        prompt: PROMPT_TOKENS.min(sequences.capacity),
    };
    let mut out = stdout().lock();
    match args.json {
        true => writeln!(out, "{:#}", as_json(&fit, sequences, &outlook))?,
        false => {
            write_sizes(&mut out, &fit, sequences)?;
            outlook.write(&mut out)?;
        }
    }
    Ok(())
}

/// What the machine can do; none if there is not even the memory to find out.
fn measure(predictor: &Predictor, checkpoint: &Checkpoint, limit: Option<u64>) -> anyhow::Result<Option<Speeds>> {
    let most = limit.into_iter().chain(available_bytes()).min();
    if most.is_some_and(|most| most < PROBING_BYTES) {
        note(format_args!(
            "no speed is predicted: to measure the machine takes {} MiB of memory",
            PROBING_BYTES >> 20
        ));
        return Ok(None);
    }
    Ok(Some(predictor.measure(checkpoint)?))
}

fn write_sizes(out: &mut impl Write, fit: &Fit, sequences: Sequences) -> io::Result<()> {
    for (name, bytes) in fit.parts() {
        writeln!(out, "{name:<26}{:>9}", size(bytes))?;
    }
    writeln!(out, "{:<26}{:>9}", "all", size(fit.sum()))?;
    writeln!(
        out,
        "for {} positions, {} rows a call{}",
        sequences.capacity,
        fit.options.max_rows,
        match fit.options.streaming.map(|options| options.streamed) {
            None => "",
            Some(Streamed::Experts) => "; experts are read when they are wanted",
            Some(Streamed::All) => "; weights are read when they are wanted",
        }
    )
}

/// What to expect of speed.
struct Outlook {
    predictor: Predictor,
    /// None: nobody measured.
    speeds: Option<Speeds>,
    /// Tokens.
    prompt: usize,
}

impl Outlook {
    /// Tokens a second of a reply and of a prompt.
    fn rates(&self, speeds: &Speeds) -> [f64; 2] {
        [
            self.predictor.decode_tokens_per_s(speeds),
            self.predictor.prefill_tokens_per_s(speeds, self.prompt),
        ]
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let experts = self.predictor.experts();
        if let Some(experts) = experts {
            writeln!(
                out,
                "experts: {} each in the file, {} of {} stay in memory",
                size(experts.bytes),
                experts.kept,
                experts.count
            )?;
        }
        let missing = self.predictor.products_missing();
        if missing > 0.0 {
            writeln!(
                out,
                "other weights: {:.0} % of them are read for every call",
                missing * 100.0
            )?;
        }
        let Some(speeds) = self.speeds else { return Ok(()) };
        write!(out, "measured: memory {}/s", size(speeds.peaks.read_bytes_per_s as u64))?;
        if let Some(disk) = speeds.disk_bytes_per_s {
            write!(out, ", the file past the page cache {}/s", size(disk as u64))?;
        }
        // A slow disk makes tokens that take many seconds.
        let [decode, prefill] = self.rates(&speeds).map(|rate| match rate < 1.0 {
            true => format!("{rate:.3}"),
            false => format!("{rate:.1}"),
        });
        writeln!(
            out,
            "\npredicted: a reply {decode} tok/s, a prompt of {} {prefill} tok/s",
            self.prompt
        )?;
        if experts.is_some_and(|experts| experts.kept < experts.count) {
            writeln!(
                out,
                "that is if tokens choose experts evenly: real ones repeat themselves, and are faster"
            )?;
        }
        Ok(())
    }
}

fn as_json(fit: &Fit, sequences: Sequences, outlook: &Outlook) -> Value {
    let parts = fit
        .parts()
        .map(|(name, bytes)| (name.replace([' ', ','], "_").replace("__", "_"), bytes.into()));
    let parts: Map<String, Value> = parts.into_iter().collect();
    let probe = outlook.speeds.map(|speeds| {
        json!({
            "read_gb_per_s": speeds.peaks.read_bytes_per_s / GIGA,
            "int8_gop_per_s": speeds.peaks.int8_ops_per_s / GIGA,
            "f32_gop_per_s": speeds.peaks.f32_ops_per_s / GIGA,
            "disk_gb_per_s": speeds.disk_bytes_per_s.map(|rate| rate / GIGA),
        })
    });
    let predicted = outlook.speeds.map(|speeds| {
        let [decode, prefill] = outlook.rates(&speeds);
        json!({
            "decode_tokens_per_s": decode,
            "prefill_tokens_per_s": prefill,
            "prefill_tokens": outlook.prompt,
        })
    });
    json!({
        "bytes": parts,
        "all_bytes": fit.sum(),
        "context": sequences.capacity,
        "max_rows": fit.options.max_rows,
        "reads_experts": fit.options.streaming.is_some(),
        "experts": outlook.predictor.experts().map(|experts| json!({
            "bytes": experts.bytes,
            "count": experts.count,
            "kept": experts.kept,
        })),
        "products_missing": outlook.predictor.products_missing(),
        "probe": probe,
        "predicted": predicted,
    })
}
