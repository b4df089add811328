//! Steering and capture of residual streams, per session, in a batch with others.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use goldcrest_engine::steering::{ControlVector, ControlVectorError, Operation, Steer, SteeringError};
use goldcrest_engine::{
    BatchFeed, Capture, CaptureError, CaptureRequest, Chunk, Engine, EngineOptions, Isa, LoadProblem, Session,
    SteerError, Steering, Want, Watch,
};
use support::{Random, bits, engine, feed, golden, session};

const TOKENS: usize = 40;
const CAPACITY: usize = 64;

/// Three layers, 64 wide.
fn model(options: EngineOptions) -> Engine {
    engine(&golden("llama3"), options)
}

/// Numbers in −1..1.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect()
}

/// A direction for each of these layers.
fn vector(engine: &Engine, seed: u64, layers: &[usize]) -> ControlVector {
    let direction = |&layer: &usize| (layer, numbers(seed + layer as u64, engine.spec().hidden));
    ControlVector::new(layers.iter().map(direction).collect()).unwrap()
}

fn everywhere(operation: Operation) -> Steer {
    Steer {
        operation,
        layers: None,
    }
}

/// Every operation, at several layers.
fn composed(engine: &Engine) -> Steering {
    let vectors = [1, 2, 3].map(|seed| vector(engine, seed, &[0, 1, 2]));
    let [first, second, third] = vectors;
    let steers = [
        Steer {
            operation: Operation::Add {
                vector: first,
                scale: 0.5,
            },
            layers: Some(0..=1),
        },
        everywhere(Operation::Ablate {
            vector: second,
            scale: 1.0,
        }),
        everywhere(Operation::Clamp {
            vector: third,
            min: -0.1,
            max: 0.2,
        }),
        everywhere(Operation::Renorm),
    ];
    engine.steering(&steers).unwrap()
}

fn steered(engine: &Engine, steering: Option<&Steering>) -> Session {
    let mut session = session(engine, CAPACITY);
    session.steer(steering.cloned()).unwrap();
    session
}

fn request(engine: &Engine, positions: impl IntoIterator<Item = usize>) -> CaptureRequest {
    CaptureRequest {
        boundaries: (0..=engine.spec().layers.len()).collect(),
        positions: positions.into_iter().collect(),
    }
}

/// Feeds sequences together, in chunks of so many tokens of each; the logits of each, and what was captured.
fn together(sessions: &mut [Session], ids: &[Vec<u32>], chunk: usize) -> (Vec<Vec<f32>>, Capture) {
    let engine = sessions[0].engine().clone();
    let vocabulary = engine.spec().vocabulary;
    let requests = ids.iter().map(|ids| request(&engine, 0..ids.len())).collect();
    let mut capture = Capture::new(&engine, requests).unwrap();
    let mut logits: Vec<Vec<f32>> = ids.iter().map(|ids| vec![f32::NAN; ids.len() * vocabulary]).collect();
    let longest = ids.iter().map(Vec::len).max().unwrap();
    for start in (0..longest).step_by(chunk) {
        // A sequence that has ended leaves the batch: the longest come first, so that the others keep their places.
        let mut feeds = Vec::new();
        for ((session, ids), logits) in sessions.iter_mut().zip(ids).zip(&mut logits) {
            let end = (start + chunk).min(ids.len());
            if start < end {
                feeds.push(BatchFeed {
                    session,
                    chunk: Chunk {
                        start,
                        ids: &ids[start..end],
                        want: Want::All,
                    },
                    logits: &mut logits[start * vocabulary..end * vocabulary],
                });
            }
        }
        let watch = Watch {
            cancel: None,
            probe: Some(&mut capture),
        };
        engine.feed_batch_watched(&mut feeds, watch).unwrap();
    }
    (logits, capture)
}

/// Everything that a session gave: logits, state, residuals.
type Traces = (Vec<u32>, Vec<u8>, Vec<Vec<u32>>);

fn traces(sessions: &[Session], logits: &[Vec<f32>], capture: &Capture) -> Vec<Traces> {
    let sessions = sessions.iter().zip(logits).zip(capture.feeds());
    let traces = sessions.map(|((session, logits), captured)| {
        assert!(captured.is_whole());
        let boundaries = captured.request().boundaries.iter();
        let residuals = boundaries.map(|boundary| bits(captured.residual(*boundary).unwrap()));
        (bits(logits), session.visible_state(), residuals.collect())
    });
    traces.collect()
}

