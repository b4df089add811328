//! How long it takes until a model can be used.

use std::time::{Duration, Instant};

use goldcrest_engine::{Chunk, Engine, EngineOptions, Want, most_resident_bytes};
use goldcrest_format::Checkpoint;

/// What it took to load a model.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub threads: usize,
    /// With which it was loaded: under a limit they depend on the threads.
    pub options: EngineOptions,
    /// In memory from the start to the end.
    pub weight_bytes: usize,
    /// From opening the files until sequences can be fed.
    pub ready: Duration,
    /// From opening the files until a sequence of one token has its logits.
    pub first_token: Duration,
    /// The most memory that the process had until then, bytes; none where the system does not tell.
    pub peak_bytes: Option<u64>,
}

/// Opens an engine and feeds it its first token. `opening` is what it took to open the files.
pub fn load(checkpoint: &Checkpoint, opening: Duration, options: EngineOptions) -> anyhow::Result<(Engine, Load)> {
    let started = Instant::now();
    let engine = Engine::open(checkpoint, options)?;
    let ready = opening + started.elapsed();
    let mut logits = vec![0.0; engine.spec().vocabulary];
    let chunk = Chunk {
        start: 0,
        ids: &[0],
        want: Want::Last,
    };
    engine.session(1)?.feed(chunk, &mut logits)?;
    let load = Load {
        threads: engine.threads(),
        options: *engine.options(),
        weight_bytes: engine.weight_bytes(),
        ready,
        first_token: opening + started.elapsed(),
        peak_bytes: most_resident_bytes(),
    };
    Ok((engine, load))
}
