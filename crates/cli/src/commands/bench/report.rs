//! What was measured, as tables and as JSON.

use std::io::{self, Write};

use goldcrest_engine::{Engine, PROBE_BYTES, Peaks, RouterCounters};
use serde_json::{Value, json};

use super::load::Load;
use super::measure::Measured;
use super::profile::{Profile, ProfileRow};
use crate::args::BenchArgs;
use crate::router_stats;

const GIGA: f64 = 1e9;
const MEGA: f64 = 1e6;

/// What was measured, and on what. Engines that differ in their threads have it in common.
pub fn setting(args: &BenchArgs, engine: &Engine) -> Value {
    json!({
        "model": args.model.model,
        "family": engine.spec().family,
        "activations": format!("{:?}", engine.activations()).to_lowercase(),
        "kv": engine.options().kv.name(),
        "isa": engine.isa().to_string(),
        "machine": machine(),
        "repetitions": args.repetitions,
    })
}

/// The processor as the system names it, and how many of its CPUs are ours.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| {
        let (key, name) = line.split_once(':')?;
        (key.trim() == "model name").then(|| name.trim().to_owned())
    });
    let name = name.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    match std::thread::available_parallelism() {
        Ok(cpus) => format!("{name}, {cpus} CPUs"),
        Err(_) => name,
    }
}

/// The setting with the results.
pub fn as_json(mut report: Value, loads: &[Load], measured: &[Measured]) -> Value {
    let mut threads: Vec<usize> = measured.iter().map(|test| test.threads).collect();
    threads.dedup();
    let probes = measured.iter().filter_map(|test| Some((test, test.peaks?)));
    let probes: Vec<Value> = probes
        .flat_map(|(test, peaks)| {
            ["before", "after"].into_iter().zip(peaks).map(|(when, peaks)| {
                let mut probe = peaks_json(&peaks);
                probe["test"] = json!(test.case.to_string());
                probe["threads"] = json!(test.threads);
                probe["when"] = json!(when);
                probe
            })
        })
        .collect();
    let profiles = measured.iter().filter_map(|test| Some((test, test.profile.as_ref()?)));
    let profiles: Vec<Value> = profiles.map(|(test, profile)| profile_json(test, profile)).collect();
    report["threads"] = json!(threads);
    report["load"] = loads.iter().map(load_json).collect();
    report["results"] = measured.iter().map(result_json).collect();
    report["probe"] = match probes.is_empty() {
        true => Value::Null,
        false => json!({ "memory_bytes": PROBE_BYTES, "runs": probes }),
    };
    report["profile"] = match profiles.is_empty() {
        true => Value::Null,
        false => json!(profiles),
    };
    report
}

/// What routers chose in each test.
pub fn routers_json(setting: &Value, measured: &[Measured]) -> Value {
    let tests = measured.iter().filter_map(|test| {
        Some(json!({
            "test": test.case.to_string(),
            "threads": test.threads,
            "layers": router_stats::as_json(test.routers.as_ref()?),
        }))
    });
    json!({ "model": setting["model"], "tests": tests.collect::<Vec<_>>() })
}

fn load_json(load: &Load) -> Value {
    json!({
        "threads": load.threads,
        "weight_bytes": load.weight_bytes,
        "max_rows": load.options.max_rows,
        "expert_memory_bytes": load.options.streaming.map(|experts| experts.bytes),
        "ready_s": load.ready.as_secs_f64(),
        "first_token_s": load.first_token.as_secs_f64(),
        "peak_bytes": load.peak_bytes,
    })
}

fn result_json(test: &Measured) -> Value {
    let peaks = test.mean_peaks();
    let share = |rate: f64, of: fn(&Peaks) -> f64| peaks.as_ref().map(|peaks| rate / of(peaks));
    json!({
        "test": test.case.to_string(),
        "threads": test.threads,
        "tokens": test.case.tokens(),
        "depth": test.case.depth,
        "sequences": test.case.sequences(),
        "tokens_per_s": test.rates.as_json(),
        "experts": test.experts.map(|experts| json!({
            "hit_share": experts.hit_share,
            "bytes_read_per_token": experts.bytes_read_per_token,
            "waited_share": experts.waited_share,
        })),
        "gb_per_s": test.weight_bytes_per_s() / GIGA,
        "state_gb_per_s": test.state_bytes_per_s() / GIGA,
        "gop_per_s": test.operations_per_s() / GIGA,
        "share_of_read": share(test.weight_bytes_per_s(), |peaks| peaks.read_bytes_per_s),
        "share_of_int8": share(test.operations_per_s(), |peaks| peaks.int8_ops_per_s),
        "share_of_f32": share(test.operations_per_s(), |peaks| peaks.f32_ops_per_s),
        "probe": peaks.as_ref().map(peaks_json),
    })
}

