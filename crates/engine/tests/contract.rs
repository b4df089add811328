//! What engines and sessions promise, promise by promise: errors with their values, wanted rows, counters.

mod support;

use std::collections::BTreeSet;

use goldcrest_engine::{
    Activations, Chunk, Counters, Engine, EngineOptions, FeedError, Interrupted, Isa, KvElement, Op, OpKind, OpOutput,
    OpenError, PhaseCounters, Probe, RewindError, Session, SessionError, Want, Watch,
};
use goldcrest_format::DType;
use goldcrest_model::SpecError;
use goldcrest_model::plan::Rows;
use support::{Random, bits, engine, feed, golden, session};

const VOCABULARY: usize = 256;

/// Two layers with a window of 16, vocabulary 256.
fn windowed(options: EngineOptions) -> Engine {
    engine(&golden("mistral_swa"), options)
}

fn small_calls(max_rows: usize) -> EngineOptions {
    EngineOptions {
        threads: Some(2),
        max_rows,
        ..EngineOptions::exact()
    }
}

fn ids(count: usize) -> Vec<u32> {
    Random(5).ids(count, VOCABULARY)
}

fn nothing(start: usize, ids: &[u32]) -> Chunk<'_> {
    Chunk {
        start,
        ids,
        want: Want::Nothing,
    }
}

/// The error of a chunk that is refused.
fn refused(session: &mut Session, chunk: Chunk, logits: usize) -> FeedError {
    session.feed(chunk, &mut vec![0.0; logits]).unwrap_err()
}

/// A session of 20 positions, half of them fed with `ids(10)`.
fn half_full() -> Session {
    let mut session = session(&windowed(small_calls(64)), 20);
    feed(&mut session, &ids(10), Want::Nothing);
    session
}

/// Refusals have left a [`half_full`] session as it was.
fn assert_unchanged(session: &Session) {
    assert_eq!((session.position(), session.ids()), (10, &ids(10)[..]));
}

#[test]
fn a_wrong_chunk_is_refused_with_what_is_wrong() {
    let mut session = half_full();
    let (chunk, start) = (ids(4), 10);

    assert!(matches!(
        refused(&mut session, nothing(10, &[]), 0),
        FeedError::EmptyChunk
    ));
    for wrong in [0, 9, 11, usize::MAX] {
        let error = refused(&mut session, nothing(wrong, &chunk), 0);
        assert!(
            matches!(error, FeedError::WrongStart { start, position: 10 } if start == wrong),
            "{error:?}"
        );
    }
    for id in [256, u32::MAX] {
        let error = refused(&mut session, nothing(start, &[0, 255, id]), 0);
        let FeedError::IdOutsideVocabulary {
            index: 2,
            id: found,
            vocabulary: VOCABULARY,
        } = error
        else {
            panic!("{error:?}")
        };
        assert_eq!(found, id);
    }
    assert_unchanged(&session);
}

#[test]
fn wrong_rows_and_buffers_are_refused_with_what_is_wrong() {
    let mut session = half_full();
    let (chunk, start) = (ids(4), 10);

    for (rows, wrong) in [
        (&[4][..], 4),
        (&[1, 1], 1),
        (&[2, 3, 0], 0),
        (&[usize::MAX], usize::MAX),
    ] {
        let chunk = Chunk {
            start,
            ids: &chunk,
            want: Want::Rows(rows),
        };
        let error = refused(&mut session, chunk, rows.len() * VOCABULARY);
        assert!(
            matches!(error, FeedError::WantedRow { row, tokens: 4 } if row == wrong),
            "{error:?}"
        );
    }
    let wants = [
        (Want::Nothing, 0_usize),
        (Want::Last, 256),
        (Want::All, 1024),
        (Want::Rows(&[0, 2]), 512),
    ];
    for (want, length) in wants {
        for wrong in [length + 1, length + 256].into_iter().chain(length.checked_sub(1)) {
            let error = refused(
                &mut session,
                Chunk {
                    start,
                    ids: &chunk,
                    want,
                },
                wrong,
            );
            let FeedError::LogitsLength { found, expected } = error else {
                panic!("{error:?}")
            };
            assert_eq!((found, expected), (wrong, length));
        }
    }
    assert_unchanged(&session);
}

