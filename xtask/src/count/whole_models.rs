//! Operations of prefill and decode of whole models on registers like those of AVX-512, which any machine can count.

use std::path::Path;

use goldcrest_engine::{Activations, Chunk, Engine, EngineOptions, Isa, Session, Want};
use goldcrest_format::Checkpoint;
use goldcrest_kernels::count_operations;

use super::recorded::{Change, Count, Recorded};
use super::{MODEL_OPERATIONS, file};
use crate::{synth, workspace};

/// Presets and mixes.
const MODELS: [(&str, &str); 3] = [("tiny", "Q4_K_M"), ("tiny", "Q8_0"), ("tiny-moe", "Q4_K_M")];

const PREFILL: usize = 64;
const DECODE: usize = 2;

/// Feeds `count` ids that differ.
fn feed(session: &mut Session, count: usize) {
    let start = session.position();
    let vocabulary = session.engine().spec().vocabulary;
    let ids: Vec<u32> = (0..count).map(|i| ((start + i) * 37 % vocabulary) as u32).collect();
    let chunk = Chunk {
        start,
        ids: &ids,
        want: Want::Last,
    };
    session.feed(chunk, &mut vec![0.0; vocabulary]).unwrap();
}

/// Prefill and decode of a model.
fn operations((preset, mix): (&str, &str), activations: Activations, folder: &Path) -> [Count; 2] {
    let path = folder.join(format!("counted-{preset}-{mix}.gguf"));
    synth::write_small(preset, mix, &path).unwrap();
    let options = EngineOptions {
        activations: Some(activations),
        // On the calling thread, which counts. Not the best set, some of whose choices the processor decides.
        threads: Some(1),
        isa: Some(Isa::Scalar),
        ..EngineOptions::default()
    };
    let engine = Engine::open(&Checkpoint::open(&path).unwrap(), options).unwrap();
    let mut session = engine.session(PREFILL + DECODE).unwrap();
    let prefill = count_operations(|| feed(&mut session, PREFILL));
    let decode = count_operations(|| (0..DECODE).for_each(|_| feed(&mut session, 1)));
    let name = format!("{preset} {mix}, {activations:?} activations");
    [
        (format!("{name}, prefill of {PREFILL}"), prefill),
        (format!("{name}, decode of {DECODE} after {PREFILL}"), decode),
    ]
    .map(|(name, count)| Count { name, count })
}

fn counts() -> Vec<Count> {
    let folder = workspace().join("target/count");
    std::fs::create_dir_all(&folder).unwrap();
    let q8 = MODELS.map(|model| operations(model, Activations::Q8, &folder));
    let f32 = operations(MODELS[0], Activations::F32, &folder);
    q8.into_iter().chain([f32]).flatten().collect()
}

#[test]
fn operations_of_models_are_those_recorded() {
    let recorded = Recorded::open(&file(workspace(), MODEL_OPERATIONS.file)).unwrap();
    let changes = recorded.changes(&counts());
    let wrong = changes.iter().filter(|change| change.fails());
    let wrong: Vec<String> = wrong.map(Change::to_string).collect();
    assert!(
        wrong.is_empty(),
        "operations of models; if they have to be: `cargo xtask count --record REASON`\n{}",
        wrong.join("\n")
    );
}

/// For `cargo xtask count --record`.
#[test]
#[ignore = "prints the numbers to record"]
fn print_operations() {
    for Count { name, count } in counts() {
        println!("{name}\t{count}");
    }
}
