//! How much memory may be taken.

use anyhow::Context;
use clap::Args;
use goldcrest_engine::{EngineOptions, Fit, FitError, Mib, Sequences, Streamed, available_bytes};
use goldcrest_format::Checkpoint;

use crate::args::{ModelArgs, positive};
use crate::engine_args::EngineArgs;
use crate::output::{note, size};

/// The least that is left to others of much memory.
const LEAST_LEFT_BYTES: u64 = 512 << 20;

/// Most positions that memory is planned for unless told otherwise.
pub const LIMITED_CONTEXT: usize = 8192;

#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Most memory to take, as in 6GiB, or auto: what the system and its groups leave. Experts that do not fit are read when they are
    /// wanted [default: everything is loaded]
    #[arg(long, value_name = "SIZE", value_parser = limit, group = "limit", help_heading = "Engine")]
    pub memory: Option<Limit>,
}

/// With --memory it shows how the model would fit; without, what everything takes. The speed is predicted from what the machine can do
/// right now: reading half a GB of memory, products in registers and, where experts are read when they are wanted, reading the file.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Positions of a sequence [default: what the model was trained for, at most 8192]
    #[arg(short, long, value_name = "N", value_parser = positive())]
    pub context: Option<usize>,
    /// Do not measure the machine: sizes alone
    #[arg(long)]
    pub no_probe: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Most memory to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Auto,
    Bytes(u64),
}

impl Limit {
    pub fn bytes(self) -> anyhow::Result<u64> {
        match self {
            Limit::Bytes(bytes) => Ok(bytes),
            Limit::Auto => {
                let available = available_bytes();
                let available =
                    available.context("this system does not tell how much memory it has: give --memory a size")?;
                Ok(share_of(available))
            }
        }
    }
}

/// What may be taken of memory that is there. The rest is for others: a sixteenth of it but at least 512 MiB, as others grow by that much
/// on a whole machine, yet no more than an eighth: in a small group there are hardly any others.
fn share_of(available: u64) -> u64 {
    available - (available / 16).max(LEAST_LEFT_BYTES).min(available / 8)
}

/// What a command needs of memory.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub sequences: Sequences,
    pub beside: Beside,
}

impl Need {
    /// For sequences alone.
    pub fn of(sequences: Sequences) -> Need {
        let beside = Beside::default();
        Need { sequences, beside }
    }
}

/// What a command takes that the engine knows nothing of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    pub name: &'static str,
    pub bytes: u64,
}

/// As [`FitError::TooLittle`], where not all of the limit is the engine's.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} are needed at least, and {limit} bytes may be taken: {least} + {} {}",
    Mib(.least.sum().saturating_add(.beside.bytes)), Mib(.beside.bytes), .beside.name
)]
struct TooLittleBeside {
    limit: u64,
    least: Box<Fit>,
    beside: Beside,
}

impl MemoryArgs {
    /// The options with which a model stays below the limit, where there is one.
    pub fn fit(
        &self,
        checkpoint: &Checkpoint,
        options: EngineOptions,
        need: impl FnOnce() -> anyhow::Result<Need>,
    ) -> anyhow::Result<EngineOptions> {
        let Some(limit) = self.memory else {
            return Ok(options);
        };
        let limit = limit.bytes()?;
        let Need { sequences, beside } = need()?;
        let rest = limit.saturating_sub(beside.bytes);
        match Fit::within(rest, checkpoint, &options, sequences) {
            Err(FitError::TooLittle { least, .. }) if beside.bytes > 0 => {
                Err(TooLittleBeside { limit, least, beside }.into())
            }
            fit => {
                let fit = fit?;
                tell_if_slow(&fit);
                Ok(fit.options)
            }
        }
    }
}

/// Says so where every token has to read weights from the file.
fn tell_if_slow(fit: &Fit) {
    if fit
        .options
        .streaming
        .is_some_and(|streaming| streaming.streamed == Streamed::All)
    {
        note(format_args!(
            "the model does not fit: {} of its weights stay in memory, and every call reads the others from the file, which is slow",
            size(fit.budget.weights + fit.budget.streamed)
        ));
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "auto" => Ok(Limit::Auto),
        _ => memory_size(text).map(|bytes| Limit::Bytes(bytes as u64)),
    }
}

/// A number of bytes: `N`, or with a unit of 1000 (`kB`, `MB`, `GB`) or of 1024 (`KiB`, `MiB`, `GiB`).
pub fn memory_size(text: &str) -> Result<usize, String> {
    let wrong =
        || format!("{text:?} is no size: a number above 0 is needed, with B, kB, MB, GB, KiB, MiB or GiB after it");
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * unit;
    if bytes < 1.0 || bytes >= usize::MAX as f64 {
        return Err(wrong());
    }
    Ok(bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_memory_is_shared_too() {
        const MIB: u64 = 1 << 20;
        for (available, taken) in [
            (0, 0),
            (256 * MIB, 224 * MIB),
            (512 * MIB, 448 * MIB),
            (4096 * MIB, 3584 * MIB),
            (6144 * MIB, 5632 * MIB),
            (32_768 * MIB, 30_720 * MIB),
        ] {
            assert_eq!(share_of(available), taken, "{available}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let sizes = [
            ("100", 100),
            ("1kB", 1000),
            ("2 KiB", 2048),
            ("6GiB", 6 << 30),
            ("1.5gb", 1_500_000_000),
        ];
        for (text, bytes) in sizes {
            assert_eq!(memory_size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GiB", "1 GiBs", "-1GB", "0", "1..5GB", "99999999999999GiB", "1e5"] {
            assert!(memory_size(wrong).is_err(), "{wrong}");
        }
    }
}
