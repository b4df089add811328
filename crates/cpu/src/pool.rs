//! Threads that run one closure at a time, all of them together.
//!
//! A *region* is one call of [`Pool::run`]: every thread runs the closure once with its own index, and the call returns when all
//! have finished, which is the only barrier. The caller is thread 0. A region neither allocates nor takes a lock; threads that wait
//! spin briefly, then yield, then sleep, so an idle pool costs nothing and a waiter never holds a core that a worker needs.
//!
//! What the threads write is handed out by [`Parts`] and [`Tiles`], which give every piece to exactly one of them.

mod parts;
mod wait;

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

pub use parts::{MOST_MATRICES, Part, Parts, SharedTile, SharedTiles, TileCounter, TileOrder, Tiles, of_rows, split};
use wait::{OwnLine, Sleeper};

/// Most threads that a pool can have.
pub const MAX_THREADS: usize = 256;

/// Why a pool could not be made or a region did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The number of threads is outside what a pool can have.
    #[error("{threads} threads asked for: choose 1 to {MAX_THREADS}")]
    ThreadCount {
        /// The number asked for.
        threads: usize,
    },
    /// The operating system gave no thread.
    #[error("cannot start thread {thread}: {source}; ask for fewer threads")]
    Spawn {
        /// Index of the thread.
        thread: usize,
        /// What the operating system said.
        source: io::Error,
    },
    /// The calling thread rounds in another direction or flushes subnormal numbers, which would change results.
    #[error(
        "the calling thread does not use the default floating-point mode (round to nearest, subnormal numbers kept)"
    )]
    FloatMode,
    /// `run` was called inside a region of the same pool, or by two threads at once.
    #[error("the pool is already running a region: regions neither nest nor overlap")]
    Busy,
    /// The closure panicked; all threads have left the region, what they wrote is incomplete, and the pool can be used again.
    #[error("thread {thread} panicked: {message}")]
    Panicked {
        /// Index of the first thread that panicked.
        thread: usize,
        /// The message of the panic.
        message: String,
    },
}

/// The closure of a region, its lifetime forgotten.
type Work = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts regions; a worker that sees it change takes part in the new one.
    region: OwnLine<AtomicUsize>,
    /// Workers that have not finished the region.
    unfinished: OwnLine<AtomicUsize>,
    /// What the region runs; none ends the workers. Written only while `unfinished` is 0 and before `region` changes.
    work: UnsafeCell<Option<Work>>,
    busy: AtomicBool,
    panicked: AtomicBool,
    panic: Mutex<Option<PoolError>>,
    /// One a thread; that of thread 0 is whoever called `run`.
    sleepers: Box<[OwnLine<Sleeper>]>,
}

