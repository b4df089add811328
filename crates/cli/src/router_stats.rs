//! `--router-stats`: what routers chose, as a file.

use std::path::PathBuf;

use clap::Args;
use goldcrest::files::WholeFile;
use goldcrest_engine::{Activations, Engine, RouterCounters};
use goldcrest_format::Checkpoint;
use goldcrest_model::read_spec;
use serde_json::{Value, json};

use crate::output::UsageError;

#[derive(Debug, Args)]
pub struct RouterStatsArgs {
    /// Write to this file, as JSON, how many rows chose each expert of each layer, and what was at hand, read and waited for where experts
    /// are read when they are wanted
    #[arg(long, value_name = "FILE", help_heading = "Engine")]
    pub router_stats: Option<PathBuf>,
}

impl RouterStatsArgs {
    /// Begins the file, if there is to be one, so that a folder that is not there is no news at the end. Refuses models without routers.
    pub fn begin(&self, checkpoint: &Checkpoint) -> anyhow::Result<Option<WholeFile>> {
        let Some(path) = &self.router_stats else {
            return Ok(None);
        };
        let plan = Engine::plan_of(&read_spec(checkpoint)?, Activations::F32);
        if plan.experts.is_empty() {
            let dense = "--router-stats needs a model with experts, and this one has none";
            return Err(UsageError(dense.into()).into());
        }
        Ok(Some(WholeFile::create(path)?))
    }

    pub fn is_given(&self) -> bool {
        self.router_stats.is_some()
    }
}

/// The file of a command that counted once.
pub fn write(file: Option<WholeFile>, model: &str, layers: &[RouterCounters]) -> anyhow::Result<()> {
    write_json(file, &json!({ "model": model, "layers": as_json(layers) }))
}

pub fn write_json(file: Option<WholeFile>, stats: &Value) -> anyhow::Result<()> {
    match file {
        Some(file) => Ok(file.finish(format!("{stats}\n").as_bytes())?),
        None => Ok(()),
    }
}

pub fn as_json(layers: &[RouterCounters]) -> Value {
    let layer = |layer: &RouterCounters| {
        json!({
            "layer": layer.layer,
            "chosen": layer.chosen,
            "reads": layer.reads.map(|reads| json!({
                "hits": reads.hits,
                "misses": reads.misses,
                "bytes_read": reads.bytes_read,
                "waited_s": reads.waited.as_secs_f64(),
            })),
        })
    };
    layers.iter().map(layer).collect()
}
