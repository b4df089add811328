//! What reading a file may take.

use std::time::Duration;

use crate::counting::peak_bytes;
use crate::support::thread_time;

pub const MEMORY_FACTOR: usize = 64;
/// Messages, paths and empty tables, whatever the file.
pub const MEMORY_FLOOR_BYTES: usize = 16 << 10;
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// Runs `read` under both bounds. Time counts the best of some attempts: the machine may be busy.
pub fn bounded<T>(length: usize, mut read: impl FnMut() -> T) -> T {
    let (result, peak) = peak_bytes(&mut read);
    let limit = MEMORY_FACTOR * length + MEMORY_FLOOR_BYTES;
    assert!(peak <= limit, "{peak} bytes were held for a file of {length}");
    let in_time = (0..5).any(|_| {
        let start = thread_time();
        drop(read());
        thread_time() - start < TIME_LIMIT
    });
    assert!(in_time, "a file of {length} bytes took longer than {TIME_LIMIT:?}");
    result
}
