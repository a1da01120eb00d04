//! Holds a request while another request of the same plugin computes the same documents. In Wasm, a plugin has the
//! requests of one worker; otherwise those of all workers.

use std::collections::VecDeque;
use std::sync::MutexGuard;

use foreword_ordering::{Arm, BurstTicket, Bursts, Entry, Opening, OrderingRecord, Released};

use super::Plugin;
use crate::config::{BurstConfig, Mode};
use crate::host::{Host, Resumer};
use crate::shared::Shared;

/// The requests in flight that others may wait for, with their configuration.
pub(super) struct InFlight {
    config: BurstConfig,
    bursts: Shared<Bursts<Resumer>>,
    /// Functions that resume the released requests; the next ticks call them.
    due: Shared<VecDeque<Resumer>>,
}

impl InFlight {
    pub(super) fn new(config: BurstConfig) -> Self {
        Self {
            config,
            bursts: Shared::new(Bursts::new(config.limits)),
            due: Shared::new(VecDeque::new()),
        }
    }

    /// Locks the bursts. After a panic in another thread, all held requests are resumed first.
    fn lock(&self) -> Option<MutexGuard<'_, Bursts<Resumer>>> {
        self.bursts.lock(|bursts| self.resume(bursts.abandon()))
    }

    fn resume(&self, waiters: impl Iterator<Item = Resumer>) {
        if let Some(mut due) = self.due.lock(|_| ()) {
            due.extend(waiters);
        }
    }
}

impl Plugin {
    /// Decides whether a request that is ready to be forwarded is held while another one computes the same documents. A
    /// dry run delays nothing, and the control arm of an experiment is untouched.
    pub(crate) fn enter(
        &self,
        host: &impl Host,
        record: Option<&OrderingRecord>,
        arm: Option<Arm>,
    ) -> Entry {
        let in_flight = self.in_flight.as_ref();
        let (Some(in_flight), Some(record)) = (in_flight, record) else {
            return Entry::Free;
        };
        if arm == Some(Arm::Control) {
            return Entry::Free;
        }
        let holds = in_flight.config.holds && self.config.mode == Mode::Order;
        let (now_ms, opening) = (host.now_ms(), Opening::of(record));
        let waiter = || holds.then(|| host.resumer()).flatten();
        let entry = in_flight.lock().map_or(Entry::Free, |mut bursts| {
            bursts.enter(now_ms, opening, waiter)
        });
        self.metrics.entered(host, entry, holds);
        entry
    }

    /// Records that a leader's response has begun.
    pub(crate) fn burst_answered(&self, host: &impl Host, ticket: BurstTicket) {
        self.release(host, |bursts, now_ms| bursts.answered(now_ms, ticket));
    }

    /// Records that a leader failed or ended without a response, or that a held request ended.
    pub(crate) fn burst_gone(&self, host: &impl Host, ticket: BurstTicket) {
        let mut was_held = false;
        self.release(host, |bursts, now_ms| {
            was_held = bursts.is_held(ticket);
            bursts.gone(now_ms, ticket)
        });
        self.metrics.left(host, was_held);
    }

    /// Releases requests that have waited long enough, and resumes some of the released ones. Envoy may run a resumed
    /// request's callbacks, up to its response, inside the call that resumes it. So few are resumed at a tick, and none
    /// in a request's callback.
    pub(super) fn resume_released(&self, host: &impl Host) {
        self.release(host, Bursts::expire);
        let in_flight = self.in_flight.as_ref();
        let Some(in_flight) = in_flight else { return };
        for _ in 0..RESUMED_AT_A_TICK {
            let next = in_flight.due.lock(|_| ());
            let Some(resumer) = next.and_then(|mut due| due.pop_front()) else {
                return;
            };
            host.resume_other(resumer);
        }
        self.clock.wake();
    }

    /// Applies `change` to the bursts, and counts the requests that it releases; the next ticks resume them.
    fn release(
        &self,
        host: &impl Host,
        change: impl FnOnce(&mut Bursts<Resumer>, u64) -> Vec<Released<Resumer>>,
    ) {
        let in_flight = self.in_flight.as_ref();
        let Some(in_flight) = in_flight else { return };
        let now_ms = host.now_ms();
        let released = in_flight.lock();
        let released = released.map(|mut bursts| change(&mut bursts, now_ms));
        let released = released.unwrap_or_default();
        if released.is_empty() {
            return;
        }
        for it in &released {
            self.metrics.released(host, it.why, it.held_ms);
        }
        in_flight.resume(released.into_iter().map(|it| it.waiter));
        self.clock.wake();
    }

    /// Returns whether requests may be held. Held requests are resumed only at ticks, so the shell must trigger these.
    pub fn holds_requests(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|it| it.config.holds)
    }

    /// Returns whether the plugin needs ticks: to follow engines' feeds, or to end waits.
    pub fn needs_ticks(&self) -> bool {
        self.has_feeds() || self.in_flight.is_some()
    }

    /// Returns the maximum time that a request is held, in milliseconds; 0 if `bursts` is off.
    pub(crate) fn max_wait_ms(&self) -> u64 {
        let limits = self.in_flight.as_ref().map(|it| it.config.limits);
        limits.map_or(0, |limits| limits.max_wait_ms.into())
    }
}

/// The maximum number of requests resumed at a tick; if more are due, another tick follows a millisecond later.
const RESUMED_AT_A_TICK: usize = 8;
