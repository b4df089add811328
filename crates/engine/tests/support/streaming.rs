//! Models whose weights are read when they are wanted.

use goldcrest_engine::{CpuError, Engine, EngineOptions, OpenError, StreamOptions, Streamed};
use goldcrest_format::Checkpoint;

/// The least memory for streamed weights, which the largest that is read at once takes; none where a model has none of them.
pub fn least_bytes(checkpoint: &Checkpoint, streamed: Streamed) -> Option<usize> {
    let nothing = EngineOptions {
        streaming: Some(StreamOptions {
            streamed,
            ..StreamOptions::default()
        }),
        ..EngineOptions::default()
    };
    match Engine::open(checkpoint, nothing).map(|_| ()) {
        Err(OpenError::Backend(CpuError::StreamMemory { least_bytes, bytes: 0 })) => Some(least_bytes),
        Err(OpenError::Backend(CpuError::NoExperts)) => None,
        other => panic!("{other:?}"),
    }
}
