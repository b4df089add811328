//! Whichever read of a file fails, the call that needed it ends with the error, and nothing else is different afterwards.

mod support;

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;

use goldcrest_engine::{
    Chunk, CpuError, Engine, EngineOptions, Eviction, FeedError, OpenError, Session, StreamOptions, Streamed, Want,
};
use goldcrest_format::{Checkpoint, FormatError, SourceError};
use goldcrest_model::plan::ExpertBank;
use goldcrest_model::spec::Matrix;
use support::faults::{Reads, Verdict, judged};
use support::streaming::least_bytes;
use support::watchdog::{Watchdog, watched};
use support::{bits, engine, feed, golden, golden_gguf, ids, json, session};

/// What happens at the read of an ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It fails.
    Once(Verdict),
    /// It fails, and so do those after it.
    FromThenOn(Verdict),
    /// It gives less than it was asked for, which is no failure.
    Short,
}

const FAULTS: [Fault; 4] = [
    Fault::Once(Verdict::Error),
    Fault::Once(Verdict::End),
    Fault::FromThenOn(Verdict::Error),
    Fault::Short,
];

impl Fault {
    /// The error that a read ends with.
    fn error(self) -> Option<ErrorKind> {
        match self {
            Fault::Once(Verdict::End) => Some(ErrorKind::UnexpectedEof),
            Fault::Once(_) | Fault::FromThenOn(_) => Some(ErrorKind::BrokenPipe),
            Fault::Short => None,
        }
    }

    fn happens_at(self, ordinal: usize, reads: &Reads) {
        reads.judge_by(move |read| match self {
            Fault::Once(verdict) if read == ordinal => verdict,
            Fault::FromThenOn(verdict) if read >= ordinal => verdict,
            Fault::Short if read == ordinal => Verdict::Half,
            _ => Verdict::Done,
        });
    }
}

/// A model whose reads fail when they are told to, with ids to feed it.
struct Subject {
    case: &'static str,
    checkpoint: Checkpoint,
    reads: Arc<Reads>,
    ids: Vec<u32>,
    streamed: Streamed,
    /// The memory that the largest takes of what is read at once.
    least_bytes: usize,
}

impl Subject {
    fn new(case: &'static str, checkpoint: Checkpoint, streamed: Streamed, tokens: usize) -> Subject {
        let reads = Arc::default();
        let prompt = ids(&json(&format!("goldens/{case}/case.json"))["prompt_ids"]);
        Subject {
            case,
            streamed,
            least_bytes: least_bytes(&checkpoint, streamed).unwrap(),
            checkpoint: judged(checkpoint, &reads),
            reads,
            ids: prompt[..tokens].to_vec(),
        }
    }
}

/// Every way in which experts are stored: each in tensors of its own or all in one; as rows, as columns, with scales apart. And models of
/// which all weights are read when they are wanted.
fn subjects(tokens: usize) -> impl Iterator<Item = Subject> {
    let safetensors = ["mixtral", "llama4", "gpt_oss_mxfp4", "deepseek_v3_fp8", "lfm2_moe"];
    let safetensors = safetensors.map(|case| Subject::new(case, golden(case), Streamed::Experts, tokens));
    let all = ["llama3", "qwen3_moe"].map(|case| Subject::new(case, golden(case), Streamed::All, tokens));
    let gguf = "qwen3_moe_quant256";
    let gguf = Subject::new(gguf, golden_gguf(gguf).unwrap(), Streamed::Experts, tokens);
    safetensors.into_iter().chain(all).chain([gguf])
}

/// Units that surely fit into memory, threads that compute, threads that read.
type Setting = (usize, usize, usize);

/// As many as there are faults, so that every ordinal meets every fault.
const SETTINGS: [Setting; FAULTS.len()] = [(1, 1, 3), (1, 2, 1), (3, 1, 1), (3, 2, 3)];

/// For the first model.
const MORE_SETTINGS: [Setting; 8] = [
    (1, 1, 1),
    (1, 2, 3),
    (3, 1, 3),
    (3, 2, 1),
    (1 << 20, 1, 1),
    (1 << 20, 1, 3),
    (1 << 20, 2, 1),
    (1 << 20, 2, 3),
];

fn options((units, threads, readers): Setting, subject: &Subject) -> EngineOptions {
    EngineOptions {
        threads: Some(threads),
        max_rows: MAX_ROWS,
        streaming: Some(StreamOptions {
            streamed: subject.streamed,
            bytes: units * subject.least_bytes,
            eviction: Eviction::LeastFrequent,
            readers,
        }),
        ..EngineOptions::default()
    }
}

/// A chunk becomes several calls, so that one can fail after another was committed.
const MAX_ROWS: usize = 3;

/// What a model that is loaded whole makes of the ids.
struct Expected {
    /// Bits of every row's logits.
    rows: Vec<Vec<u32>>,
    state: Vec<u8>,
    /// The tensors that hold what is streamed.
    tensors: HashSet<String>,
}

impl Expected {
    fn of(subject: &Subject) -> Expected {
        let engine = engine(&subject.checkpoint, EngineOptions::default());
        let mut session = session(&engine, subject.ids.len());
        let logits = feed(&mut session, &subject.ids, Want::All);
        let rows = logits.chunks_exact(engine.spec().vocabulary).map(bits);
        let plan = engine.plan();
        let of_experts = plan.experts.iter().flat_map(ExpertBank::projections);
        let of_experts = of_experts.flat_map(|linears| &plan.matrices[linears.matrices.clone()]);
        let matrices: Vec<&Matrix> = match subject.streamed {
            Streamed::Experts => of_experts.collect(),
            Streamed::All => plan.matrices.iter().collect(),
        };
        let tensors = matrices.into_iter().flat_map(|matrix| {
            let scales = matrix.scales.as_ref().map(|scales| scales.tensor.clone());
            [matrix.tensor.clone()].into_iter().chain(scales)
        });
        Expected {
            rows: rows.collect(),
            state: session.visible_state(),
            tensors: tensors.collect(),
        }
    }
}