fn peaks_json(peaks: &Peaks) -> Value {
    json!({
        "read_gb_per_s": peaks.read_bytes_per_s / GIGA,
        "int8_gop_per_s": peaks.int8_ops_per_s / GIGA,
        "f32_gop_per_s": peaks.f32_ops_per_s / GIGA,
    })
}

fn profile_json(test: &Measured, profile: &Profile) -> Value {
    let peaks = test.mean_peaks();
    let row = |row: &ProfileRow| {
        let cost = row.counts.cost;
        json!({
            "name": row.name,
            "ops": row.ops.iter().map(|op| op.name()).collect::<Vec<_>>(),
            "runs": row.runs,
            "time_s": row.counts.time.as_secs_f64(),
            "share_of_time": profile.share(&row.counts),
            "weight_bytes": cost.weight_bytes,
            "state_bytes": cost.state_bytes,
            "buffer_bytes": cost.buffer_bytes,
            "operations": cost.operations,
            "arithmetic": row.arithmetic.name(),
            "gb_per_s": row.bytes_per_s() / GIGA,
            "gop_per_s": row.operations_per_s() / GIGA,
            "share_of_read": peaks.as_ref().map(|peaks| row.bytes_per_s() / peaks.read_bytes_per_s),
            "share_of_peak": peaks.as_ref().map(|peaks| row.operations_per_s() / row.arithmetic.peak(peaks)),
        })
    };
    let steps: Vec<Value> = profile.rows.iter().map(row).collect();
    json!({
        "test": test.case.to_string(),
        "threads": test.threads,
        "calls": profile.calls,
        "wall_s": profile.wall.as_secs_f64(),
        "share_of_ops": profile.share(&profile.total()),
        "steps": steps,
        "layers": router_stats::as_json(&profile.routers),
    })
}

/// One table of the tests, and one of each profile.
pub fn write_tables(out: &mut impl Write, measured: &[Measured]) -> io::Result<()> {
    let roofline = measured.iter().any(|test| test.peaks.is_some());
    write!(out, "{:16} {:>3}", "test", "thr")?;
    write!(out, " {:>9} {:>9} {:>9}", "tok/s", "min", "max")?;
    write!(out, " {:>7} {:>8}", "GB/s", "Gop/s")?;
    if roofline {
        write!(out, " {:>7} {:>7} {:>7}", "of read", "of int8", "of f32")?;
        write!(out, "   {:13} {:15} {:13}", "read GB/s", "int8 Gop/s", "f32 Gop/s")?;
    }
    writeln!(out)?;
    for test in measured {
        let rates = &test.rates;
        write!(out, "{:16} {:>3}", test.case.to_string(), test.threads)?;
        write!(
            out,
            " {:>9.1} {:>9.1} {:>9.1}",
            rates.median(),
            rates.min(),
            rates.max()
        )?;
        write!(out, " {:>7.2}", test.weight_bytes_per_s() / GIGA)?;
        write!(out, " {:>8.1}", test.operations_per_s() / GIGA)?;
        if let (Some(mean), Some([before, after])) = (test.mean_peaks(), test.peaks) {
            let operations = test.operations_per_s();
            write!(
                out,
                " {:>7}",
                percent(test.weight_bytes_per_s() / mean.read_bytes_per_s)
            )?;
            write!(out, " {:>7}", percent(operations / mean.int8_ops_per_s))?;
            write!(out, " {:>7}  ", percent(operations / mean.f32_ops_per_s))?;
            let both = |of: fn(&Peaks) -> f64| format!("{:.1}, {:.1}", of(&before) / GIGA, of(&after) / GIGA);
            write!(out, " {:13}", both(|peaks| peaks.read_bytes_per_s))?;
            write!(out, " {:15}", both(|peaks| peaks.int8_ops_per_s))?;
            write!(out, " {:13}", both(|peaks| peaks.f32_ops_per_s))?;
        }
        writeln!(out)?;
    }
    for test in measured {
        write_experts(out, test)?;
    }
    for test in measured {
        if let Some(profile) = &test.profile {
            write_profile(out, test, profile)?;
        }
    }
    Ok(())
}

