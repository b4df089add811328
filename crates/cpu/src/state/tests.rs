use goldcrest_kernels::SEGMENT_POSITIONS;
use goldcrest_model::backend::{Interrupted, SavedSize};
use goldcrest_model::plan::{BufferId, Kv, Recurrent};

use super::*;
use crate::CpuError;

const WIDTH: usize = 16;
const MEMORY: RecurrentId = RecurrentId(1);

/// A layer that sees everything, one with a window of 20, two recurrent memories of 3 and 5 numbers.
fn plan(recurrent: bool) -> Plan {
    let kv = |window| Kv {
        heads: 1,
        key_dim: WIDTH,
        plain_key_dims: 0,
        value_dim: WIDTH,
        window,
    };
    let recurrents = if recurrent { vec![3, 5] } else { vec![] };
    Plan {
        vocabulary: 1,
        hidden: WIDTH,
        layers: 4,
        buffers: Vec::new(),
        matrices: Vec::new(),
        vectors: Vec::new(),
        norms: Vec::new(),
        ropes: Vec::new(),
        kvs: vec![kv(None), kv(Some(20))],
        recurrents: recurrents.into_iter().map(|len| Recurrent { len }).collect(),
        experts: Vec::new(),
        ops: Vec::new(),
        logits: BufferId(0),
    }
}

fn state(recurrent: bool) -> State {
    State::new(&plan(recurrent), KvElement::F32, 1 << 20, &Arc::default())
}

/// What a forward call does to a state, short of the end: every row writes to every layer and moves every memory on.
fn begin(state: &mut State, ids: &[u8]) {
    state.reserve(ids.len()).unwrap();
    for (i, &id) in ids.iter().enumerate() {
        let position = state.length() + i;
        let number = f32::from(id) + position as f32 / 1024.0;
        for layer in 0..state.layers.len() {
            let layout = *state.layer(layer).layout();
            let page = state.page_mut(layer, position / SEGMENT_POSITIONS);
            let saturated = layout.write(page, position % SEGMENT_POSITIONS, &[number; WIDTH], &[-number; WIDTH]);
            state.add_saturated(saturated);
        }
        for memory in 0..state.memories.len() {
            for x in state.recurrent_mut(RecurrentId(memory)) {
                *x = *x * 0.5 + number;
            }
        }
    }
}

fn feed(state: &mut State, ids: &[u8]) {
    begin(state, ids);
    state.commit(ids.len());
}

fn visible(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.visible(&mut bytes);
    bytes
}

/// What a straight run over these ids leaves.
fn straight(recurrent: bool, ids: &[u8]) -> Vec<u8> {
    let mut state = state(recurrent);
    feed(&mut state, ids);
    visible(&state)
}

fn ids(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 37 % 251) as u8).collect()
}

#[test]
fn memories_start_at_zero_and_carry_on() {
    let mut state = state(true);
    state.reserve(1).unwrap();
    assert_eq!(state.recurrent_mut(MEMORY), [0.0; 5]);
    state.recurrent_mut(MEMORY)[2] = 7.0;
    assert_eq!(state.recurrent_mut(MEMORY)[2], 7.0);
    state.commit(1);
    state.reserve(1).unwrap();
    assert_eq!(state.recurrent_mut(MEMORY), [0.0, 0.0, 7.0, 0.0, 0.0]);
}

#[test]
fn any_cut_into_calls_leaves_the_same() {
    let ids = ids(600);
    for calls in [1, 7, 255, 256, 257] {
        let mut state = state(true);
        ids.chunks(calls).for_each(|call| feed(&mut state, call));
        assert!(visible(&state) == straight(true, &ids), "calls of {calls}");
    }
}

#[test]
fn a_failed_call_leaves_nothing_behind() {
    let ids = ids(300);
    let mut state = state(true);
    begin(&mut state, &ids);
    state.drop_uncommitted();
    assert!(visible(&state).is_empty());
    for call in ids.chunks(100) {
        begin(&mut state, &[9; 200]);
        state.drop_uncommitted();
        feed(&mut state, call);
    }
    assert!(visible(&state) == straight(true, &ids));
}

/// One that panicked has not even been dropped.
#[test]
fn a_call_without_an_end_leaves_nothing_behind() {
    let mut state = state(true);
    feed(&mut state, &ids(100));
    begin(&mut state, &[9; 30]);
    feed(&mut state, &ids(110)[100..]);
    assert!(visible(&state) == straight(true, &ids(110)));
}

#[test]
fn calls_after_the_first_use_the_same_two_copies() {
    let mut state = state(true);
    let mut copies = Vec::new();
    for id in 0..6 {
        begin(&mut state, &[id]);
        copies.push(state.recurrent_mut(MEMORY).as_ptr());
        state.commit(1);
    }
    assert_ne!(copies[0], copies[1]);
    assert_eq!(copies[..2], copies[2..4]);
    assert_eq!(copies[..2], copies[4..]);
}

#[test]
fn forks_go_their_own_ways() {
    let ids = ids(700);
    for at in [0, 1, 19, 255, 256, 257, 400, 520] {
        let mut first = state(true);
        feed(&mut first, &ids[..at]);
        let mut second = first.fork(1 << 20);
        let third = second.fork(1 << 20);
        feed(&mut first, &ids[at..]);
        // The same positions, other tokens.
        feed(&mut second, &[1; 30]);
        let (rest, other) = (visible(&first), visible(&second));
        assert!(rest == straight(true, &ids), "first, forked at {at}");
        assert!(
            other == straight(true, &[&ids[..at], &[1; 30]].concat()),
            "second, forked at {at}"
        );
        assert!(visible(&third) == straight(true, &ids[..at]), "third, forked at {at}");
    }
}

