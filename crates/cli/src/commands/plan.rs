//! `plan`: what a model takes of memory.

use std::io::{Write, stdout};

use anyhow::Context;
use goldcrest_engine::{Fit, Sequences};
use goldcrest_model::read_spec;
use serde_json::{Map, Value, json};

use crate::memory::{LIMITED_CONTEXT, PlanArgs};
use crate::model::open_checkpoint;
use crate::output::size;

pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let (path, checkpoint) = open_checkpoint(&args.model)?;
    let cannot_run = || format!("cannot run {}", path.display());
    let trained = read_spec(&checkpoint).with_context(cannot_run)?.context;
    let sequences = Sequences {
        count: 1,
        capacity: args.context.unwrap_or(trained.min(LIMITED_CONTEXT)),
    };
    let options = args.engine.options();
    let fit = match args.engine.arithmetic.memory.memory {
        None => Fit::of(&checkpoint, &options, sequences),
        Some(limit) => Fit::within(limit.bytes()?, &checkpoint, &options, sequences),
    }
    .with_context(cannot_run)?;
    let mut out = stdout().lock();
    if args.json {
        writeln!(out, "{:#}", as_json(&fit, sequences))?;
        return Ok(());
    }
    for (name, bytes) in fit.parts() {
        writeln!(out, "{name:<26}{:>9}", size(bytes))?;
    }
    writeln!(out, "{:<26}{:>9}", "all", size(fit.sum()))?;
    writeln!(
        out,
        "for {} positions, {} rows a call{}",
        sequences.capacity,
        fit.options.max_rows,
        match fit.options.experts {
            None => "",
            Some(_) => "; experts are read when they are wanted",
        }
    )?;
    Ok(())
}

fn as_json(fit: &Fit, sequences: Sequences) -> Value {
    let parts = fit
        .parts()
        .map(|(name, bytes)| (name.replace([' ', ','], "_").replace("__", "_"), bytes.into()));
    let parts: Map<String, Value> = parts.into_iter().collect();
    json!({
        "bytes": parts,
        "all_bytes": fit.sum(),
        "context": sequences.capacity,
        "max_rows": fit.options.max_rows,
        "reads_experts": fit.options.experts.is_some(),
    })
}