#[test]
fn the_capacity_can_be_filled_and_not_exceeded() {
    let mut session = half_full();
    let error = refused(&mut session, nothing(10, &ids(11)), 0);
    assert!(
        matches!(
            error,
            FeedError::CapacityExceeded {
                tokens: 11,
                position: 10,
                capacity: 20
            }
        ),
        "{error:?}"
    );
    assert_unchanged(&session);
    feed(&mut session, &ids(10), Want::Last);
    let error = refused(&mut session, nothing(20, &[1]), 0);
    assert!(
        matches!(
            error,
            FeedError::CapacityExceeded {
                tokens: 1,
                position: 20,
                capacity: 20
            }
        ),
        "{error:?}"
    );
}

#[test]
fn the_first_mistake_in_the_documented_order_is_reported() {
    let mut session = session(&windowed(small_calls(64)), 2);
    let want = Want::Rows(&[9]);
    let chunk = |start, ids| Chunk { start, ids, want };
    assert!(matches!(refused(&mut session, chunk(1, &[]), 1), FeedError::EmptyChunk));
    assert!(matches!(
        refused(&mut session, chunk(1, &[999; 3]), 1),
        FeedError::WrongStart { .. }
    ));
    assert!(matches!(
        refused(&mut session, chunk(0, &[999; 3]), 1),
        FeedError::IdOutsideVocabulary { index: 0, .. }
    ));
    assert!(matches!(
        refused(&mut session, chunk(0, &[9; 3]), 1),
        FeedError::CapacityExceeded { .. }
    ));
    assert!(matches!(
        refused(&mut session, chunk(0, &[9; 2]), 1),
        FeedError::WantedRow { .. }
    ));
}

struct FailAt(usize);

impl Probe for FailAt {
    fn after_op(&mut self, index: usize, _: &Op, _: OpOutput) -> Result<(), Interrupted> {
        if self.0 == 0 {
            return Err(Interrupted { op: index });
        }
        self.0 -= 1;
        Ok(())
    }
}

#[test]
fn a_failed_call_names_its_op_and_keeps_the_calls_before() {
    let engine = windowed(small_calls(3));
    let ops = engine.plan().ops.len();
    let mut session = session(&engine, 20);
    let mut probe = FailAt(ops + 4);
    let watch = Watch {
        cancel: None,
        probe: Some(&mut probe),
    };
    let ids = ids(10);
    let error = session
        .feed_watched(
            Chunk {
                start: 0,
                ids: &ids,
                want: Want::Nothing,
            },
            &mut [],
            watch,
        )
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the forward call failed at position 3: the forward call was interrupted after op 4"
    );
    assert_eq!(session.ids(), &ids[..3]);
}

#[test]
fn rewinding_reaches_what_windows_still_hold() {
    let mut session = session(&windowed(small_calls(64)), 600);
    feed(&mut session, &ids(270), Want::Nothing);
    assert_eq!(
        session.rewind(271),
        Err(RewindError::Ahead {
            length: 271,
            position: 270
        })
    );
    assert_eq!(
        session.rewind(usize::MAX),
        Err(RewindError::Ahead {
            length: usize::MAX,
            position: 270
        })
    );
    // Token 270 sees 255..=270, so the first page is still there.
    assert_eq!(session.rewind(0), Ok(()));
    feed(&mut session, &ids(271), Want::Nothing);
    assert_eq!(
        session.rewind(270),
        Err(RewindError::Gone {
            length: 270,
            shortest: 271
        })
    );
    feed(&mut session, &ids(200), Want::Nothing);
    assert_eq!(
        session.rewind(270),
        Err(RewindError::Gone {
            length: 270,
            shortest: 271
        })
    );
    assert_eq!((session.position(), session.rewind(471)), (471, Ok(())));
    assert_eq!((session.rewind(271), session.position()), (Ok(()), 271));
    // Nothing is always within reach.
    assert_eq!((session.rewind(0), session.position(), session.bytes()), (Ok(()), 0, 0));
}

#[test]
fn a_model_that_sees_everything_rewinds_to_any_length() {
    let mut session = session(&engine(&golden("llama_bias_linear"), small_calls(64)), 600);
    feed(&mut session, &ids(600), Want::Nothing);
    for length in [600, 599, 513, 512, 511, 256, 1, 0] {
        assert_eq!(session.rewind(length), Ok(()));
        assert_eq!(session.position(), length);
    }
    assert!(session.visible_state().is_empty());
    assert_eq!(session.bytes(), 0);
}

