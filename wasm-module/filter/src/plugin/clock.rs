//! When a plugin ticks: every [`Plugin::TICK_MS`], and as soon as it has something to tell that cannot wait so long.
//!
//! A shell triggers ticks in its own way, and gives the plugin a [waker](Plugin::wake_with) for a tick between, which comes
//! [`Plugin::WOKEN`] later: so there are a thousand in a second at most. Without a waker, what there is to tell waits for
//! the next tick.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Plugin;
use crate::host::Host;

/// A tick of a plugin's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// Everything was done that there is to do now and then.
    Full,
    /// Only what cannot wait that long was done: gateways of other proxies were told, and asked.
    Short,
}

/// The clock of a plugin.
#[derive(Default)]
pub(super) struct Clock {
    /// Time of the next full tick.
    next_full_ms: AtomicU64,
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Whether a tick was asked for that has not come.
    is_woken: AtomicBool,
}

impl Clock {
    /// Records that the shell has triggered a tick, and returns how much the plugin has to do in it.
    pub(super) fn tick(&self, now_ms: u64) -> Tick {
        self.is_woken.store(false, Ordering::Release);
        let next_ms = self.next_full_ms.load(Ordering::Relaxed);
        // A clock that was set back must not stop them.
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

    /// Asks for a tick, unless one is to come.
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

    /// The time until a tick that the plugin asks for.
    pub const WOKEN: Duration = Duration::from_millis(1);

    /// Sets what asks the shell for a tick before the next is due. It is called by any thread, in the middle of a
    /// callback, and at most once before a tick comes. Only the first one counts.
    pub fn wake_with(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.clock.waker.set(Box::new(wake));
    }

    /// Returns whether a tick was asked for that has not come.
    pub fn is_woken(&self) -> bool {
        self.clock.is_woken.load(Ordering::Acquire)
    }

    /// Returns the time until the next full tick, which a shell triggers though nobody asks for it.
    pub fn until_tick(&self, host: &impl Host) -> Duration {
        Duration::from_millis(self.clock.left_ms(host.now_ms()))
    }
}

/// A shell's timer may be so much early.
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