/// What became of the experts of a test, where they are read when they are wanted.
fn write_experts(out: &mut impl Write, test: &Measured) -> io::Result<()> {
    let Some(experts) = test.experts else { return Ok(()) };
    writeln!(
        out,
        "{:16} {:>3}  experts: {} in memory, {:.1} MB read a token, {} of the time waited",
        test.case.to_string(),
        test.threads,
        percent(experts.hit_share),
        experts.bytes_read_per_token / MEGA,
        percent(experts.waited_share)
    )
}

/// A line for each time that the model was loaded.
pub fn write_loads(out: &mut impl Write, loads: &[Load]) -> io::Result<()> {
    writeln!(out)?;
    for load in loads {
        let [ready, first] = [load.ready, load.first_token].map(|time| time.as_secs_f64() * 1e3);
        write!(out, "{:16} {:>3} ", "load", load.threads)?;
        write!(out, " ready in {ready:.0} ms, first token after {first:.0} ms")?;
        if let Some(bytes) = load.peak_bytes {
            write!(out, ", {:.0} MB of memory at most", bytes as f64 / MEGA)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn write_profile(out: &mut impl Write, test: &Measured, profile: &Profile) -> io::Result<()> {
    let peaks = test.mean_peaks();
    let (calls, wall_ms) = (profile.calls, profile.wall.as_secs_f64() * 1e3);
    let ops = profile.share(&profile.total());
    writeln!(
        out,
        "\n{} on {} threads: {calls} calls in {wall_ms:.1} ms, of which ops {}, the rest {}",
        test.case,
        test.threads,
        percent(ops),
        percent(1.0 - ops)
    )?;
    let width = profile.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    write!(out, "{:width$} {:>7} {:>9} {:>6}", "step", "runs", "ms", "time")?;
    write!(out, " {:>9} {:>9} {:>7} {:>8}", "MB", "Mop", "GB/s", "Gop/s")?;
    if peaks.is_some() {
        write!(out, " {:>7} {:>14}", "of read", "of peak")?;
    }
    writeln!(out)?;
    for row in &profile.rows {
        let (name, runs, counts, cost) = (&row.name, row.runs, &row.counts, row.counts.cost);
        write!(
            out,
            "{name:width$} {:>7} {:>9.3}",
            runs,
            counts.time.as_secs_f64() * 1e3
        )?;
        write!(out, " {:>6}", percent(profile.share(counts)))?;
        write!(
            out,
            " {:>9.1} {:>9.1}",
            cost.bytes() as f64 / MEGA,
            cost.operations as f64 / MEGA
        )?;
        write!(
            out,
            " {:>7.2} {:>8.1}",
            row.bytes_per_s() / GIGA,
            row.operations_per_s() / GIGA
        )?;
        if let Some(peaks) = &peaks {
            write!(out, " {:>7}", percent(row.bytes_per_s() / peaks.read_bytes_per_s))?;
            if cost.operations > 0 {
                let share = percent(row.operations_per_s() / row.arithmetic.peak(peaks));
                write!(out, " {share:>9} {:>4}", row.arithmetic.name())?;
            }
        }
        writeln!(out)?;
    }
    write_layers(out, &profile.routers)
}

/// What was read in each layer, where experts are read when they are wanted.
fn write_layers(out: &mut impl Write, layers: &[RouterCounters]) -> io::Result<()> {
    let read = layers.iter().filter_map(|layer| Some((layer, layer.reads?)));
    for (i, (layer, reads)) in read.enumerate() {
        if i == 0 {
            write!(out, "\n{:>5} {:>9}", "layer", "experts")?;
            writeln!(
                out,
                " {:>9} {:>9} {:>9} {:>9}",
                "hits", "misses", "MB read", "ms waited"
            )?;
        }
        let chosen = layer.chosen.iter().filter(|rows| **rows > 0).count();
        write!(
            out,
            "{:>5} {chosen:>9} {:>9} {:>9}",
            layer.layer, reads.hits, reads.misses
        )?;
        let (read, waited) = (reads.bytes_read as f64 / MEGA, reads.waited.as_secs_f64() * 1e3);
        writeln!(out, " {read:>9.1} {waited:>9.2}")?;
    }
    Ok(())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
