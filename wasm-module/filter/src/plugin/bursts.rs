//! Holds a request while another request of the same plugin computes the same documents. In Wasm these are the requests
//! of one worker; otherwise those of all workers.

use std::collections::VecDeque;
use std::sync::MutexGuard;

use foreword_ordering::{Arm, BurstTicket, Bursts, Entry, Opening, OrderingRecord, Released};

use super::Plugin;
use crate::config::{BurstConfig, Mode};
use crate::host::{Host, Resumer};
use crate::shared::Shared;

/// The bursts among a plugin's requests in flight (simultaneous requests that begin with the same uncached documents),
/// with their configuration.
pub(super) struct InFlight {
    config: BurstConfig,
    bursts: Shared<Bursts<Resumer>>,
    /// Functions that resume requests which are no longer held. The plugin's next ticks (timer callbacks) call them.
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

    /// Locks the set of bursts (groups of simultaneous requests that begin with the same uncached documents). If
    /// another thread panicked while it held the lock, all held requests are first released. `None` only in a Wasm VM,
    /// if an outer callback holds the lock.
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
    /// Decides whether a request that is ready to be forwarded is held while another one computes the same documents,
    /// and counts its role. `record` is the ordering core's record of the request, and `arm` its chat's arm in an
    /// experiment. In a dry run and in the control arm no request is held.
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

    /// Records that the response to the request with this ticket has begun. If it leads a burst (is the first of
    /// simultaneous requests that begin with the same uncached documents), the requests held behind it are released.
    pub(crate) fn burst_answered(&self, host: &impl Host, ticket: BurstTicket) {
        self.release(host, |bursts, now_ms| bursts.answered(now_ms, ticket));
    }

    /// Records that the request with this ticket failed or ended. If other requests are held until its response begins,
    /// they are released; if it was held, it is counted as ended while held. Returns whether it was held.
    pub(crate) fn burst_gone(&self, host: &impl Host, ticket: BurstTicket) -> bool {
        let mut was_held = false;
        self.release(host, |bursts, now_ms| {
            was_held = bursts.is_held(ticket);
            bursts.gone(now_ms, ticket)
        });
        self.metrics.left.add(host, was_held.into());
        was_held
    }

    /// Handles a tick (timer callback) of a plugin that another configuration has replaced: releases and resumes held
    /// requests as [`Plugin::on_tick`] does, and nothing else.
    pub fn on_tick_when_replaced(&self, host: &impl Host) {
        self.clock.tick(host.now_ms());
        self.resume_released(host);
    }

    /// Releases requests that were held for the maximum time, and resumes up to [`RESUMED_AT_A_TICK`] of all released
    /// ones. Called at a tick (timer callback).
    ///
    /// Envoy may run a resumed request's callbacks, up to its response, inside the call that resumes it. So few are
    /// resumed at a tick, and none in a request's callback.
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

    /// Applies `change` to the set of bursts, which returns the requests that it releases, and counts these. The
    /// plugin's next ticks (timer callbacks) resume them.
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

    /// Returns whether requests may be held until another one's response begins. Held requests are resumed only at
    /// ticks, so the module that embeds the filter must call [`Plugin::on_tick`].
    pub fn holds_requests(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|it| it.config.holds)
    }

    /// Returns whether the embedding module must call [`Plugin::on_tick`]: to read engines' event feeds, or to end the
    /// wait of held requests.
    pub fn needs_ticks(&self) -> bool {
        self.has_feeds() || self.in_flight.is_some()
    }

    /// Returns the maximum time in milliseconds that a request is held behind another one that computes the same
    /// documents; 0 if that is off (`bursts`).
    pub(crate) fn max_wait_ms(&self) -> u64 {
        let limits = self.in_flight.as_ref().map(|it| it.config.limits);
        limits.map_or(0, |limits| limits.max_wait_ms.into())
    }
}

/// The maximum number of held requests resumed at one tick (timer callback). If more are due, another tick follows a
/// millisecond later.
const RESUMED_AT_A_TICK: usize = 8;
