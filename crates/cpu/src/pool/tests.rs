use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Runs `body` on a thread of its own; a pool that hangs fails the test instead of stopping the run.
fn within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let test = thread::spawn(move || {
        body();
        done.send(()).expect("the test waits");
    });
    match finished.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not finished within {limit:?}"),
        _ => test.join().expect("the body failed"),
    }
}

/// A reproducible stream of numbers (Knuth's MMIX generator).
fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |bound| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    }
}

#[test]
fn split_covers_everything_in_nearly_equal_ranges() {
    for total in 0..70 {
        for parts in 1..20 {
            let ranges: Vec<_> = (0..parts).map(|part| split(total, parts, part)).collect();
            assert!(
                ranges.iter().flat_map(Clone::clone).eq(0..total),
                "{total} in {parts}: {ranges:?}"
            );
            let lengths = || ranges.iter().map(ExactSizeIterator::len);
            assert!(lengths().max().unwrap() - lengths().min().unwrap() <= 1);
            assert!(split(total, parts, parts).is_empty() && split(total, parts, usize::MAX).is_empty());
        }
    }
    assert_eq!(split(usize::MAX, 2, 1).end, usize::MAX);
    assert_eq!(split(5, 0, 0), 0..5);
}

#[test]
fn counts_outside_the_limits_are_refused() {
    assert!(matches!(Pool::new(0), Err(PoolError::ThreadCount { threads: 0 })));
    assert!(matches!(Pool::new(MAX_THREADS + 1), Err(PoolError::ThreadCount { .. })));
}

#[test]
fn every_thread_runs_once_a_region() {
    for threads in [1, 2, 3, 5] {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        let runs: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        for region in 1..=500 {
            pool.run(&|thread| {
                runs[thread].fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert!(runs.iter().all(|count| count.load(Ordering::Relaxed) == region));
        }
    }
}

#[test]
fn parts_of_random_sizes_equal_serial() {
    let mut number = numbers(1);
    for threads in [1, 2, 3, 4] {
        let pool = Pool::new(threads).unwrap();
        for _ in 0..300 {
            let (rows, columns, unit) = (number(4), 1 + number(900), 1 + number(40));
            let mut out = vec![0; rows * columns];
            let parts = Parts::of_columns(&mut out, columns, unit, threads);
            pool.run(&|thread| {
                let mut part = parts.take(thread);
                assert!(part.columns().start.is_multiple_of(unit) || part.columns().is_empty());
                for row in part.rows() {
                    let columns = part.columns();
                    part.row_mut(row)
                        .iter_mut()
                        .zip(columns)
                        .for_each(|(cell, column)| *cell += row * 1000 + column);
                }
            })
            .unwrap();
            assert!(
                out.iter()
                    .enumerate()
                    .all(|(at, &cell)| cell == at / columns * 1000 + at % columns)
            );
        }
    }
}

#[test]
fn tiles_of_random_sizes_equal_serial() {
    let mut number = numbers(2);
    for threads in [1, 2, 3, 4] {
        let pool = Pool::new(threads).unwrap();
        for _ in 0..300 {
            let (rows, columns, tile) = (number(40), 1 + number(90), (1 + number(9), 1 + number(20)));
            let mut out = vec![0; rows * columns];
            let tiles = Tiles::new(&mut out, columns, tile);
            pool.run(&|_| {
                while let Some(mut part) = tiles.next() {
                    for row in part.rows() {
                        let columns = part.columns();
                        part.row_mut(row)
                            .iter_mut()
                            .zip(columns)
                            .for_each(|(cell, column)| *cell += row * 1000 + column);
                    }
                }
            })
            .unwrap();
            assert!(
                out.iter()
                    .enumerate()
                    .all(|(at, &cell)| cell == at / columns * 1000 + at % columns)
            );
        }
    }
}

#[test]
fn slices_are_split_for_threads() {
    let pool = Pool::new(3).unwrap();
    let mut out = vec![usize::MAX; 100];
    let parts = Parts::of_slice(&mut out, 16, 3);
    pool.run(&|thread| parts.take_slice(thread).fill(thread)).unwrap();
    // 7 units of 16 (the last of 4) in parts of 3, 2 and 2.
    assert!(
        out[..48].iter().all(|&t| t == 0) && out[48..80].iter().all(|&t| t == 1) && out[80..].iter().all(|&t| t == 2)
    );
    let mut nothing: [u8; 0] = [];
    assert!(Parts::of_slice(&mut nothing, 16, 3).take_slice(2).is_empty());
}

#[test]
fn a_piece_is_never_given_twice() {
    let pool = Pool::new(2).unwrap();
    let mut out = [0_u8; 10];
    let parts = Parts::of_slice(&mut out, 1, 2);
    let twice = pool.run(&|_| parts.take_slice(0).fill(1));
    assert!(matches!(twice, Err(PoolError::Panicked { message, .. }) if message.contains("taken twice")));
    let beyond = pool.run(&|thread| parts.take_slice(2 + thread).fill(1));
    assert!(matches!(beyond, Err(PoolError::Panicked { message, .. }) if message.contains("part")));
}

#[test]
#[should_panic(expected = "7 columns")]
fn a_matrix_has_whole_rows() {
    let _ = Tiles::new(&mut [0_u8; 20], 7, (1, 1));
}

#[test]
fn a_panic_on_any_thread_is_an_error_and_the_pool_lives_on() {
    within(Duration::from_secs(60), || {
        for threads in [1, 2, 4] {
            let pool = Pool::new(threads).unwrap();
            for bad in 0..threads {
                let others = AtomicUsize::new(0);
                let result = pool.run(&|thread| {
                    assert_ne!(thread, bad, "planted");
                    others.fetch_add(1, Ordering::Relaxed);
                });
                let Err(PoolError::Panicked { thread, message }) = result else {
                    panic!("no error")
                };
                assert!(thread == bad && message.contains("planted"), "{message}");
                assert_eq!(others.load(Ordering::Relaxed), threads - 1);
                pool.run(&|_| ()).unwrap();
            }
            assert!(pool.run(&|_| panic!("all")).is_err());
            pool.run(&|_| ()).unwrap();
        }
    });
}

#[test]
fn a_panic_whose_payload_panics_again_is_an_error() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("again");
        }
    }
    within(Duration::from_secs(60), || {
        let pool = Pool::new(2).unwrap();
        assert!(matches!(
            pool.run(&|_| std::panic::panic_any(Bomb)),
            Err(PoolError::Panicked { .. })
        ));
        pool.run(&|_| ()).unwrap();
    });
}

