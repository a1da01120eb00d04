//! A plugin's ticks (timer callbacks): every [`Plugin::TICK_MS`], and earlier if it has updates to push or requests to
//! resume.
//!
//! The module that embeds the filter triggers ticks in its own way, and sets a [waker](Plugin::wake_with), by which the
//! plugin requests additional ticks. Each is due [`Plugin::WAKE_DELAY`] after the request for it, so there are at most
//! a thousand a second. Without a waker, that work waits for the next periodic tick.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Plugin;
use crate::host::Host;

/// The kind of a tick (timer callback) of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// A periodic tick, in which the plugin did all of its background work.
    Full,
    /// An additional tick that the plugin requested: it only exchanged updates with gateways of other proxies and
    /// resumed held requests.
    Short,
}

/// The state of a plugin's ticks (timer callbacks): when the next is due, and whether an additional one is requested.
#[derive(Default)]
pub(super) struct Clock {
    /// Time of the next periodic tick ([`Tick::Full`]), in milliseconds.
    next_full_ms: AtomicU64,
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// True if an additional tick ([`Tick::Short`]) was requested and has not come yet.
    is_woken: AtomicBool,
}

impl Clock {
    /// Records a tick at the time `now_ms`, and returns whether it counts as a periodic or an additional one.
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

    /// Returns the milliseconds until the next periodic tick ([`Tick::Full`]), at least 1.
    fn left_ms(&self, now_ms: u64) -> u64 {
        let next_ms = self.next_full_ms.load(Ordering::Relaxed);
        next_ms.saturating_sub(now_ms).clamp(1, Plugin::TICK_MS)
    }

    /// Requests an additional tick through the waker, unless one is already requested. Without a waker, the next
    /// periodic tick does the work.
    pub(super) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel)
            && let Some(wake) = self.waker.get()
        {
            wake();
        }
    }
}

impl Plugin {
    /// The interval of periodic ticks ([`Tick::Full`]), in milliseconds.
    pub const TICK_MS: u64 = 100;

    /// The time from a call of the [waker](Plugin::wake_with) until the additional tick that it requests.
    pub const WAKE_DELAY: Duration = Duration::from_millis(1);

    /// Sets the waker: a function by which the plugin requests an additional call of [`Plugin::on_tick`],
    /// [`Plugin::WAKE_DELAY`] later. Any thread may call it, in the middle of a callback, at most once before each
    /// tick. Later calls of `wake_with` have no effect.
    pub fn wake_with(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.clock.waker.set(Box::new(wake));
    }

    /// Returns whether the plugin has requested an additional tick ([`Tick::Short`]) that has not come yet.
    pub fn is_woken(&self) -> bool {
        self.clock.is_woken.load(Ordering::Acquire)
    }

    /// Returns the time until the next periodic tick ([`Tick::Full`]). The embedding module triggers it by its own
    /// timer, without a call of the [waker](Plugin::wake_with).
    pub fn until_tick(&self, host: &impl Host) -> Duration {
        Duration::from_millis(self.clock.left_ms(host.now_ms()))
    }
}

/// The number of milliseconds by which a tick may come before the time of the next periodic one and still count as
/// that.
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
