//! Random programs.

use goldcrest_engine::{Activations, EngineOptions, Eviction, KvElement, Streamed};
use proptest::prelude::*;

use crate::MODELS;

#[derive(Clone, Debug)]
pub struct Program {
    /// Index into [`MODELS`].
    pub model: usize,
    pub options: EngineOptions,
    /// If not all experts are in memory.
    pub streaming: Option<Streaming>,
    /// With the session each is for.
    pub steps: Vec<(usize, Step)>,
}

/// How weights of a model that has such are read when they are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Streaming {
    pub streamed: Streamed,
    /// How often the largest that is read at once has room.
    pub room: usize,
    pub eviction: Eviction,
    pub readers: usize,
}

#[derive(Clone, Debug)]
pub enum Step {
    Feed(Feed),
    /// The flag is up before the chunk, or goes up during the call of this number.
    Cancel {
        feed: Feed,
        during: Option<usize>,
    },
    /// A probe fails after so many ops, counted over the chunk's calls.
    Interrupt {
        feed: Feed,
        after_ops: usize,
    },
    /// To the length at this point of 0..256 between nothing and a little more than there is.
    Rewind {
        to: usize,
    },
    Wrong {
        feed: Feed,
        mistake: Mistake,
    },
    /// Both sessions in one batch, each with its own feed; a probe may fail after so many ops.
    Batch {
        feeds: [Feed; 2],
        interrupt_after: Option<usize>,
    },
    /// The other session becomes a fork.
    Fork,
    /// Replaces the program's one snapshot.
    Snapshot,
    /// To the snapshot, whichever session it is of.
    Restore,
    /// To a file and back.
    Save,
}

/// Random tokens.
#[derive(Clone, Debug)]
pub struct Feed {
    pub tokens: usize,
    pub seed: u64,
    pub want: Wanted,
}

#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    Nothing,
    Last,
    All,
    /// Each row with a probability of one half.
    Some,
}

#[derive(Clone, Copy, Debug)]
pub enum Mistake {
    Empty,
    Start,
    Id,
    Capacity,
    RowTwice,
    RowOutside,
    LogitsShort,
    LogitsLong,
}

fn feeds() -> impl Strategy<Value = Feed> {
    let tokens = prop_oneof![4 => 1..=12_usize, 2 => 13..=80_usize, 1 => 200..=400_usize];
    let want = prop_oneof![
        Just(Wanted::Nothing),
        Just(Wanted::Last),
        Just(Wanted::All),
        Just(Wanted::Some)
    ];
    (tokens, any::<u64>(), want).prop_map(|(tokens, seed, want)| Feed { tokens, seed, want })
}

fn mistakes() -> impl Strategy<Value = Mistake> {
    use Mistake::{Capacity, Empty, Id, LogitsLong, LogitsShort, RowOutside, RowTwice, Start};
    prop::sample::select(vec![
        Empty,
        Start,
        Id,
        Capacity,
        RowTwice,
        RowOutside,
        LogitsShort,
        LogitsLong,
    ])
}

fn steps() -> impl Strategy<Value = Step> {
    let during = prop::option::of(0..6_usize);
    prop_oneof![
        6 => feeds().prop_map(Step::Feed),
        1 => (feeds(), during).prop_map(|(feed, during)| Step::Cancel { feed, during }),
        2 => (feeds(), 0..400_usize).prop_map(|(feed, after_ops)| Step::Interrupt { feed, after_ops }),
        2 => (0..300_usize).prop_map(|to| Step::Rewind { to }),
        1 => (feeds(), mistakes()).prop_map(|(feed, mistake)| Step::Wrong { feed, mistake }),
        4 => ([feeds(), feeds()], prop::option::weighted(0.3, 0..400_usize))
            .prop_map(|(feeds, interrupt_after)| Step::Batch { feeds, interrupt_after }),
        2 => Just(Step::Fork),
        2 => Just(Step::Snapshot),
        2 => Just(Step::Restore),
        1 => Just(Step::Save),
    ]
}

pub fn programs() -> impl Strategy<Value = Program> {
    let options = (
        prop::sample::select(vec![Activations::Q8, Activations::F32]),
        prop::sample::select(&KvElement::ALL[..]),
        1..=3_usize,
        prop::sample::select(vec![1, 3, 5, 64_usize]),
    );
    let options = options.prop_map(|(activations, kv, threads, max_rows)| EngineOptions {
        activations: Some(activations),
        kv,
        threads: Some(threads),
        max_rows,
        ..EngineOptions::default()
    });
    let streaming = (
        prop::sample::select(vec![Streamed::Experts, Streamed::All]),
        prop_oneof![Just(1), 2..=6_usize, 7..=40_usize],
        prop::sample::select(vec![Eviction::LeastFrequent, Eviction::LeastRecent]),
        1..=3_usize,
    );
    let streaming = streaming.prop_map(|(streamed, room, eviction, readers)| Streaming {
        streamed,
        room,
        eviction,
        readers,
    });
    let streaming = prop::option::of(streaming);
    let steps = prop::collection::vec((prop_oneof![3 => Just(0_usize), 1 => Just(1)], steps()), 1..18);
    (0..MODELS.len(), options, streaming, steps).prop_map(|(model, options, streaming, steps)| Program {
        model,
        options,
        streaming,
        steps,
    })
}
