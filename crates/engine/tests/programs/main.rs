//! Whatever is done to a session, it is where a straight run of the same tokens would be.
//!
//! Random programs feed two sessions of one engine in turns or in one batch, in chunks of any size and with any rows wanted, cancel them,
//! interrupt them after any op, rewind them, fork them, take snapshots and go back to them, save and load them, and hand them chunks that
//! are wrong. An oracle that knows only the contract says what each step returns.
//! At the end ids, state and every row of logits equal those of a fresh session of another engine, fed in one go.

mod program;
mod subject;
#[path = "../support/mod.rs"]
mod support;

use std::sync::LazyLock;

use goldcrest_engine::{EngineOptions, Eviction, StreamOptions, Streamed};
use goldcrest_format::{Checkpoint, DType};
use program::{Feed, Program, Step, Streaming, Wanted, programs};
use proptest::prelude::*;
use subject::{Subject, feed_both};
use support::streaming::least_bytes;
use support::{engine, golden, golden_gguf};

/// More than two pages of 256 positions, so that windows let pages go.
const CAPACITY: usize = 700;

/// Models of every kind of state: all positions, a window, both, shared keys and values, latents, recurrences and their mixtures; rope in
/// all forms; and quantised weights, for which the type of activations matters.
static MODELS: LazyLock<Vec<Checkpoint>> = LazyLock::new(|| {
    let cases = [
        "llama3",
        "mistral_swa",
        "gemma3",
        "smollm3",
        "qwen2_swa",
        "llama_bias_linear",
        "llama_dynamic_ntk",
        "gemma4_ple",
        "deepseek_v3",
        "glm_moe_dsa",
        "mamba",
        "falcon_h1",
        "qwen3_next",
        "kimi_linear",
        "minimax",
        "lfm2_moe",
    ];
    let types = [DType::Q4_1, DType::Q8_0, DType::Q5_0, DType::F16];
    let quantised = |case: &str| {
        let source = golden_gguf(case).unwrap();
        support::open(&support::gguf::reencode(
            &source,
            &format!("programs-{case}.gguf"),
            |i| types[i % types.len()],
        ))
    };
    cases
        .into_iter()
        .map(golden)
        .chain([quantised("gemma3"), quantised("llama3")])
        .collect()
});

fn run(program: &Program) {
    let checkpoint = &MODELS[program.model];
    let experts = |streaming: Streaming| {
        Some(StreamOptions {
            streamed: streaming.streamed,
            bytes: streaming.room * least_bytes(checkpoint, streaming.streamed)?,
            eviction: streaming.eviction,
            readers: streaming.readers,
        })
    };
    let options = EngineOptions {
        streaming: program.streaming.and_then(experts),
        ..program.options
    };
    let subject = engine(checkpoint, options);
    let mut subjects = [Subject::new(&subject), Subject::new(&subject)];
    let mut taken = None;
    for (which, step) in &program.steps {
        match step {
            Step::Fork => subjects[1 - which] = subjects[*which].fork(),
            Step::Batch { feeds, interrupt_after } => feed_both(&mut subjects, feeds, *interrupt_after),
            step => subjects[*which].run(step, &mut taken),
        }
    }
    // Other threads, other calls, all experts in memory, and the same numbers.
    let straight = engine(
        checkpoint,
        EngineOptions {
            threads: Some(1),
            max_rows: 96,
            ..program.options
        },
    );
    for subject in subjects {
        subject.compare(&straight);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn a_session_is_where_a_straight_run_would_be(program in programs()) {
        run(&program);
    }
}

/// Every op of a model, in a call that crosses a page, is a place to fail at.
#[test]
fn an_interrupt_after_any_op_leaves_nothing_behind() {
    for (model, checkpoint) in MODELS.iter().enumerate() {
        let options = EngineOptions {
            threads: Some(2),
            max_rows: 16,
            ..EngineOptions::default()
        };
        let ops = engine(checkpoint, options).plan().ops.len();
        let all = Wanted::All;
        let mut steps = vec![Step::Feed(Feed {
            tokens: 250,
            seed: 1,
            want: Wanted::Nothing,
        })];
        steps.extend((0..ops).map(|op| {
            let feed = Feed {
                tokens: 10 + op % 7,
                seed: op as u64,
                want: all,
            };
            Step::Interrupt { feed, after_ops: op }
        }));
        steps.push(Step::Feed(Feed {
            tokens: 30,
            seed: 2,
            want: all,
        }));
        run(&Program {
            model,
            options,
            // Half of the models have room for few weights, or for few experts if they have some.
            streaming: (model % 2 == 0).then_some(Streaming {
                streamed: [Streamed::All, Streamed::Experts][model / 2 % 2],
                room: 3,
                eviction: Eviction::default(),
                readers: 2,
            }),
            steps: steps.into_iter().map(|step| (0, step)).collect(),
        });
    }
}

/// Windows move over pages and let them go; what is gone cannot be rewound to, the rest can.
#[test]
fn long_sequences_let_go_of_pages_and_rewind_within_them() {
    for (model, max_rows) in (0..MODELS.len()).zip([64, 3, 64, 5, 1, 64, 80, 7, 300].into_iter().cycle()) {
        let options = EngineOptions {
            threads: Some(2),
            max_rows,
            ..EngineOptions::default()
        };
        let feed = |tokens, seed| {
            Step::Feed(Feed {
                tokens,
                seed,
                want: Wanted::Last,
            })
        };
        let steps = [
            feed(255, 1),
            feed(1, 2),
            Step::Rewind { to: 128 },
            feed(400, 3),
            Step::Rewind { to: 20 },
            // A few tokens back, into the page before.
            Step::Rewind { to: 250 },
            feed(150, 4),
            Step::Rewind { to: 257 },
            Step::Rewind { to: 256 },
            Step::Rewind { to: 0 },
            feed(20, 5),
        ];
        run(&Program {
            model,
            options,
            streaming: None,
            steps: steps.map(|step| (0, step)).to_vec(),
        });
    }
}
