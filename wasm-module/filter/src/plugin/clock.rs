//! A plugin's ticks: every [`Plugin::TICK_MS`], and earlier if it has something to push.
//!
//! A shell triggers ticks in its own way, and sets a [waker](Plugin::wake_with) for an additional tick, which comes
//! [`Plugin::WOKEN`] later: so there are at most a thousand a second. Without a waker, pushes wait for the next tick.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Plugin;
use crate::host::Host;

/// The kind of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// All periodic work was done.
    Full,
    /// Only urgent work was done: pushes to gateways of other proxies, and calls to them.
    Short,
}

/// The clock of a plugin.
#[derive(Default)]
pub(super) struct Clock {
    /// Time of the next full tick.
    next_full_ms: AtomicU64,
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Whether a tick was requested that has not come.
    is_woken: AtomicBool,
}

impl Clock {
    /// Records a tick of the shell, and returns its kind.
    pub(super) fn tick(&self, now_ms: u64) -> Tick {
        self.is_woken.store(false, Ordering::Release);
        let next_ms = self.next_full_ms.load(Ordering::Relaxed);
        // A clock that was set back must not stop full ticks.
        let is_early = now_ms.saturating_add(EARLY_MS) < next_ms;
        if is_early && next_ms.saturating_sub(now_ms) <= Plugin::TICK_MS {
            return Tick::Short;
        }
        let next_ms = now_ms.saturating_add(Plugin::TICK_MS);
        self.next_full_ms.store(next_ms, Ordering::Relaxed);
        Tick::Full
    }

    /// Returns the time until the next full tick.
    fn left_ms(&self, now_ms: u64) -> u64 {
        let next_ms = self.next_full_ms.load(Ordering::Relaxed);
        next_ms.saturating_sub(now_ms).clamp(1, Plugin::TICK_MS)
    }

    /// Requests a tick, unless one is already requested.
    pub(super) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel)
            && let Some(wake) = self.waker.get()
        {
            wake();
        }
    }
}

impl Plugin {
    /// The interval of [`Plugin::on_tick`].
    pub const TICK_MS: u64 = 100;

    /// The time until a requested tick.
    pub const WOKEN: Duration = Duration::from_millis(1);

    /// Sets the function that requests a tick from the shell. Any thread calls it, in the middle of a callback, at most
    /// once before each tick. Only the first function set is used.
    pub fn wake_with(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.clock.waker.set(Box::new(wake));
    }

    /// Returns whether a tick was requested that has not come.
    pub fn is_woken(&self) -> bool {
        self.clock.is_woken.load(Ordering::Acquire)
    }

    /// Returns the time until the next full tick, which a shell triggers without a request.
    pub fn until_tick(&self, host: &impl Host) -> Duration {
        Duration::from_millis(self.clock.left_ms(host.now_ms()))
    }
}

/// Tolerance for a shell's timer that fires early.
const EARLY_MS: u64 = 10;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_full_tick_comes_in_time_however_often_it_is_woken() {
        let clock = Clock::default();
        assert_eq!(clock.tick(1_000), Tick::Full);
        for now in [1_001, 1_050, 1_089] {
            assert_eq!(clock.tick(now), Tick::Short, "{now}");
        }
        assert_eq!(clock.left_ms(1_089), 11);
        assert_eq!(clock.tick(1_090), Tick::Full);
        assert_eq!(clock.left_ms(1_090), Plugin::TICK_MS);
        assert_eq!(clock.tick(1_091), Tick::Short);
        assert_eq!(clock.left_ms(1_500), 1, "it is late");
        assert_eq!(clock.left_ms(5), Plugin::TICK_MS, "it was set back");
        assert_eq!(clock.tick(5), Tick::Full);
        assert_eq!(clock.tick(9_000), Tick::Full);
    }

    #[test]
    fn it_is_woken_once_for_each_tick() {
        let clock = Clock::default();
        clock.wake();
        clock.tick(0);
        let count = Arc::new(AtomicUsize::new(0));
        let woken = Arc::clone(&count);
        let wake = move || {
            woken.fetch_add(1, Ordering::Relaxed);
        };
        assert!(clock.waker.set(Box::new(wake)).is_ok());
        for ticks in 1..4 {
            clock.wake();
            clock.wake();
            assert_eq!(count.load(Ordering::Relaxed), ticks);
            clock.tick(0);
        }
    }
}
