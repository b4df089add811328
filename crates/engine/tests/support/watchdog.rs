//! Ends what hangs.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Longer than anything between two signs of life takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// Told now and then that all is well.
pub struct Watchdog(Sender<()>);

impl Watchdog {
    pub fn pat(&self) {
        // Nobody listens once it has bitten.
        let _ = self.0.send(());
    }
}

/// What `body` returns, which is run on a thread of its own.
///
/// # Panics
/// If `body` does, or if nothing is heard of it: then it waits for something that does not come.
pub fn watched<T: Send + 'static>(body: impl FnOnce(&Watchdog) -> T + Send + 'static) -> T {
    let (sender, signs) = mpsc::channel();
    let thread = std::thread::spawn(move || body(&Watchdog(sender)));
    loop {
        match signs.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => panic!("it hangs: no sign of life for {PATIENCE:?}"),
        }
    }
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
