use super::cache::{Cache, Presence, Task};
use super::*;
use crate::CpuError;

/// A cache of `blocks` blocks for one layer of `experts` experts.
fn cache(experts: usize, blocks: usize, eviction: Eviction) -> Cache {
    Cache::new(experts, &[experts], Piece::many(64, blocks).unwrap(), eviction)
}

/// Wants an expert of one block, lets it be read if it is not there, and lets it go. True if it was there.
fn use_once(cache: &mut Cache, expert: usize, rows: usize) -> bool {
    cache.want(expert, 0, expert, rows);
    let was_here = !cache.is_absent(expert);
    if !was_here {
        assert!(cache.request(expert, 1));
        let task = cache.next_task().unwrap();
        assert!((task.expert, task.block) == (expert, 0) && cache.deliver(task, Ok(())));
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
    assert_eq!(cache.counters.chosen, [[7, 1, 2, 1]]);
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
    let mut cache = cache(2, 1, Eviction::LeastFrequent);
    use_once(&mut cache, 0, 40);
    // 64 rows are an age of two experts: 0 counts half by then, and then a quarter.
    for _ in 0..10 {
        use_once(&mut cache, 1, 12);
        use_once(&mut cache, 0, 0);
    }
    assert_eq!(cache.counters.chosen, [[40, 120]]);
    let mut cache = Cache::new(3, &[3], Piece::many(64, 2).unwrap(), Eviction::LeastFrequent);
    use_once(&mut cache, 0, 90);
    for _ in 0..30 {
        use_once(&mut cache, 1, 9);
    }
    use_once(&mut cache, 2, 1);
    assert_eq!(here(&cache, 3), [1, 2], "what was chosen long ago counts for little");
}

#[test]
fn what_is_leased_stays() {
    let mut cache = cache(3, 2, Eviction::LeastFrequent);
    use_once(&mut cache, 0, 1);
    cache.want(0, 0, 0, 1);
    use_once(&mut cache, 1, 100);
    use_once(&mut cache, 2, 1);
    assert_eq!(here(&cache, 3), [0, 2]);
    cache.want(2, 0, 2, 1);
    assert!(!cache.request(1, 1), "both are held");
    cache.release(0);
    assert!(cache.request(1, 1));
    assert_eq!(here(&cache, 3), [2]);
}

#[test]
fn an_expert_of_which_a_block_fails_is_absent_and_its_blocks_are_free() {
    let mut cache = cache(2, 3, Eviction::LeastFrequent);
    cache.want(0, 0, 0, 1);
    assert!(cache.request(0, 3));
    let mut tasks: Vec<Task> = std::iter::from_fn(|| cache.next_task()).collect();
    assert_eq!(tasks.iter().map(|task| task.block).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(!cache.deliver(tasks.remove(1), Err(CpuError::ReaderPanicked)));
    assert!(cache.has_failed(0) && !cache.is_absent(0));
    assert!(!cache.deliver(tasks.remove(1), Ok(())));
    assert!(cache.deliver(tasks.remove(0), Ok(())));
    assert!(cache.is_absent(0) && matches!(cache.failure.take(), Some(CpuError::ReaderPanicked)));
    cache.release(0);
    cache.want(1, 0, 1, 1);
    assert!(cache.request(1, 3), "all blocks are free again");
}

#[test]
fn an_expert_that_nobody_waits_for_is_told() {
    let mut cache = cache(2, 1, Eviction::LeastFrequent);
    cache.want(0, 0, 0, 1);
    assert!(cache.request(0, 1) && !cache.is_anything_unleased_coming());
    cache.release(0);
    assert!(cache.is_anything_unleased_coming() && !cache.request(1, 1));
    let task = cache.next_task().unwrap();
    cache.deliver(task, Ok(()));
    assert!(!cache.is_anything_unleased_coming() && cache.request(1, 1));
}
