//! `capture`: residual streams of a sequence.

use anyhow::Context;
use goldcrest::files::{Tensor, TensorFile};
use goldcrest::prompts::Prompts;
use goldcrest_engine::{Capture, CaptureRequest, Chunk, Engine, FeedError, ModelSpec, Sequences, Want, Watch};
use goldcrest_model::read_spec;

use crate::args::CaptureArgs;
use crate::memory::{Beside, Need};
use crate::model::open_checkpoint;
use crate::output::{UsageError, note, size};
use crate::ranges::{join, numbers_below};

pub fn run(args: &CaptureArgs) -> anyhow::Result<()> {
    let (path, checkpoint) = open_checkpoint(&args.model)?;
    let ids = match &args.prompt {
        Some(text) => Prompts::without_template(&checkpoint)?.text(text, true)?,
        None => args.ids.clone(),
    };
    if ids.is_empty() {
        return Err(FeedError::EmptyChunk.into());
    }
    let cannot_run = || format!("cannot run {}", path.display());
    let spec = read_spec(&checkpoint).with_context(cannot_run)?;
    let boundaries = spec.layers.len() + 1;
    let request = CaptureRequest {
        boundaries: numbers_below(boundaries, &args.layers)
            .map_err(|error| UsageError(format!("--layers: {error}")))?,
        positions: numbers_below(ids.len(), &args.positions)
            .map_err(|error| UsageError(format!("--positions: {error}")))?,
    };
    let need = Need {
        sequences: Sequences {
            count: 1,
            capacity: ids.len(),
        },
        beside: Beside {
            name: "streams",
            bytes: stream_bytes(&spec, request.boundaries.len() * request.positions.len()),
        },
    };
    let options = args.engine.fit(&checkpoint, || Ok(need)).with_context(cannot_run)?;
    let engine = Engine::open(&checkpoint, options).with_context(cannot_run)?;
    let capture = capture_fed(&engine, &ids, request)?;
    for captured in capture.feeds() {
        let request = captured.request();
        let shape = [request.positions.len(), engine.spec().hidden];
        let names: Vec<String> = request
            .boundaries
            .iter()
            .map(|boundary| format!("residual.{boundary}"))
            .collect();
        let tensors: Vec<Tensor> = names.iter().map(|name| Tensor { name, shape: &shape }).collect();
        let about = [("ids", join(&ids)), ("positions", join(&request.positions))];
        let mut file = TensorFile::create(&args.out, &tensors, &about)?;
        for boundary in &request.boundaries {
            file.write(captured.residual(*boundary).unwrap_or_default())?;
        }
        file.finish()?;
        let bytes = names.len() * shape.iter().product::<usize>() * size_of::<f32>();
        note(format_args!(
            "{}: {} streams of [{}, {}], {}",
            args.out.display(),
            names.len(),
            shape[0],
            shape[1],
            size(bytes as u64)
        ));
    }
    Ok(())
}

/// Bytes of so many rows of the residual stream.
pub fn stream_bytes(spec: &ModelSpec, rows: usize) -> u64 {
    (rows * spec.hidden * size_of::<f32>()) as u64
}

/// What is captured of a session while it is fed `ids`.
pub fn capture_fed(engine: &Engine, ids: &[u32], request: CaptureRequest) -> anyhow::Result<Capture> {
    let mut capture = Capture::new(engine, vec![request])?;
    let chunk = Chunk {
        start: 0,
        ids,
        want: Want::Nothing,
    };
    let watch = Watch {
        cancel: None,
        probe: Some(&mut capture),
    };
    // The feed says what is wrong with a sequence of nothing.
    let mut session = engine.session(ids.len().max(1))?;
    session.feed_watched(chunk, &mut [], watch)?;
    Ok(capture)
}