// SAFETY: the only member that is not already Send and Sync is `work`. The thread that holds `busy` (or the pool being dropped)
// writes it while no worker is inside a region; workers read it after they have seen `region` change, which orders the two. The
// closure behind it is Sync, so calling it from several threads is allowed.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Publishes a region and wakes the workers that sleep.
    fn start(&self, work: Option<Work>) {
        let workers = self.sleepers.len() - 1;
        self.unfinished.store(workers, Ordering::Relaxed);
        // SAFETY: the caller holds `busy` or owns the pool, and every worker has left the last region, so nobody reads `work` now.
        unsafe { *self.work.get() = work };
        self.region.fetch_add(1, Ordering::SeqCst);
        for sleeper in self.sleepers.iter().skip(1) {
            sleeper.wake();
        }
    }

    /// Runs a thread's share; a panic is kept for the caller, because one that unwound out of a worker would leave the others waiting.
    fn run_share(&self, work: &(dyn Fn(usize) + Sync), thread: usize) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(thread))) {
            let message = panic_message(payload.as_ref());
            // Dropping a payload runs code of whoever panicked, which could panic again.
            std::mem::forget(payload);
            let mut panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            panic.get_or_insert(PoolError::Panicked { thread, message });
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    fn work_until_stopped(&self, thread: usize) {
        let mut seen = 0_usize;
        while let Some(sleeper) = self.sleepers.get(thread) {
            sleeper.wait(|| self.region.load(Ordering::SeqCst) != seen);
            // Regions never overlap, so exactly one has begun.
            seen = seen.wrapping_add(1);
            // SAFETY: `start` wrote `work` before it changed `region`, and writes again only after this worker is counted out.
            let Some(work) = (unsafe { *self.work.get() }) else {
                return;
            };
            // SAFETY: `run` keeps the closure borrowed until `unfinished` is 0, so it lives until the subtraction below.
            self.run_share(unsafe { &*work }, thread);
            if self.unfinished.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.sleepers.iter().take(1).for_each(|caller| caller.wake());
            }
        }
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// A fixed set of threads; see the module.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` − 1 workers; with one thread everything runs on the caller.
    ///
    /// # Errors
    /// [`PoolError::ThreadCount`], [`PoolError::Spawn`], or [`PoolError::FloatMode`] when the calling thread, whose mode the workers
    /// inherit, would compute other bits.
    pub fn new(threads: usize) -> Result<Self, PoolError> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(PoolError::ThreadCount { threads });
        }
        if !float_mode_is_default() {
            return Err(PoolError::FloatMode);
        }
        let shared = Arc::new(Shared {
            region: OwnLine::default(),
            unfinished: OwnLine::default(),
            work: UnsafeCell::new(None),
            busy: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            sleepers: (0..threads).map(|_| OwnLine::default()).collect(),
        });
        // Made before the workers so that those already started are ended and joined when a later one fails.
        let mut pool = Self {
            shared,
            workers: Vec::with_capacity(threads - 1),
        };
        for thread in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("goldcrest-{thread}"));
            let worker = builder.spawn(move || shared.work_until_stopped(thread));
            pool.workers
                .push(worker.map_err(|source| PoolError::Spawn { thread, source })?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller of [`Pool::run`] included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.sleepers.len()
    }

    /// Runs `work(thread)` once on every thread and returns when all have finished. What the threads wrote is visible then.
    ///
    /// # Errors
    /// [`PoolError::Busy`] (nothing was run), or [`PoolError::Panicked`] (all threads have left the region).
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) -> Result<(), PoolError> {
        let shared = &*self.shared;
        if shared.busy.swap(true, Ordering::Acquire) {
            return Err(PoolError::Busy);
        }
        if self.threads() > 1 {
            // SAFETY: only the lifetime changes. The pointer is last used before `unfinished` reaches 0, for which we wait below;
            // nothing between here and there can unwind, for `run_share` catches the panic of the caller's own share.
            let forgotten = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Work>(work) };
            shared.start(Some(forgotten));
        }
        shared.run_share(work, 0);
        if let Some(caller) = shared.sleepers.first() {
            caller.wait(|| shared.unfinished.load(Ordering::SeqCst) == 0);
        }
        let result = self.take_panic();
        shared.busy.store(false, Ordering::Release);
        result
    }

    fn take_panic(&self) -> Result<(), PoolError> {
        if !self.shared.panicked.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.shared.panicked.store(false, Ordering::Relaxed);
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        panic.map_or(Ok(()), Err)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // After a failed start fewer workers live than `unfinished` counts, but nobody waits for it any more.
        self.shared.start(None);
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its work, so there is no error to pass on.
            let _ = worker.join();
        }
    }
}

/// Whether this thread rounds to nearest, ties to even, and keeps subnormal numbers, as every result of ours assumes.
///
/// A library in the same process may have set another mode; threads started later inherit it. Found by computing, so it needs no
/// instruction of a particular machine; a few nanoseconds.
#[must_use]
pub fn float_mode_is_default() -> bool {
    let half_ulp = black_box(f32::EPSILON / 2.0);
    let odd = black_box(1.0 + f32::EPSILON);
    let ties_to_even = black_box(1.0) + half_ulp == 1.0 && odd + half_ulp == 1.0 + 2.0 * f32::EPSILON;
    // Bits are compared because a comparison of floats may itself take subnormal numbers for zero.
    let kept_as_result = (black_box(f32::MIN_POSITIVE) * black_box(0.5)).to_bits() == 0x0040_0000;
    let kept_as_operand =
        (black_box(f32::from_bits(1)) * black_box(8_388_608.0)).to_bits() == f32::MIN_POSITIVE.to_bits();
    ties_to_even && kept_as_result && kept_as_operand
}

#[cfg(test)]
mod tests;