#[test]
fn sessions_need_room() {
    let engine = windowed(small_calls(64));
    assert!(matches!(engine.session(0), Err(SessionError::NoCapacity)));
    let session = session(&engine, 1);
    assert_eq!((session.capacity(), session.position(), session.bytes()), (1, 0, 0));
}

/// Memory is taken as tokens come, so any capacity is possible.
#[test]
fn capacity_alone_costs_nothing() {
    let mut session = session(&windowed(small_calls(64)), usize::MAX);
    assert_eq!(session.bytes(), 0);
    feed(&mut session, &ids(3), Want::Last);
    assert_eq!(session.capacity(), usize::MAX);
}

#[test]
fn engines_that_cannot_be_are_refused() {
    let checkpoint = golden("mistral_swa");
    let open = |options| Engine::open(&checkpoint, options).err().expect("no engine");
    assert!(matches!(
        open(EngineOptions {
            max_rows: 0,
            ..EngineOptions::default()
        }),
        OpenError::NoRows
    ));
    for threads in [0, usize::MAX] {
        let error = open(EngineOptions {
            threads: Some(threads),
            ..EngineOptions::default()
        });
        let OpenError::Backend(error) = error else {
            panic!("{error:?}")
        };
        assert!(error.to_string().contains(&threads.to_string()), "{error}");
    }
    assert!(matches!(
        open(EngineOptions {
            max_rows: usize::MAX,
            ..EngineOptions::default()
        }),
        OpenError::Backend(_)
    ));
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        let error = open(EngineOptions {
            isa: Some(isa),
            ..EngineOptions::default()
        });
        assert!(error.to_string().contains(&isa.to_string()), "{error}");
    }
    let mut unknown = golden("mistral_swa");
    let goldcrest_format::Config::Hf(config) = unknown.config_mut() else {
        panic!("a folder's config")
    };
    config.insert("architectures".into(), serde_json::json!(["NobodyForCausalLM"]));
    config.insert("model_type".into(), serde_json::json!("nobody"));
    let error = Engine::open(&unknown, EngineOptions::default())
        .err()
        .expect("no engine");
    let OpenError::Spec(error) = error else {
        panic!("{error:?}")
    };
    let _: &SpecError = &error;
    assert!(error.to_string().to_lowercase().contains("nobody"), "{error}");
}

#[test]
fn an_engine_says_how_it_computes() {
    let options = EngineOptions {
        activations: Some(Activations::F32),
        kv: KvElement::F32,
        threads: Some(3),
        isa: Some(Isa::Scalar),
        max_rows: 7,
        ..EngineOptions::default()
    };
    let engine = windowed(options);
    assert_eq!((engine.threads(), engine.isa()), (3, Isa::Scalar));
    assert_eq!((engine.options().kv, engine.options().max_rows), (KvElement::F32, 7));
    let vocabularies = (engine.spec().vocabulary, engine.plan().vocabulary);
    assert_eq!(vocabularies, (VOCABULARY, VOCABULARY));
    assert!(engine.weight_bytes() > 0);
    let exact = EngineOptions::exact();
    assert_eq!((exact.activations, exact.kv), (Some(Activations::F32), KvElement::F32));
}

#[test]
fn wanted_rows_are_those_of_all() {
    let ids = ids(23);
    for max_rows in [1, 4, 64] {
        let engine = windowed(small_calls(max_rows));
        let all = feed(&mut session(&engine, 23), &ids, Want::All);
        let rows: Vec<&[f32]> = all.chunks_exact(VOCABULARY).collect();
        for wanted in [
            vec![],
            vec![22],
            vec![0],
            vec![3, 4, 5],
            vec![0, 1, 7, 8, 21, 22],
            (0..23).collect(),
        ] {
            let some = feed(&mut session(&engine, 23), &ids, Want::Rows(&wanted));
            let expected: Vec<f32> = wanted.iter().flat_map(|&row| rows[row]).copied().collect();
            assert_eq!(bits(&some), bits(&expected), "rows {wanted:?} in calls of {max_rows}");
        }
        let last = feed(&mut session(&engine, 23), &ids, Want::Last);
        assert_eq!(bits(&last), bits(rows[22]));
        let mut silent = session(&engine, 24);
        assert!(feed(&mut silent, &ids, Want::Nothing).is_empty());
        let mut loud = session(&engine, 24);
        feed(&mut loud, &ids, Want::All);
        assert!(silent.visible_state() == loud.visible_state());
    }
}

