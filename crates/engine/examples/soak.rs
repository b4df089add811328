//! Opens and uses a model with experts again and again for some minutes, with any memory for them: `cargo xtask soak` runs this.
//!
//! Fails if a bit is not that of the model loaded whole, if anything hangs, or if memory grows.

#[path = "../tests/support/faults.rs"]
mod faults;
#[path = "../tests/support/random.rs"]
mod random;
#[path = "../tests/support/script.rs"]
mod script;
#[path = "../tests/support/soak.rs"]
mod soak;
#[path = "../tests/support/streaming.rs"]
mod streaming;
#[path = "../tests/support/watchdog.rs"]
mod watchdog;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use goldcrest_engine::OpenError;
use soak::{Soak, slope};
use watchdog::{Watchdog, watched};

const USAGE: &str = "usage: soak MODEL [--minutes N] [--seed N]";

/// Of the mean, in a minute.
const MOST_GROWTH: f64 = 0.001;

/// The part of the time after which what is kept for the next time has been taken once.
const WARM_UP: f64 = 0.4;

const REPORT_EVERY: Duration = Duration::from_secs(20);

struct Arguments {
    model: PathBuf,
    minutes: f64,
    seed: u64,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, Box<dyn Error>> {
        let mut arguments = Arguments {
            model: words.next().ok_or(USAGE)?.into(),
            minutes: 5.0,
            seed: 0,
        };
        while let Some(word) = words.next() {
            let value = words.next().ok_or(USAGE)?;
            match word.as_str() {
                "--minutes" => arguments.minutes = value.parse()?,
                "--seed" => arguments.seed = value.parse()?,
                _ => return Err(USAGE.into()),
            }
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Soaks, and says how memory grew; false if it grew too much.
fn run() -> Result<bool, Box<dyn Error>> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let minutes = arguments.minutes;
    let samples = watched(move |watchdog| soak(&arguments, watchdog))?;
    let settled: Vec<(f64, f64)> = samples
        .into_iter()
        .filter(|(minute, _)| *minute > minutes * WARM_UP)
        .collect();
    let mean = settled.iter().map(|(_, bytes)| bytes).sum::<f64>() / settled.len() as f64;
    let growth = slope(&settled) / mean;
    println!(
        "{} rounds after {:.1} minutes: {:.2} MB resident between rounds, {:+.4} % a minute",
        settled.len(),
        minutes * WARM_UP,
        mean / 1e6,
        100.0 * growth
    );
    if growth.is_nan() {
        return Err("the time is too short for a slope".into());
    }
    Ok(growth <= MOST_GROWTH)
}

/// Minutes since the start and resident bytes after each round, when all engines but the one to compare with are gone.
fn soak(arguments: &Arguments, watchdog: &Watchdog) -> Result<Vec<(f64, f64)>, OpenError> {
    let mut soak = Soak::new(&arguments.model, arguments.seed)?;
    let (start, mut reported) = (Instant::now(), Instant::now());
    let mut samples = Vec::new();
    while start.elapsed().as_secs_f64() < 60.0 * arguments.minutes {
        soak.round();
        watchdog.pat();
        samples.push((start.elapsed().as_secs_f64() / 60.0, resident_bytes()));
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            println!(
                "{:4.0} s: {:.1} MB, {:?}",
                start.elapsed().as_secs_f64(),
                resident_bytes() / 1e6,
                soak.tally
            );
        }
    }
    println!("{:?}", soak.tally);
    Ok(samples)
}

/// Memory of this process that is in memory; nothing where the system does not say.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    1024.0 * kilobytes.unwrap_or(f64::NAN)
}
