//! What routers chose, counted by layer.

mod support;

use goldcrest_engine::{
    Engine, EngineOptions, Interrupted, Op, OpOutput, Probe, RouterCounters, RouterCounting, Session, StreamOptions,
    Want, Watch,
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
        for of_layer in &counters {
            let ids = routes.seen.iter().filter(|(layer, _)| *layer == of_layer.layer);
            let mut expected = vec![0; of_layer.chosen.len()];
            for id in ids.flat_map(|(_, ids)| ids) {
                // Beyond the experts there is nothing to be counted.
                expected.get_mut(*id).into_iter().for_each(|rows: &mut u64| *rows += 1);
            }
            assert_eq!(of_layer.chosen, expected, "{case}, layer {}", of_layer.layer);
            assert!(expected.iter().sum::<u64>() > 0 && of_layer.reads.is_none(), "{case}");
        }
        assert_eq!(counters.len(), whole.plan().experts.len(), "{case}");
        assert!(counters.windows(2).all(|pair| pair[0].layer < pair[1].layer), "{case}");

        let experts = Some(StreamOptions {
            bytes: 1 << 17,
            ..StreamOptions::default()
        });
        let streaming = EngineOptions {
            streaming: experts,
            ..EngineOptions::default()
        };
        let Ok(engine) = Engine::open(&checkpoint, streaming) else {
            continue;
        };
        let before = engine.stream_counters().unwrap();
        let (streamed, _) = count(&engine, &prompt);
        let after = engine.stream_counters().unwrap();
        assert_eq!(before.hits + before.misses, 0, "{case}");
        let of_banks = after.banks.iter();
        assert_eq!(
            of_banks.clone().map(|bank| bank.hits).sum::<u64>(),
            after.hits,
            "{case}"
        );
        assert_eq!(
            of_banks.clone().map(|bank| bank.misses).sum::<u64>(),
            after.misses,
            "{case}"
        );
        assert_eq!(
            of_banks.clone().map(|bank| bank.bytes_read).sum::<u64>(),
            after.bytes_read,
            "{case}"
        );
        assert_eq!(
            of_banks.map(|bank| bank.waited).sum::<std::time::Duration>(),
            after.waited,
            "{case}"
        );
        for (of_layer, of_whole) in streamed.iter().zip(&counters) {
            assert_eq!(of_layer.chosen, of_whole.chosen, "{case}");
            let reads = of_layer.reads.unwrap();
            let wanted = reads.hits + reads.misses;
            let chosen = of_layer.chosen.iter().filter(|rows| **rows > 0).count() as u64;
            assert!(
                wanted >= chosen && wanted <= of_layer.chosen.iter().sum(),
                "{case}: {reads:?}"
            );
        }
        // What the first token wanted is not among it.
        let all: u64 = streamed
            .iter()
            .filter_map(|layer| layer.reads)
            .map(|reads| reads.hits + reads.misses)
            .sum();
        assert!(all < after.hits + after.misses, "{case}");
        models += 1;
    }
    assert!(models >= 15, "{models} models");
}
