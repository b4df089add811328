use super::cache::{Cache, Outcome, Presence, Task};
use super::*;
use crate::CpuError;

/// A cache of `blocks` blocks for one layer of `experts` experts.
fn cache(experts: usize, blocks: usize, eviction: Eviction) -> Cache {
    Cache::new(&[experts], 1, Piece::many(64, blocks).unwrap(), eviction)
}

/// Wants an expert of one block, lets it be read if it is not there, and lets it go. True if it was there.
fn use_once(cache: &mut Cache, expert: usize, rows: usize) -> bool {
    cache.choose(0, std::iter::once((expert, rows)));
    cache.want(expert);
    let was_here = !cache.is_absent(expert);
    if !was_here {
        assert!(cache.request(expert, 1));
        let task = cache.next_task().unwrap();
        assert!((task.unit, task.block) == (expert, 0) && cache.deliver(task, Outcome::Read));
    }
    cache.release(expert);
    was_here
}

fn here(cache: &Cache, experts: usize) -> Vec<usize> {
    (0..experts)
        .filter(|expert| matches!(cache.presence(*expert), Presence::Here(_)))
        .collect()
}

#[test]
fn those_chosen_least_often_leave_first() {
    let mut cache = cache(4, 2, Eviction::LeastFrequent);
    for (expert, rows, was_here) in [
        (0, 5, false),
        (1, 1, false),
        (0, 1, true),
        (2, 2, false),
        (3, 1, false),
        (0, 1, true),
    ] {
        assert_eq!(use_once(&mut cache, expert, rows), was_here, "{expert}");
    }
    assert_eq!(here(&cache, 4), [0, 3]);
    assert_eq!((cache.counters.hits, cache.counters.misses), (2, 4));
}

#[test]
fn those_chosen_longest_ago_leave_first() {
    let mut cache = cache(4, 2, Eviction::LeastRecent);
    for (expert, rows) in [(0, 5), (1, 1), (2, 1), (3, 1)] {
        assert!(!use_once(&mut cache, expert, rows));
    }
    assert_eq!(here(&cache, 4), [2, 3]);
}

#[test]
fn choices_age() {
    let mut cache = cache(3, 2, Eviction::LeastFrequent);
    use_once(&mut cache, 0, 90);
    for _ in 0..30 {
        use_once(&mut cache, 1, 9);
    }
    use_once(&mut cache, 2, 1);
    assert_eq!(here(&cache, 3), [1, 2], "what was chosen long ago counts for little");
}

#[test]
fn a_prompt_that_goes_through_all_layers_keeps_what_there_is_room_for() {
    const LAYERS: usize = 4;
    const EXPERTS: usize = 8;
    let mut cache = Cache::new(
        &[EXPERTS; LAYERS],
        LAYERS,
        Piece::many(64, 16).unwrap(),
        Eviction::LeastFrequent,
    );
    let mut hits_before_last = 0;
    for _ in 0..6 {
        hits_before_last = cache.counters.hits;
        for layer in 0..LAYERS {
            // Every expert is of about as much use as every other.
            let rows = |expert: usize| 10 + (expert * 5 + layer * 3) % 4;
            let chosen = (0..EXPERTS).map(|expert| (layer * EXPERTS + expert, rows(expert)));
            cache.choose(layer, chosen);
            for expert in layer * EXPERTS..(layer + 1) * EXPERTS {
                cache.want(expert);
                if cache.is_absent(expert) {
                    assert!(cache.request(expert, 1));
                    let task = cache.next_task().unwrap();
                    assert!(cache.deliver(task, Outcome::Read));
                }
                cache.release(expert);
            }
        }
    }
    let hits = cache.counters.hits - hits_before_last;
    assert!(hits >= 14, "{hits} of 32 with room for 16");
}

#[test]
fn what_is_leased_stays() {
    let mut cache = cache(3, 2, Eviction::LeastFrequent);
    use_once(&mut cache, 0, 1);
    cache.want(0);
    use_once(&mut cache, 1, 100);
    use_once(&mut cache, 2, 1);
    assert_eq!(here(&cache, 3), [0, 2]);
    cache.want(2);
    assert!(!cache.request(1, 1), "both are held");
    cache.release(0);
    assert!(cache.request(1, 1));
    assert_eq!(here(&cache, 3), [2]);
}

#[test]
fn an_expert_of_which_a_block_fails_is_absent_and_its_blocks_are_free() {
    let mut cache = cache(2, 3, Eviction::LeastFrequent);
    cache.want(0);
    assert!(cache.request(0, 3));
    let mut tasks: Vec<Task> = std::iter::from_fn(|| cache.next_task()).collect();
    assert_eq!(tasks.iter().map(|task| task.block).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(!cache.deliver(tasks.remove(1), Outcome::Failed(CpuError::ReaderPanicked)));
    assert!(cache.is_lost(0) && !cache.is_absent(0));
    assert!(!cache.deliver(tasks.remove(1), Outcome::Dropped));
    assert!(cache.deliver(tasks.remove(0), Outcome::Read));
    assert!(
        cache.is_absent(0)
            && matches!(cache.take_error(0), Some(CpuError::ReaderPanicked))
            && cache.take_error(0).is_none()
    );
    cache.release(0);
    cache.want(1);
    assert!(cache.request(1, 3), "all blocks are free again");
}

#[test]
fn an_expert_that_nobody_waits_for_is_told() {
    let mut cache = cache(2, 1, Eviction::LeastFrequent);
    cache.want(0);
    assert!(cache.request(0, 1) && !cache.is_anything_unleased_coming());
    cache.release(0);
    assert!(cache.is_anything_unleased_coming() && cache.is_dropped(0) && !cache.request(1, 1));
    let task = cache.next_task().unwrap();
    cache.deliver(task, Outcome::Read);
    assert!(!cache.is_anything_unleased_coming() && cache.request(1, 1));
}

#[test]
fn what_the_running_op_chose_leaves_last() {
    for eviction in [Eviction::LeastFrequent, Eviction::LeastRecent] {
        let mut cache = cache(3, 2, eviction);
        use_once(&mut cache, 0, 1);
        use_once(&mut cache, 1, 9);
        cache.choose(0, [(2, 1), (0, 1)].into_iter());
        cache.want(2);
        assert!(cache.request(2, 1));
        let task = cache.next_task().unwrap();
        cache.deliver(task, Outcome::Read);
        assert_eq!(here(&cache, 3), [0, 2], "{eviction:?}");
    }
}

/// Of those that every call wants, in the same order, the one used last is the last to come again.
#[test]
fn what_every_call_wants_stays_before_what_is_chosen() {
    for eviction in [Eviction::LeastFrequent, Eviction::LeastRecent] {
        // Two experts, and three that every call wants.
        let mut cache = Cache::new(&[2, 1, 1, 1], 1, Piece::many(64, 3).unwrap(), eviction);
        use_once(&mut cache, 1, 100);
        for unit in [2, 3] {
            cache.want(unit);
            assert!(cache.request(unit, 1));
            let task = cache.next_task().unwrap();
            cache.deliver(task, Outcome::Read);
            cache.release(unit);
        }
        for (unit, expected) in [(4, [2, 3, 4]), (3, [2, 3, 4]), (1, [1, 2, 4])] {
            cache.want(unit);
            if cache.is_absent(unit) {
                assert!(cache.request(unit, 1));
                let task = cache.next_task().unwrap();
                cache.deliver(task, Outcome::Read);
            }
            cache.release(unit);
            assert_eq!(here(&cache, 5), expected, "{eviction:?} after {unit}");
        }
    }
}
