//! How a thread waits: spin, then yield, then sleep.

use std::hint::spin_loop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// About the length of a short region, so that threads meet again without the operating system.
const SPIN: Duration = Duration::from_micros(20);
/// About the time that sampling and text take between two tokens. A thread that yields costs the others nothing.
const YIELD: Duration = Duration::from_millis(1);
/// Looks at the condition between two looks at the clock while spinning.
const LOOKS: u32 = 32;

/// A value on cache lines of its own (two, because x86 fetches lines in pairs), so that threads writing neighbours do not collide.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct OwnLine<T>(T);

impl<T> Deref for OwnLine<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A place where one thread at a time waits and others wake it.
#[derive(Default)]
pub(super) struct Sleeper {
    asleep: AtomicBool,
    /// The thread that sleeps; locked only on the way to sleep and when waking one that does.
    thread: Mutex<Option<Thread>>,
}

impl Sleeper {
    /// Returns once `ready` holds. Whoever makes it hold calls [`Sleeper::wake`] afterwards; both sides of the condition must be
    /// sequentially consistent, else the waker may miss `asleep` while the waiter misses the change.
    pub(super) fn wait(&self, ready: impl Fn() -> bool) {
        if ready() || wait_awake(&ready) {
            return;
        }
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.asleep.store(true, Ordering::SeqCst);
        // `park` may return early, and a late `wake` for an earlier wait may end it.
        while !ready() {
            thread::park();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Wakes the waiting thread if it sleeps; costs one read if it does not.
    pub(super) fn wake(&self) {
        if self.asleep.load(Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner)
        {
            thread.unpark();
        }
    }
}

/// Spins, then yields; false when it is time to sleep.
fn wait_awake(ready: &impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            spin_loop();
        }
    }
    while start.elapsed() < SPIN + YIELD {
        if ready() {
            return true;
        }
        thread::yield_now();
    }
    ready()
}