/// Whoever is dropped, the others keep what they share.
#[test]
fn forks_outlive_each_other() {
    let ids = ids(300);
    let mut first = state(true);
    feed(&mut first, &ids[..280]);
    let mut second = first.fork(1 << 20);
    feed(&mut first, &[3]);
    drop(first);
    feed(&mut second, &ids[280..]);
    assert!(visible(&second) == straight(true, &ids));
}

#[test]
fn whole_pages_stay_shared_and_the_last_is_copied_once() {
    let mut first = state(false);
    feed(&mut first, &ids(300));
    let mut second = first.fork(1 << 20);
    let page = |state: &State, segment| state.layer(0).page(segment, 0).unwrap().as_ptr();
    assert_eq!(
        [0, 1].map(|segment| page(&first, segment)),
        [0, 1].map(|segment| page(&second, segment))
    );
    feed(&mut second, &[1]);
    assert_eq!(page(&first, 0), page(&second, 0));
    assert_ne!(page(&first, 1), page(&second, 1));
    let own = page(&second, 1);
    feed(&mut second, &[2]);
    assert_eq!(page(&second, 1), own);
}

/// A rewind ends inside pages that a fork still reads.
#[test]
fn a_rewound_state_writes_to_copies() {
    let ids = ids(600);
    let mut first = state(false);
    feed(&mut first, &ids);
    let second = first.fork(1 << 20);
    first.rewind(531).unwrap();
    feed(&mut first, &[5; 69]);
    assert!(visible(&second) == straight(false, &ids));
    assert!(visible(&first) == straight(false, &[&ids[..531], &[5; 69]].concat()));
}

#[test]
fn memories_know_no_way_back_but_to_nothing() {
    let ids = ids(40);
    let mut state = state(true);
    feed(&mut state, &ids);
    assert_eq!(state.rewind(39), Err(40));
    assert_eq!(state.rewind(1), Err(40));
    assert_eq!(state.rewind(40), Ok(()));
    assert!(visible(&state) == straight(true, &ids));
    assert_eq!(state.rewind(0), Ok(()));
    assert_eq!((state.length(), state.bytes()), (0, 0));
    feed(&mut state, &ids);
    assert!(visible(&state) == straight(true, &ids));
}

#[test]
fn windows_bound_the_way_back_but_to_nothing() {
    let mut state = state(false);
    feed(&mut state, &ids(600));
    // Position 600 sees 581 and later: the third page stays, and with it the lengths whose window begins in it.
    assert_eq!(state.rewind(530), Err(531));
    assert_eq!(state.rewind(531), Ok(()));
    assert_eq!(state.rewind(0), Ok(()));
    assert_eq!((state.length(), state.bytes()), (0, 0));
    feed(&mut state, &ids(300));
    assert!(visible(&state) == straight(false, &ids(300)));
}

/// The records of a state.
fn records(state: &State) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let saved = state.save::<CpuError>(&mut |record| {
        records.push(record.to_vec());
        Ok(())
    });
    saved.unwrap();
    records
}

#[test]
fn a_loaded_state_goes_on_as_the_saved_one() {
    let ids = ids(800);
    for length in [0, 1, 19, 255, 256, 257, 275, 276, 600, 780] {
        for recurrent in [false, true] {
            let mut saved = state(recurrent);
            feed(&mut saved, &ids[..length]);
            let records = records(&saved);
            let plan = plan(recurrent);
            let size = SavedSize {
                records: records.len() as u64,
                bytes: records.iter().map(|record| record.len() as u64).sum(),
            };
            assert_eq!(State::saved_size(&plan, KvElement::F32, length), Some(size));
            let mut rest = records.iter();
            let mut loaded = state(recurrent);
            let read = loaded.load::<CpuError>(length, &mut |record| {
                record.copy_from_slice(rest.next().unwrap());
                Ok(())
            });
            read.unwrap();
            assert!(rest.next().is_none());
            assert!(visible(&loaded) == visible(&saved), "{length} positions");
            feed(&mut loaded, &ids[length..]);
            assert!(
                visible(&loaded) == straight(recurrent, &ids),
                "from {length} positions on"
            );
        }
    }
}

#[test]
fn impossible_sizes_are_not_counted() {
    for length in [usize::MAX, usize::MAX - 1, usize::MAX / 2] {
        assert_eq!(State::saved_size(&plan(true), KvElement::F32, length), None);
    }
}

#[test]
fn an_error_ends_a_save_and_a_load() {
    let mut saved = state(true);
    feed(&mut saved, &ids(300));
    for good in 0..records(&saved).len() {
        let failing = |count: &mut usize| {
            *count += 1;
            let failed = Err(CpuError::Interrupted(Interrupted { op: good }));
            if *count > good { failed } else { Ok(()) }
        };
        let (mut written, mut read) = (0, 0);
        assert!(saved.save(&mut |_| failing(&mut written)).is_err());
        assert!(state(true).load(300, &mut |_| failing(&mut read)).is_err());
        assert_eq!((written, read), (good + 1, good + 1));
    }
}
