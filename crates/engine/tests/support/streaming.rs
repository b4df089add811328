//! Models whose experts are read when they are wanted.

use goldcrest_engine::{CpuError, Engine, EngineOptions, ExpertOptions, OpenError};
use goldcrest_format::Checkpoint;

/// The least memory for experts, which one of them takes; none where a model has no experts.
pub fn least_bytes(checkpoint: &Checkpoint) -> Option<usize> {
    let nothing = EngineOptions {
        experts: Some(ExpertOptions::default()),
        ..EngineOptions::default()
    };
    match Engine::open(checkpoint, nothing).map(|_| ()) {
        Err(OpenError::Backend(CpuError::ExpertMemory { least_bytes, bytes: 0 })) => Some(least_bytes),
        Err(OpenError::Backend(CpuError::NoExperts)) => None,
        other => panic!("{other:?}"),
    }
}
