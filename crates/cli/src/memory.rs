//! How much memory may be taken.

use anyhow::Context;
use clap::Args;
use goldcrest_engine::{EngineOptions, Fit, Sequences, available_bytes};
use goldcrest_format::Checkpoint;

use crate::args::{EngineArgs, ModelArgs, positive};

/// Left to others of what the system could give: a sixteenth, and not less than this.
const LEAST_LEFT_BYTES: u64 = 512 << 20;

/// Most positions that memory is planned for unless told otherwise.
pub const LIMITED_CONTEXT: usize = 8192;

#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Most memory to take, as in 6GiB, or auto: what the system and its groups leave. Experts that do not fit are read when they are
    /// wanted [default: everything is loaded]
    #[arg(long, value_name = "SIZE", value_parser = limit, conflicts_with = "expert_memory", help_heading = "Engine")]
    pub memory: Option<Limit>,
}

/// With --memory it shows how the model would fit; without, what everything takes.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Positions of a sequence [default: what the model was trained for, at most 8192]
    #[arg(short, long, value_name = "N", value_parser = positive())]
    pub context: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub memory: MemoryArgs,
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
                Ok(available.saturating_sub((available / 16).max(LEAST_LEFT_BYTES)))
            }
        }
    }
}

impl MemoryArgs {
    /// The options with which a model stays below the limit, where there is one. `aside` bytes go to what the engine knows nothing of.
    pub fn fit(
        &self,
        checkpoint: &Checkpoint,
        options: EngineOptions,
        sequences: impl FnOnce() -> anyhow::Result<Sequences>,
        aside: u64,
    ) -> anyhow::Result<EngineOptions> {
        let Some(limit) = self.memory else {
            return Ok(options);
        };
        let limit = limit.bytes()?.saturating_sub(aside);
        Ok(Fit::within(limit, checkpoint, &options, sequences()?)?.options)
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
