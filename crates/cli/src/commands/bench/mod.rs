//! `bench`: tokens a second of prompts and replies, what that is of the machine, and where the time goes.

mod case;
mod load;
mod measure;
mod profile;
mod report;
mod spread;

use std::io::{Write, stdout};
use std::time::Instant;

use anyhow::Context;
use goldcrest_engine::{EngineOptions, PROBE_BYTES, Sequences};
use goldcrest_format::Checkpoint;
use goldcrest_model::read_spec;
use serde_json::Value;

use crate::args::BenchArgs;
use crate::memory::{Beside, Need};
use crate::model::locate;
use crate::output::{UsageError, size, tell};
use crate::router_stats;
use case::Case;
use load::load;
use measure::measure_all;

pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let path = locate(&args.model)?;
    let started = Instant::now();
    let checkpoint = Checkpoint::open(&path)?;
    let opening = started.elapsed();
    let cannot_run = || format!("cannot run {}", path.display());
    let spec = read_spec(&checkpoint).with_context(cannot_run)?;
    let cases = Case::all(args, spec.context).map_err(|error| UsageError(error.to_string()))?;
    let sequences = cases.iter().map(Case::sequences).max().unwrap_or(1);
    let thread_counts = match args.threads[..] {
        [] => vec![None],
        _ => args.threads.iter().copied().map(Some).collect(),
    };
    let stats = args.routers.begin(&checkpoint)?;
    let mut setting = Value::Null;
    let mut loads = Vec::new();
    let mut measured = Vec::new();
    for threads in thread_counts {
        let options = args.arithmetic.options(threads);
        // One call has room for a row of each sequence.
        let max_rows = options.max_rows.max(sequences);
        let options = EngineOptions { max_rows, ..options };
        let capacity = cases.iter().map(Case::positions).max().unwrap_or(1);
        // What comes before is kept beside those that go on from it.
        let count = sequences + usize::from(cases.iter().any(|case| case.depth > 0));
        let need = Need {
            sequences: Sequences { count, capacity },
            beside: Beside {
                name: "probe of the machine",
                bytes: if args.roofline { PROBE_BYTES as u64 } else { 0 },
            },
        };
        let memory = &args.arithmetic.memory;
        let options = memory.fit(&checkpoint, options, || Ok(need)).with_context(cannot_run)?;
        let (engine, loaded) = load(&checkpoint, opening, options).with_context(cannot_run)?;
        loads.push(loaded);
        let weights = size(loaded.weight_bytes as u64);
        tell(format_args!(
            "{weights} of weights, {} threads, {}",
            engine.threads(),
            engine.isa()
        ));
        measured.extend(measure_all(args, &engine, &cases)?);
        setting = report::setting(args, &engine);
    }
    router_stats::write_json(stats, &report::routers_json(&setting, &measured))?;
    let mut out = stdout().lock();
    if args.json {
        let report = report::as_json(setting, &loads, &measured);
        writeln!(out, "{report:#}")?;
    } else {
        report::write_tables(&mut out, &measured)?;
        report::write_loads(&mut out, &loads)?;
    }
    Ok(())
}
