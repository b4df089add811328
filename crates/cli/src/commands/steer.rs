//! `steer make`: a control vector from two sets of prompts.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use goldcrest::directions::{Method, directions, write};
use goldcrest::prompts::{PromptError, Prompts};
use goldcrest_engine::{CaptureRequest, Engine, ModelSpec, Sequences};
use goldcrest_model::read_spec;

use super::capture::{capture_fed, stream_bytes};
use crate::args::{MethodArg, SteerCommand, SteerMakeArgs};
use crate::input::read_text;
use crate::memory::{Beside, Need};
use crate::model::open_checkpoint;
use crate::output::{UsageError, note};
use crate::progress::Steps;

/// llama.cpp knows no direction of layer 0.
const FIRST_LAYER: usize = 1;

pub fn run(command: &SteerCommand) -> anyhow::Result<()> {
    match command {
        SteerCommand::Make(args) => make(args),
    }
}

fn make(args: &SteerMakeArgs) -> anyhow::Result<()> {
    let sets = [&args.positive, &args.negative].map(|path| read_prompts(path));
    let [positive, negative] = sets;
    let sets = [positive?, negative?];
    let method = match args.method {
        MethodArg::Mean => Method::Mean,
        MethodArg::Pca => Method::Pca,
    };
    let (path, checkpoint) = open_checkpoint(&args.model)?;
    let cannot_run = || format!("cannot run {}", path.display());
    let spec = read_spec(&checkpoint).with_context(cannot_run)?;
    // Before the weights: memory is planned for the longest of them.
    let sets = tokenized(&Prompts::without_template(&checkpoint)?, &sets)?;
    let options = args.engine.fit(&checkpoint, || Ok(need(&spec, &sets)));
    let engine = Engine::open(&checkpoint, options.with_context(cannot_run)?).with_context(cannot_run)?;
    let mut steps = Steps::new("prompts", sets.iter().map(Vec::len).sum());
    let mut layers: BTreeMap<usize, [Vec<Vec<f32>>; 2]> = BTreeMap::new();
    for (set, prompts) in sets.iter().enumerate() {
        for ids in prompts {
            for (layer, residual) in last_residuals(&engine, ids)? {
                layers.entry(layer).or_default()[set].push(residual);
            }
            steps.advance(1);
        }
    }
    steps.finish();
    if layers.is_empty() {
        return Err(
            UsageError("the model has a single layer, for which a control vector has no direction".into()).into(),
        );
    }
    let vector = directions(&layers, method)?;
    write(&vector, spec.family, &args.out)?;
    note(format_args!(
        "{}: directions of layers {FIRST_LAYER} to {}, {} wide",
        args.out.display(),
        spec.layers.len() - 1,
        vector.width()
    ));
    Ok(())
}

/// A prompt a line; empty lines are none.
fn read_prompts(path: &Path) -> anyhow::Result<Vec<String>> {
    let prompts: Vec<String> = read_text(path)?
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(str::to_owned)
        .collect();
    match prompts.is_empty() {
        true => Err(UsageError(format!("{}: there is no prompt", path.display())).into()),
        false => Ok(prompts),
    }
}

/// The ids of each prompt of each set.
fn tokenized(prompts: &Prompts, sets: &[Vec<String>; 2]) -> Result<[Vec<Vec<u32>>; 2], PromptError> {
    let of = |set: &[String]| -> Result<Vec<_>, PromptError> {
        let ids = set.iter().map(|prompt| prompts.text(prompt, true));
        ids.collect()
    };
    let [positive, negative] = sets;
    Ok([of(positive)?, of(negative)?])
}

fn need(spec: &ModelSpec, sets: &[Vec<Vec<u32>>; 2]) -> Need {
    let prompts = || sets.iter().flatten();
    let layers = spec.layers.len().saturating_sub(FIRST_LAYER);
    // A row of each layer and prompt and what is captured of one more; then directions, in a file too, and for one layer the difference
    // of each pair in f64.
    let rows = layers * (prompts().count() + 3) + prompts().count();
    Need {
        sequences: Sequences {
            count: 1,
            capacity: prompts().map(Vec::len).max().unwrap_or(0).max(1),
        },
        beside: Beside {
            name: "residuals of the prompts",
            bytes: stream_bytes(spec, rows),
        },
    }
}

/// What each layer from [`FIRST_LAYER`] on leaves at the last token.
fn last_residuals(engine: &Engine, ids: &[u32]) -> anyhow::Result<Vec<(usize, Vec<f32>)>> {
    let layers = engine.spec().layers.len();
    let last = ids.len().saturating_sub(1);
    let request = CaptureRequest {
        boundaries: (FIRST_LAYER + 1..=layers).collect(),
        positions: vec![last],
    };
    let capture = capture_fed(engine, ids, request)?;
    let residual = |layer: usize| {
        let captured = capture.feeds().first()?;
        Some((layer, captured.residual(layer + 1)?.to_vec()))
    };
    Ok((FIRST_LAYER..layers).filter_map(residual).collect())
}
