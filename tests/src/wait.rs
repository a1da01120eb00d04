//! Waits for conditions caused by other processes.

use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a condition; correct tests are far faster.
const LIMIT: Duration = Duration::from_secs(60);

/// Polls until `condition` is true.
///
/// # Panics
/// Panics when it is not within a minute; the message contains `what`.
#[track_caller]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "waited in vain: {what}");
        pause();
    }
}

/// Sleeps for a moment between two polls, so that polling does not take the processor from the process under test.
pub fn pause() {
    thread::sleep(Duration::from_millis(1));
}
