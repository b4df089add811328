//! What routers chose, counted by layer.

mod support;

use std::time::Duration;

use goldcrest_engine::{
    BankCounters, Engine, EngineOptions, Interrupted, Op, OpOutput, Probe, RouterCounters, RouterCounting, Session,
    StreamCounters, StreamOptions, Want, Watch,
};
use support::goldens::golden_cases;
use support::{golden, ids, json, session};

/// Layers of the routers that ran, with the ids that they chose.
#[derive(Default)]
struct Routes {
    layer: usize,
    seen: Vec<(usize, Vec<usize>)>,
}

impl Probe for Routes {
    fn after_op(&mut self, _: usize, op: &Op, output: OpOutput) -> Result<(), Interrupted> {
        match (op, output) {
            (Op::Boundary { layer, .. }, _) => self.layer = *layer,
            (_, OpOutput::Routes { ids, .. }) => {
                self.seen
                    .push((self.layer, ids.iter().map(|id| *id as usize).collect()));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Feeds a chunk to a session that counts.
fn feed_watched(session: &mut Session, ids: &[u32], routes: &mut Routes) {
    let chunk = goldcrest_engine::Chunk {
        start: session.position(),
        ids,
        want: Want::Nothing,
    };
    let watch = Watch {
        probe: Some(routes),
        ..Watch::default()
    };
    session.feed_watched(chunk, &mut [], watch).unwrap();
}

/// What is counted of a prompt, fed as a chunk and token by token, and what a probe saw.
fn count(engine: &Engine, prompt: &[u32]) -> (Vec<RouterCounters>, Routes) {
    let mut session = session(engine, prompt.len());
    let mut routes = Routes::default();
    // Before the counting begins.
    feed_watched(&mut session, &prompt[..1], &mut Routes::default());
    let mut counting = RouterCounting::new(engine);
    session.count();
    let (chunk, single) = prompt[1..].split_at(prompt.len() / 2);
    feed_watched(&mut session, chunk, &mut routes);
    single
        .chunks(1)
        .for_each(|id| feed_watched(&mut session, id, &mut routes));
    counting.add(session.counters().unwrap());
    (counting.counters(), routes)
}

/// Whom the routers of a model in memory chose is what a probe saw.
fn check_choices(case: &str, counters: &[RouterCounters], routes: &Routes) {
    assert!(counters.windows(2).all(|pair| pair[0].layer < pair[1].layer), "{case}");
    for of_layer in counters {
        let ids = routes.seen.iter().filter(|(layer, _)| *layer == of_layer.layer);
        let mut expected = vec![0; of_layer.chosen.len()];
        for id in ids.flat_map(|(_, ids)| ids) {
            // Beyond the experts there is nothing to be counted.
            expected.get_mut(*id).into_iter().for_each(|rows: &mut u64| *rows += 1);
        }
        assert_eq!(of_layer.chosen, expected, "{case}, layer {}", of_layer.layer);
        assert!(expected.iter().sum::<u64>() > 0 && of_layer.reads.is_none(), "{case}");
    }
}

/// The parts of the layers make the whole.
fn check_sums(case: &str, all: &StreamCounters) {
    let sum = |of: fn(&BankCounters) -> u64| all.banks.iter().map(of).sum::<u64>();
    assert_eq!(sum(|bank| bank.hits), all.hits, "{case}");
    assert_eq!(sum(|bank| bank.misses), all.misses, "{case}");
    assert_eq!(sum(|bank| bank.bytes_read), all.bytes_read, "{case}");
    assert_eq!(
        all.banks.iter().map(|bank| bank.waited).sum::<Duration>(),
        all.waited,
        "{case}"
    );
}

/// The same is chosen where experts are read, and what was counted is what was wanted for it.
fn check_reads(case: &str, engine: &Engine, prompt: &[u32], whole: &[RouterCounters]) {
    let (streamed, _) = count(engine, prompt);
    let mut all = 0;
    for (of_layer, of_whole) in streamed.iter().zip(whole) {
        assert_eq!(of_layer.chosen, of_whole.chosen, "{case}");
        let reads = of_layer.reads.unwrap();
        let wanted = reads.hits + reads.misses;
        let chosen = of_layer.chosen.iter().filter(|rows| **rows > 0).count() as u64;
        let pairs = of_layer.chosen.iter().sum();
        assert!(wanted >= chosen && wanted <= pairs, "{case}: {reads:?}");
        all += wanted;
    }
    let counters = engine.stream_counters().unwrap();
    check_sums(case, &counters);
    // What the first token wanted is not among what was counted.
    assert!(all < counters.hits + counters.misses, "{case}");
}

#[test]
fn every_layer_s_choices_and_reads_are_counted() {
    let mut models = 0;
    for case in golden_cases() {
        let checkpoint = golden(&case);
        let whole = Engine::open(&checkpoint, EngineOptions::default()).unwrap();
        if whole.plan().experts.is_empty() {
            continue;
        }
        let prompt = ids(&json(&format!("goldens/{case}/case.json"))["prompt_ids"]);
        let (counters, routes) = count(&whole, &prompt);
        assert_eq!(counters.len(), whole.plan().experts.len(), "{case}");
        check_choices(&case, &counters, &routes);
        let streaming = StreamOptions {
            bytes: 1 << 17,
            ..StreamOptions::default()
        };
        let options = EngineOptions {
            streaming: Some(streaming),
            ..EngineOptions::default()
        };
        // A few experts are larger than that.
        if let Ok(engine) = Engine::open(&checkpoint, options) {
            check_reads(&case, &engine, &prompt, &counters);
            models += 1;
        }
    }
    assert!(models >= 15, "{models} models");
}
