//! `steer make`: a control vector from two sets of prompts.

use std::collections::BTreeMap;
use std::path::Path;

use goldcrest::directions::{Method, directions, write};
use goldcrest_engine::{CaptureRequest, Engine};

use super::capture::capture_fed;
use crate::args::{MethodArg, SteerCommand, SteerMakeArgs};
use crate::input::read_text;
use crate::model::Model;
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
    let model = Model::open(&args.model, args.engine.options(), true)?;
    let mut steps = Steps::new("prompts", sets.iter().map(Vec::len).sum());
    let mut layers: BTreeMap<usize, [Vec<Vec<f32>>; 2]> = BTreeMap::new();
    for (set, prompts) in sets.iter().enumerate() {
        for prompt in prompts {
            let ids = model.prompts.text(prompt, true)?;
            for (layer, residual) in last_residuals(&model.engine, &ids)? {
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
    write(&vector, model.engine.spec().family, &args.out)?;
    note(format_args!(
        "{}: directions of layers {FIRST_LAYER} to {}, {} wide",
        args.out.display(),
        model.engine.spec().layers.len() - 1,
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
