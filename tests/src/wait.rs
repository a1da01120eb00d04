//! Waiting for what others bring about.

use std::thread;
use std::time::{Duration, Instant};

/// Nothing correct takes this long.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns when `condition` holds; it is asked again and again.
///
/// # Panics
/// It does not hold within a minute; the message says `what` was waited for.
#[track_caller]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "waited in vain: {what}");
        thread::yield_now();
    }
}