/// Bytes of a plan's matrix products in one call: of the layers, and of the head, whose output are the logits.
fn matmul_elements(engine: &Engine) -> (u64, u64) {
    let plan = engine.plan();
    let (mut layers, mut head) = (0, 0);
    for op in &plan.ops {
        let Op::MatMul { weight, out, .. } = *op else { continue };
        let matrix = plan.matrix(weight);
        assert_eq!(matrix.dtype, DType::BF16);
        let elements = (matrix.cols * matrix.outputs()) as u64;
        *(if out == plan.logits { &mut head } else { &mut layers }) += elements;
    }
    (layers, head)
}

fn counted(engine: &Engine, ids: &[u32], want: Want) -> Counters {
    let mut session = session(engine, ids.len());
    session.count();
    feed(&mut session, ids, want);
    session.counters().expect("counting").clone()
}

#[test]
fn the_head_runs_on_wanted_rows_alone() {
    let engine = windowed(small_calls(3));
    let (layers, head) = matmul_elements(&engine);
    assert!(layers > 0 && head > 0);
    let cost = |want| {
        let cost = counted(&engine, &ids(11), want).prefill.op(OpKind::MatMul).cost;
        (cost.weight_bytes / 2, cost.operations / 2)
    };
    // 11 tokens are four calls; each reads the weights once, and multiplies with them for every row.
    assert_eq!(cost(Want::Nothing), (4 * layers, 11 * layers));
    assert_eq!(cost(Want::Last), (4 * layers + head, 11 * layers + head));
    assert_eq!(cost(Want::Rows(&[1, 2])), (4 * layers + head, 11 * layers + 2 * head));
    assert_eq!(
        cost(Want::Rows(&[2, 3])),
        (4 * layers + 2 * head, 11 * layers + 2 * head)
    );
    assert_eq!(cost(Want::All), (4 * layers + 4 * head, 11 * layers + 11 * head));
    // Its input and output have rows for the wanted ones only.
    let plan = engine.plan();
    for op in &plan.ops {
        if let Op::MatMul { input, out, .. } = *op {
            let rows = if out == plan.logits { Rows::Wanted } else { Rows::All };
            assert_eq!((plan.buffer(input).rows, plan.buffer(out).rows), (rows, rows));
        }
    }
}

#[test]
fn counters_count_calls_tokens_runs_and_bytes() {
    let engine = windowed(small_calls(4));
    let mut session = session(&engine, 40);
    assert!(session.counters().is_none());
    feed(&mut session, &ids(3), Want::Last);
    session.count();
    feed(&mut session, &ids(10), Want::Last);
    feed(&mut session, &ids(1), Want::Last);
    feed(&mut session, &ids(9), Want::Nothing);
    let counters = session.counters().expect("counting").clone();
    // 10 = 4 + 4 + 2, then a single token, then 9 = 4 + 4 + 1.
    let calls = |phase: &PhaseCounters| (phase.calls, phase.tokens);
    assert_eq!((calls(&counters.prefill), calls(&counters.decode)), ((5, 18), (2, 2)));
    for &kind in OpKind::ALL {
        let in_plan = engine.plan().ops.iter().filter(|op| op.kind() == kind).count() as u64;
        assert_eq!(counters.prefill.op(kind).runs, 5 * in_plan, "{}", kind.name());
        assert_eq!(counters.decode.op(kind).runs, 2 * in_plan, "{}", kind.name());
    }
    for phase in [&counters.prefill, &counters.decode] {
        let ops = phase.all();
        assert!(phase.wall >= ops.time && ops.time > phase.op(OpKind::MatMul).time);
        assert_eq!(
            phase.ops().map(|op| op.cost.operations).sum::<u64>(),
            ops.cost.operations
        );
    }
    // Keys and values: two layers of two heads, 16 + 16 f32 each, are 512 bytes a position. A row sees at most 16 positions.
    let position = 2 * 2 * (16 + 16) * 4;
    let bytes = |phase: &PhaseCounters, kind| phase.op(kind).cost.state_bytes;
    assert_eq!(bytes(&counters.prefill, OpKind::KvWrite), 18 * position);
    assert_eq!(bytes(&counters.decode, OpKind::KvWrite), 2 * position);
    // The calls of several rows see those from 0, 0, 0, 0 and 3 on, up to 7, 11, 13, 18 and 22; those of one row 16 each.
    assert_eq!(
        bytes(&counters.prefill, OpKind::Attend),
        (7 + 11 + 13 + 18 + 19) * position
    );
    assert_eq!(bytes(&counters.decode, OpKind::Attend), (14 + 16) * position);
    // For every query head of every layer a product with each key and with each value that a row sees.
    let (layers, heads) = (2, heads_of(&engine));
    let operations = |positions: &mut dyn Iterator<Item = u64>| {
        positions.map(|p| 16.min(p + 1)).sum::<u64>() * layers * heads * 2 * (16 + 16)
    };
    assert_eq!(
        counters.prefill.op(OpKind::Attend).cost.operations,
        operations(&mut (3..13).chain(14..22))
    );
    assert_eq!(
        counters.decode.op(OpKind::Attend).cost.operations,
        operations(&mut [13, 22].into_iter())
    );
    session.count();
    assert_eq!(session.counters().expect("counting").prefill.calls, 0);
}