#[test]
fn steering_one_session_of_a_batch_leaves_the_others_as_they_are() {
    let base = EngineOptions {
        threads: Some(1),
        ..EngineOptions::exact()
    };
    // The longest first: see `together`. The first two are the same tokens.
    let ids = [(1, TOKENS), (1, TOKENS), (2, 25)].map(|(seed, count)| Random(seed).ids(count, 320));
    let add = |engine: &Engine| {
        let vector = vector(engine, 9, &[1]);
        engine
            .steering(&[everywhere(Operation::Add { vector, scale: -2.0 })])
            .unwrap()
    };
    let alone = model(base);
    let steerings = [None, Some(composed(&alone)), Some(add(&alone))];
    let expected: Vec<Traces> = steerings
        .iter()
        .zip(&ids)
        .flat_map(|(steering, ids)| {
            let mut one = [steered(&alone, steering.as_ref())];
            let (logits, capture) = together(&mut one, std::slice::from_ref(ids), ids.len());
            traces(&one, &logits, &capture)
        })
        .collect();
    let unwatched = feed(&mut session(&alone, CAPACITY), &ids[0], Want::All);
    assert!(bits(&unwatched) == expected[0].0 && expected[0].0 != expected[1].0);
    let ways = [(Isa::best(), 1, 512), (Isa::best(), 3, 7), (Isa::Scalar, 2, 512)];
    for (isa, threads, max_rows) in ways {
        let engine = model(EngineOptions {
            isa: Some(isa),
            threads: Some(threads),
            max_rows,
            ..base
        });
        let steerings = [None, Some(composed(&engine)), Some(add(&engine))];
        for chunk in [1, 3, 7, TOKENS] {
            let mut sessions: Vec<Session> = steerings
                .iter()
                .map(|steering| steered(&engine, steering.as_ref()))
                .collect();
            let (logits, capture) = together(&mut sessions, &ids, chunk);
            let found = traces(&sessions, &logits, &capture);
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let how = format!("session {index}, chunks of {chunk}, {isa}, {threads} threads, {max_rows} rows");
                assert!(found == expected, "{how}");
            }
        }
    }
}

/// What an operation makes of a row, in f64.
fn directly(operation: &Operation, layer: usize, row: &[f32]) -> Vec<f64> {
    let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
    let length = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let direction = |vector: &ControlVector| -> Vec<f64> {
        vector.direction(layer).unwrap().iter().map(|x| f64::from(*x)).collect()
    };
    let moved = |direction: &[f64], by: f64| row.iter().zip(direction).map(|(x, d)| x + by * d).collect();
    let unit = |vector| {
        let direction = direction(vector);
        let length = length(&direction);
        direction.iter().map(|x| x / length).collect::<Vec<_>>()
    };
    let along = |unit: &[f64]| row.iter().zip(unit).map(|(x, u)| x * u).sum::<f64>();
    match operation {
        Operation::Add { vector, scale } => moved(&direction(vector), f64::from(*scale)),
        Operation::Ablate { vector, scale } => {
            let unit = unit(vector);
            moved(&unit, -f64::from(*scale) * along(&unit))
        }
        Operation::Clamp { vector, min, max } => {
            let unit = unit(vector);
            let along = along(&unit);
            moved(&unit, along.clamp(f64::from(*min), f64::from(*max)) - along)
        }
        Operation::Renorm => row,
    }
}