/// Feeds what of the ids is still to be fed.
fn feed_rest(session: &mut Session, ids: &[u32], expected: &Expected) -> Result<(), FeedError> {
    let start = session.position();
    let mut logits = vec![f32::NAN; (ids.len() - start) * session.engine().spec().vocabulary];
    let chunk = Chunk {
        start,
        ids: &ids[start..],
        want: Want::All,
    };
    session.feed(chunk, &mut logits)?;
    let rows = logits.chunks_exact(session.engine().spec().vocabulary).map(bits);
    assert!(
        rows.eq(expected.rows[start..].iter().cloned()),
        "logits from {start} on"
    );
    assert!(session.visible_state() == expected.state, "the state after all");
    Ok(())
}

/// A run of which the read of this ordinal fails; false if there were not so many.
fn run(subject: &Subject, setting: Setting, expected: &Expected, (ordinal, fault): (usize, Fault)) -> bool {
    let Subject { reads, ids, .. } = subject;
    reads.judge_by(|_| Verdict::Done);
    let engine = engine(&subject.checkpoint, options(setting, subject));
    let mut session = session(&engine, ids.len());
    fault.happens_at(ordinal, reads);
    let result = feed_rest(&mut session, ids, expected);
    let happened = reads.count() > ordinal;
    reads.judge_by(|_| Verdict::Done);
    match (result, fault.error().filter(|_| happened)) {
        (Ok(()), None) => return happened,
        (Err(FeedError::Forward { position, source }), Some(kind)) => {
            assert_eq!(position, session.position());
            assert!(position % MAX_ROWS == 0 && position < ids.len(), "a call counts whole");
            let CpuError::Weights { tensor, source } = source else {
                panic!("{source:?}")
            };
            assert!(expected.tensors.contains(&tensor), "{tensor}");
            check(&source, kind);
        }
        (result, error) => panic!("{result:?} instead of {error:?}"),
    }
    feed_rest(&mut session, ids, expected).unwrap();
    true
}

#[test]
fn any_read_of_a_call_may_fail() {
    watched(|watchdog: &Watchdog| {
        for (nth, subject) in subjects(8).enumerate() {
            let expected = Expected::of(&subject);
            let more = MORE_SETTINGS.into_iter().filter(|_| nth == 0);
            for (i, setting) in SETTINGS.into_iter().chain(more).enumerate() {
                let fault = |ordinal: usize| FAULTS[(i + ordinal) % FAULTS.len()];
                let fails = |ordinal: &usize| run(&subject, setting, &expected, (*ordinal, fault(*ordinal)));
                let failed = (0..).take_while(fails).inspect(|_| watchdog.pat()).count();
                assert!(failed > 8, "{}: {failed} reads, {setting:?}", subject.case);
            }
        }
    });
}

#[test]
fn any_read_of_the_loading_may_fail() {
    watched(|watchdog: &Watchdog| {
        for subject in subjects(4) {
            let expected = Expected::of(&subject);
            let resident = |threads, spares_page_cache| EngineOptions {
                threads: Some(threads),
                spares_page_cache,
                ..EngineOptions::default()
            };
            let all_options = [resident(1, false), resident(2, true), options((1, 2, 1), &subject)];
            for (i, options) in all_options.into_iter().enumerate() {
                let fault = |ordinal: usize| FAULTS[(i + ordinal) % FAULTS.len()];
                let fails = |ordinal: &usize| load(&subject, options, &expected, (*ordinal, fault(*ordinal)));
                let failed = (0..).take_while(fails).inspect(|_| watchdog.pat()).count();
                assert!(failed > 10, "{}: {failed} reads, {options:?}", subject.case);
            }
        }
    });
}

/// Opens an engine of which the read of this ordinal fails; false if there were not so many.
fn load(subject: &Subject, options: EngineOptions, expected: &Expected, (ordinal, fault): (usize, Fault)) -> bool {
    let Subject { reads, ids, .. } = subject;
    fault.happens_at(ordinal, reads);
    let opened = Engine::open(&subject.checkpoint, options);
    let happened = reads.count() > ordinal;
    reads.judge_by(|_| Verdict::Done);
    match (opened, fault.error().filter(|_| happened)) {
        (Ok(engine), None) => feed_rest(&mut session(&engine, ids.len()), ids, expected).unwrap(),
        (Err(OpenError::Backend(CpuError::Weights { tensor, source })), Some(kind)) => {
            assert!(subject.checkpoint.tensor(&tensor).is_some(), "{tensor}");
            check(&source, kind);
        }
        // Which model it is, a few bytes of all tensors say.
        (Err(OpenError::Format(error)), Some(kind)) => check(&error, kind),
        (opened, error) => panic!("{:?} instead of {error:?}", opened.map(|_| ())),
    }
    happened
}

fn check(error: &FormatError, kind: ErrorKind) {
    assert!(
        matches!(error, FormatError::Source(SourceError::Read { error, .. }) if error.kind() == kind),
        "{error:?} instead of {kind}"
    );
}
