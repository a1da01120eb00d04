//! Waiting for conditions that other processes bring about.

use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a condition; nothing correct takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns when `condition` holds; it is checked again and again.
///
/// # Panics
/// Panics when the condition does not hold within a minute; the message names `what` was waited for.
#[track_caller]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "waited in vain: {what}");
        thread::yield_now();
    }
}