fn heads_of(engine: &Engine) -> u64 {
    let heads = engine.plan().ops.iter().find_map(|op| match *op {
        Op::Attend { heads, .. } => Some(heads),
        _ => None,
    });
    heads.expect("the model attends") as u64
}

/// Keeps the ids of every router.
#[derive(Default)]
struct Choices(Vec<Vec<f32>>);

impl Probe for Choices {
    fn after_op(&mut self, _index: usize, _op: &Op, output: OpOutput) -> Result<(), Interrupted> {
        if let OpOutput::Routes { ids, .. } = output {
            self.0.push(ids.to_vec());
        }
        Ok(())
    }
}

#[test]
fn only_chosen_experts_count() {
    let engine = engine(&golden("mixtral"), small_calls(5));
    let mut session = session(&engine, 16);
    session.count();
    let mut choices = Choices::default();
    for tokens in [5, 1] {
        let chunk = Chunk {
            start: session.position(),
            ids: &ids(tokens),
            want: Want::Nothing,
        };
        let watch = Watch {
            cancel: None,
            probe: Some(&mut choices),
        };
        session.feed_watched(chunk, &mut [], watch).unwrap();
    }
    let counters = session.counters().expect("counting");
    // Gate, up and down of 64 x 16, in BF16.
    let (elements, top_k, layers) = (3 * 64 * 16_u64, 2, engine.plan().layers);
    for (phase, choices, rows) in [
        (&counters.prefill, &choices.0[..layers], 5),
        (&counters.decode, &choices.0[layers..], 1),
    ] {
        let distinct = |ids: &Vec<f32>| ids.iter().map(|id| *id as u64).collect::<BTreeSet<_>>().len() as u64;
        let chosen: u64 = choices.iter().map(distinct).sum();
        assert!(
            chosen >= (layers * top_k) as u64 && chosen < 8 * layers as u64,
            "{choices:?}"
        );
        let cost = phase.op(OpKind::Experts).cost;
        assert_eq!(cost.weight_bytes, chosen * elements * 2);
        assert_eq!(cost.operations, 2 * elements * (rows * top_k * layers) as u64);
    }
}

#[test]
fn counting_changes_no_bit_and_failed_calls_do_not_count() {
    let engine = windowed(small_calls(4));
    let (mut plain, mut counting) = (session(&engine, 40), session(&engine, 40));
    counting.count();
    let ids = ids(30);
    assert_eq!(
        bits(&feed(&mut plain, &ids, Want::All)),
        bits(&feed(&mut counting, &ids, Want::All))
    );
    assert!(plain.visible_state() == counting.visible_state());
    let before = counting.counters().expect("counting").prefill.clone();
    let mut probe = FailAt(3);
    let watch = Watch {
        cancel: None,
        probe: Some(&mut probe),
    };
    let chunk = Chunk {
        start: 30,
        ids: &ids[..4],
        want: Want::Nothing,
    };
    assert!(matches!(
        counting.feed_watched(chunk, &mut [], watch),
        Err(FeedError::Forward { position: 30, .. })
    ));
    let after = &counting.counters().expect("counting").prefill;
    assert_eq!(
        (before.calls, before.tokens, before.wall, before.all()),
        (after.calls, after.tokens, after.wall, after.all())
    );
}