#[test]
fn regions_neither_nest_nor_overlap() {
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let refused = AtomicUsize::new(0);
        pool.run(&|_| {
            if matches!(pool.run(&|_| ()), Err(PoolError::Busy)) {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_eq!(refused.load(Ordering::Relaxed), threads);
        pool.run(&|_| ()).unwrap();
    }
}

#[test]
fn any_thread_may_call_in_turn() {
    within(Duration::from_secs(60), || {
        let pool = Arc::new(Pool::new(3).unwrap());
        for _ in 0..20 {
            let pool = Arc::clone(&pool);
            // Longer than spinning and yielding together, so that callers and workers sleep and are woken.
            thread::spawn(move || {
                pool.run(&|thread| thread::sleep(Duration::from_millis(3 * thread as u64)))
                    .unwrap()
            })
            .join()
            .unwrap();
            thread::sleep(Duration::from_millis(3));
        }
    });
}

#[test]
fn more_threads_than_cores_finish_promptly() {
    within(Duration::from_secs(60), || {
        let pool = Pool::new(8).unwrap();
        let sum = AtomicUsize::new(0);
        let start = Instant::now();
        for _ in 0..2000 {
            pool.run(&|thread| {
                sum.fetch_add(thread, Ordering::Relaxed);
            })
            .unwrap();
        }
        println!("8 threads: {:?} a region", start.elapsed() / 2000);
        assert_eq!(sum.load(Ordering::Relaxed), 2000 * 28);
    });
}

#[test]
fn an_idle_pool_can_be_dropped() {
    within(Duration::from_secs(60), || {
        for wait_ms in [0, 5] {
            for threads in [1, 2, 8] {
                let pool = Pool::new(threads).unwrap();
                pool.run(&|_| ()).unwrap();
                thread::sleep(Duration::from_millis(wait_ms));
                drop(pool);
                drop(Pool::new(threads).unwrap());
            }
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn an_idle_pool_costs_no_cpu() {
    /// User and system time of the calling thread in ticks of 10 ms.
    fn cpu_ticks() -> usize {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, after_name) = stat.rsplit_once(')').unwrap();
        after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<usize>().unwrap())
            .sum()
    }
    let pool = Pool::new(3).unwrap();
    let (before, after) = ([const { AtomicUsize::new(0) }; 3], [const { AtomicUsize::new(0) }; 3]);
    pool.run(&|thread| before[thread].store(cpu_ticks(), Ordering::Relaxed))
        .unwrap();
    thread::sleep(Duration::from_millis(400));
    pool.run(&|thread| after[thread].store(cpu_ticks(), Ordering::Relaxed))
        .unwrap();
    for (before, after) in before.iter().zip(&after) {
        let ticks = after.load(Ordering::Relaxed) - before.load(Ordering::Relaxed);
        assert!(ticks <= 3, "{ticks} ticks of 10 ms while idle for 400 ms");
    }
}

#[test]
fn empty_regions_are_cheap() {
    for threads in [1, 2] {
        let pool = Pool::new(threads).unwrap();
        let start = Instant::now();
        for _ in 0..100_000 {
            pool.run(&|_| ()).unwrap();
        }
        println!("{threads} threads: {:?} an empty region", start.elapsed() / 100_000);
    }
}

#[test]
fn threads_use_the_default_float_mode() {
    let pool = Pool::new(4).unwrap();
    let right = AtomicUsize::new(0);
    pool.run(&|_| {
        right.fetch_add(usize::from(float_mode_is_default()), Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!(right.load(Ordering::Relaxed), 4);
}
