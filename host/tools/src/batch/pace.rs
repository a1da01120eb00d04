//! Decides when a request of a batch may be sent: within the configured rate, and not during a pause that the endpoint
//! asked for.

use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// The rate limit of a run and the pauses that the endpoint asked for. All workers share it.
pub(super) struct Pace {
    slots: Mutex<Slots>,
    changed: Condvar,
}

/// The times for which a [`Pace`] waits. The methods take the current time as an argument, so that tests need no clock.
#[derive(Clone, Copy, Debug)]
struct Slots {
    /// Shortest time between two requests.
    interval: Duration,
    /// Earliest time at which the rate limit allows the next request; a pause may delay it further.
    next: Instant,
    /// End of the latest pause that the endpoint requested; in the past if there is no pause.
    pause_ends: Instant,
    is_over: bool,
}

impl Slots {
    /// Returns the earliest time from `now` on at which a request may be sent, and reserves it, so that the next call
    /// returns a later one.
    fn take(&mut self, now: Instant) -> Instant {
        let at = self.next.max(now);
        self.next = at + self.interval;
        at
    }

    /// Returns the time from `now` until both the reserved time `at` is reached and any pause has ended; zero if both
    /// are past.
    fn wait(&self, at: Instant, now: Instant) -> Duration {
        at.max(self.pause_ends).saturating_duration_since(now)
    }
}

impl Pace {
    /// Returns a pace of at most `rate` requests a second; `None` for no limit. The first request may be sent at `now`.
    pub(super) fn new(rate: Option<f64>, now: Instant) -> Self {
        let interval = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
        Self {
            slots: Mutex::new(Slots {
                interval,
                next: now,
                pause_ends: now,
                is_over: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Blocks until the next request may be sent. Returns false if the run has ended.
    pub(super) fn wait(&self) -> bool {
        let at = self.slots.lock().take(Instant::now());
        self.wait_until(at)
    }

    /// Blocks until the time `at`, and until any pause has ended. Returns false if the run has ended.
    pub(super) fn wait_until(&self, at: Instant) -> bool {
        let mut slots = self.slots.lock();
        loop {
            let wait = slots.wait(at, Instant::now());
            if slots.is_over || wait.is_zero() {
                return !slots.is_over;
            }
            self.changed.wait_for(&mut slots, wait);
        }
    }

    /// Lets no request be sent for `time` from now on. A pause that was requested earlier and ends later stays.
    pub(super) fn pause(&self, time: Duration) {
        let mut slots = self.slots.lock();
        slots.pause_ends = slots.pause_ends.max(Instant::now() + time);
    }

    /// Ends the run: every current and later wait returns false.
    pub(super) fn end(&self) {
        self.slots.lock().is_over = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_their_distance_and_an_idle_time_is_not_made_up_for() {
        let start = Instant::now();
        let pace = Pace::new(Some(4.0), start);
        let mut slots = *pace.slots.lock();
        let ms = Duration::from_millis;
        assert_eq!(slots.take(start), start);
        assert_eq!(slots.take(start), start + ms(250));
        assert_eq!(slots.take(start + ms(10)), start + ms(500));
        let late = start + ms(9_000);
        assert_eq!(slots.take(late), late);
        assert_eq!(slots.take(late), late + ms(250));
    }

    #[test]
    fn a_pause_holds_back_what_had_its_time_already() {
        let start = Instant::now();
        let mut slots = *Pace::new(None, start).slots.lock();
        let at = slots.take(start);
        assert_eq!(slots.wait(at, start), Duration::ZERO);
        slots.pause_ends = start + Duration::from_secs(7);
        assert_eq!(slots.wait(at, start), Duration::from_secs(7));
        assert_eq!(
            slots.wait(at, start + Duration::from_secs(8)),
            Duration::ZERO
        );
    }

    #[test]
    fn the_end_wakes_who_waits() {
        let pace = Pace::new(None, Instant::now());
        pace.pause(Duration::from_secs(3_600));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pace.wait());
            pace.end();
            assert!(!waiter.join().unwrap());
        });
    }
}