#[test]
fn each_operation_does_to_captured_streams_what_it_says() {
    let engine = model(EngineOptions::exact());
    let ids = [Random(4).ids(TOKENS, 320)];
    let captured = |steering: Option<&Steering>| together(&mut [steered(&engine, steering)], &ids, 7).1;
    let plain = captured(None);
    let hidden = engine.spec().hidden;
    let layer = 1;
    let vector = vector(&engine, 20, &[layer]);
    let operations = [
        Operation::Add {
            vector: vector.clone(),
            scale: 1.5,
        },
        Operation::Ablate {
            vector: vector.clone(),
            scale: 0.75,
        },
        Operation::Clamp {
            vector: vector.clone(),
            min: -0.05,
            max: f32::INFINITY,
        },
    ];
    for operation in operations {
        for renormed in [false, true] {
            let steer = |operation: &Operation| Steer {
                operation: operation.clone(),
                layers: Some(layer..=layer),
            };
            let mut steers = vec![steer(&operation)];
            steers.extend(renormed.then(|| steer(&Operation::Renorm)));
            let steering = engine.steering(&steers).unwrap();
            let steered = captured(Some(&steering));
            let at = |capture: &Capture, boundary: usize| capture.feeds()[0].residual(boundary).unwrap().to_vec();
            for boundary in 0..=layer {
                assert!(
                    bits(&at(&plain, boundary)) == bits(&at(&steered, boundary)),
                    "boundary {boundary}"
                );
            }
            let (before, after) = (at(&plain, layer + 1), at(&steered, layer + 1));
            assert!(bits(&before) != bits(&after));
            assert!(bits(&at(&plain, layer + 2)) != bits(&at(&steered, layer + 2)));
            for (before, after) in before.chunks(hidden).zip(after.chunks(hidden)) {
                let length = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let old = length(&mut before.iter().map(|x| f64::from(*x)));
                let mut expected = directly(&operation, layer, before);
                let new = length(&mut expected.iter().copied());
                if renormed {
                    expected.iter_mut().for_each(|x| *x *= old / new);
                }
                // A few roundings, each relative to the row's length.
                let bound = 2e-6 * (old + new);
                for (found, expected) in after.iter().zip(&expected) {
                    assert!(
                        (f64::from(*found) - expected).abs() <= bound,
                        "{operation:?}: {found} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_changes_nothing_changes_no_bit() {
    let engine = model(EngineOptions::default());
    let all = vector(&engine, 1, &[0, 1, 2]);
    let idle = [
        everywhere(Operation::Add {
            vector: all.clone(),
            scale: 0.0,
        }),
        everywhere(Operation::Ablate {
            vector: all.clone(),
            scale: 0.0,
        }),
        everywhere(Operation::Renorm),
    ];
    let idle = engine.steering(&idle).unwrap();
    assert!(idle.is_idle() && !composed(&engine).is_idle());
    let unbounded = engine.steering(&[everywhere(Operation::Clamp {
        vector: all,
        min: f32::NEG_INFINITY,
        max: f32::INFINITY,
    })]);
    let ids = Random(4).ids(TOKENS, 320);
    let mut plain = session(&engine, CAPACITY);
    let expected = bits(&feed(&mut plain, &ids, Want::All));
    for steering in [idle, unbounded.unwrap()] {
        let mut one = steered(&engine, Some(&steering));
        assert_eq!(one.steering().is_none(), steering.is_idle());
        assert!(bits(&feed(&mut one, &ids, Want::All)) == expected);
        assert!(one.visible_state() == plain.visible_state());
    }
}

#[test]
fn steers_that_do_not_fit_are_refused() {
    let engine = model(EngineOptions::exact());
    let all = || vector(&engine, 1, &[0, 1, 2]);
    let add = |vector, scale| Operation::Add { vector, scale };
    let refused = |operation: Operation, layers| engine.steering(&[Steer { operation, layers }]).unwrap_err();
    let narrow = ControlVector::new(BTreeMap::from([(1, vec![1.0; 63])])).unwrap();
    let zero = ControlVector::new(BTreeMap::from([(2, vec![0.0; 64])])).unwrap();
    let (steer, last) = (0, 2);
    assert_eq!(engine.steering(&[]).unwrap_err(), SteeringError::Empty);
    let (found, expected) = (63, 64);
    assert_eq!(
        refused(add(narrow, 1.0), None),
        SteeringError::Width { steer, found, expected }
    );
    let outside = SteeringError::LayerOutside { steer, layer: 3, last };
    assert_eq!(refused(add(all(), 1.0), Some(1..=3)), outside);
    assert_eq!(refused(add(vector(&engine, 1, &[0, 3]), 1.0), Some(0..=1)), outside);
    assert_eq!(
        refused(add(vector(&engine, 1, &[0]), 1.0), Some(1..=2)),
        SteeringError::NoDirection { steer, first: 1, last }
    );
    let none = SteeringError::ZeroDirection { steer, layer: 2 };
    assert_eq!(
        refused(
            Operation::Ablate {
                vector: zero,
                scale: 1.0
            },
            None
        ),
        none
    );
    let clamp = |min, max| Operation::Clamp {
        vector: all(),
        min,
        max,
    };
    let numbers = [
        add(all(), f32::NAN),
        add(all(), f32::INFINITY),
        clamp(1.0, 0.0),
        clamp(f32::NAN, 0.0),
        clamp(f32::INFINITY, f32::INFINITY),
    ];
    for operation in numbers {
        assert!(matches!(
            refused(operation, None),
            SteeringError::Number { steer: 0, .. }
        ));
    }
}

#[test]
fn a_state_is_a_function_of_tokens_and_one_steering() {
    let engine = model(EngineOptions::exact());
    let steering = composed(&engine);
    let ids = Random(4).ids(TOKENS, 320);
    let (first, second) = ids.split_at(20);
    let mut straight = steered(&engine, Some(&steering));
    feed(&mut straight, first, Want::Nothing);
    assert_eq!(straight.steer(None), Err(SteerError::NotEmpty { position: 20 }));
    let (snapshot, mut fork) = (straight.snapshot(), straight.fork());
    let expected = bits(&feed(&mut straight, second, Want::All));
    assert!(bits(&feed(&mut fork, second, Want::All)) == expected);
    // Whatever a session was steered with, it is as the snapshot was.
    let mut other = session(&engine, CAPACITY);
    feed(&mut other, second, Want::Nothing);
    other.restore(&snapshot).unwrap();
    assert!(bits(&feed(&mut other, second, Want::All)) == expected);
    // Emptied, it may change.
    other.rewind(0).unwrap();
    other.steer(None).unwrap();
    let plain = bits(&feed(&mut other, first, Want::All));
    assert!(plain == bits(&feed(&mut session(&engine, CAPACITY), first, Want::All)));
    let wide = self::engine(&golden("gemma3"), EngineOptions::exact());
    let stranger = composed_for(&wide);
    assert_eq!(session(&engine, 8).steer(Some(stranger)), Err(SteerError::OtherModel));
}

/// A steering of a model with other layers.
fn composed_for(engine: &Engine) -> Steering {
    let layers = engine.spec().layers.len();
    assert!(layers != 3 || engine.spec().hidden != 64);
    let vector = vector(engine, 1, &[layers - 1]);
    engine
        .steering(&[everywhere(Operation::Add { vector, scale: 1.0 })])
        .unwrap()
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("taps-{}-{name}", std::process::id()))
}

#[test]
fn a_saved_session_is_restored_with_its_steering_alone() {
    let engine = model(EngineOptions::exact());
    let steering = composed(&engine);
    let other = engine.steering(&[everywhere(Operation::Add {
        vector: vector(&engine, 1, &[0]),
        scale: 0.5,
    })]);
    let ids = Random(4).ids(TOKENS, 320);
    let path = file("saved");
    let mut saved = steered(&engine, Some(&steering));
    feed(&mut saved, &ids[..20], Want::Nothing);
    saved.save(&path).unwrap();
    for wrong in [None, Some(other.unwrap())] {
        let error = engine
            .restore_steered(&path, CAPACITY, wrong)
            .err()
            .expect("another steering");
        assert!(matches!(error.problem, LoadProblem::OtherSteering), "{error}");
    }
    // Made again from the same vectors, as in another process.
    let mut restored = engine
        .restore_steered(&path, CAPACITY, Some(composed(&engine)))
        .unwrap();
    let expected = bits(&feed(&mut saved, &ids[20..], Want::All));
    assert!(bits(&feed(&mut restored, &ids[20..], Want::All)) == expected);
    let mut plain = session(&engine, CAPACITY);
    feed(&mut plain, &ids, Want::Nothing);
    plain.save(&path).unwrap();
    assert!(engine.restore(&path, CAPACITY).is_ok());
    let error = engine
        .restore_steered(&path, CAPACITY, Some(steering))
        .err()
        .expect("no steering");
    assert!(matches!(error.problem, LoadProblem::OtherSteering), "{error}");
    fs::remove_file(path).unwrap();
}

#[test]
fn captures_that_cannot_be_are_refused() {
    let engine = model(EngineOptions::exact());
    let refused = |boundaries: &[usize], positions: &[usize]| {
        let request = CaptureRequest {
            boundaries: boundaries.to_vec(),
            positions: positions.to_vec(),
        };
        Capture::new(&engine, vec![request]).unwrap_err()
    };
    let (boundary, last) = (4, 3);
    assert_eq!(refused(&[0, 4], &[0]), CaptureError::BoundaryOutside { boundary, last });
    let (what, number) = ("positions", 3);
    assert_eq!(refused(&[0], &[3, 3]), CaptureError::Order { what, number });
    assert!(matches!(refused(&[2, 1], &[0]), CaptureError::Order { number: 1, .. }));
}

#[test]
fn some_positions_at_some_boundaries_are_captured_and_no_others() {
    let engine = model(EngineOptions::exact());
    let ids = Random(4).ids(TOKENS, 320);
    let whole = together(&mut [session(&engine, CAPACITY)], std::slice::from_ref(&ids), TOKENS).1;
    let some = CaptureRequest {
        boundaries: vec![0, 3],
        positions: vec![2, 17, 39, 50],
    };
    let mut capture = Capture::new(&engine, vec![some.clone()]).unwrap();
    let mut one = session(&engine, CAPACITY);
    for ids in ids.chunks(16) {
        let chunk = Chunk {
            start: one.position(),
            ids,
            want: Want::Nothing,
        };
        let watch = Watch {
            cancel: None,
            probe: Some(&mut capture),
        };
        one.feed_watched(chunk, &mut [], watch).unwrap();
    }
    let captured = &capture.feeds()[0];
    assert_eq!(captured.request(), &some);
    assert!(!captured.is_whole(), "position 50 has not been fed");
    assert_eq!(captured.residual(1), None);
    for boundary in [0, 3] {
        let all = whole.feeds()[0].residual(boundary).unwrap();
        let rows = [2, 17, 39].map(|position| &all[position * 64..][..64]).concat();
        let expected = [rows, vec![0.0; 64]].concat();
        assert_eq!(bits(captured.residual(boundary).unwrap()), bits(&expected));
    }
}

/// A safetensors file of f32 tensors.
fn safetensors(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut header = serde_json::Map::new();
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let info = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert((*name).to_owned(), info);
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

#[test]
fn control_vectors_are_read_or_refused() {
    let path = file("vector.safetensors");
    let open = |tensors: &[(&str, &[usize], &[f32])]| {
        fs::write(&path, safetensors(tensors)).unwrap();
        ControlVector::open(&path)
    };
    let vector = open(&[("direction.2", &[2], &[1.0, 2.0]), ("direction.10", &[2], &[3.0, 4.0])]).unwrap();
    assert_eq!(vector.layers().collect::<Vec<_>>(), [2, 10]);
    assert_eq!(
        (vector.width(), vector.direction(10), vector.direction(3)),
        (2, Some(&[3.0, 4.0][..]), None)
    );
    let problem = |result: Result<ControlVector, ControlVectorError>| result.unwrap_err();
    assert!(matches!(problem(open(&[])), ControlVectorError::NoDirection));
    assert!(matches!(
        problem(open(&[("direction.0", &[0], &[])])),
        ControlVectorError::NoDirection
    ));
    for name in [
        "direction",
        "direction.",
        "direction.x",
        "direction.01",
        "direction.-1",
        "output.weight",
    ] {
        let error = problem(open(&[(name, &[1], &[1.0])]));
        assert!(
            matches!(&error, ControlVectorError::TensorName { tensor } if tensor == name),
            "{error}"
        );
    }
    let error = problem(open(&[("direction.1", &[1, 2], &[1.0, 2.0])]));
    assert!(matches!(error, ControlVectorError::Shape { .. }), "{error}");
    let error = problem(open(&[
        ("direction.1", &[1], &[1.0]),
        ("direction.2", &[2], &[1.0, 2.0]),
    ]));
    let wide = matches!(
        error,
        ControlVectorError::Width {
            layer: 2,
            found: 2,
            expected: 1
        }
    );
    assert!(wide, "{error}");
    let error = problem(open(&[("direction.7", &[1], &[f32::NAN])]));
    assert!(matches!(error, ControlVectorError::NotFinite { layer: 7 }), "{error}");
    let no_file = ControlVector::open(&file("absent"));
    assert!(matches!(no_file, Err(ControlVectorError::Format(_))));
    fs::write(&path, b"GGUF").unwrap();
    assert!(matches!(ControlVector::open(&path), Err(ControlVectorError::Format(_))));
    fs::remove_file(&path).unwrap();
    let model = support::goldens::golden_gguf_path("llama3").expect("a GGUF file");
    let error = ControlVector::open(&model).unwrap_err();
    assert!(
        matches!(&error, ControlVectorError::Architecture { found } if found == "llama"),
        "{error}"
    );
}
