//! Leaders and followers among the requests of one plugin: in Wasm those of one worker, in other shells all.

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
}

impl InFlight {
    pub(super) fn new(config: BurstConfig) -> Self {
        Self {
            config,
            bursts: Shared::new(Bursts::new(config.limits)),
        }
    }

    /// After a panic, the requests of a burst are forgotten; held ones are resumed by their shell, if at all.
    fn lock(&self) -> Option<MutexGuard<'_, Bursts<Resumer>>> {
        self.bursts
            .lock(|bursts| *bursts = Bursts::new(self.config.limits))
    }
}

impl Plugin {
    /// Decides whether a request that is ready to be forwarded is held for one that computes the same documents. A dry run
    /// delays nothing, and the control arm of an experiment is untouched.
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

    /// Releases requests that have waited long enough.
    pub(super) fn expire_bursts(&self, host: &impl Host) {
        self.release(host, Bursts::expire);
    }

    /// Resumes released requests, once nothing is locked.
    fn release(
        &self,
        host: &impl Host,
        change: impl FnOnce(&mut Bursts<Resumer>, u64) -> Vec<Released<Resumer>>,
    ) {
        let in_flight = self.in_flight.as_ref();
        let Some(in_flight) = in_flight else { return };
        let now_ms = host.now_ms();
        let released = in_flight
            .lock()
            .map(|mut bursts| change(&mut bursts, now_ms));
        for Released {
            waiter,
            why,
            held_ms,
        } in released.into_iter().flatten()
        {
            self.metrics.released(host, why, held_ms);
            host.resume_other(waiter);
        }
    }

    /// Returns whether the plugin needs ticks: to follow engines' feeds, or to end waits.
    pub fn needs_ticks(&self) -> bool {
        self.has_feeds() || self.in_flight.is_some()
    }

    /// Returns the longest wait of a held request, in milliseconds.
    pub(crate) fn max_wait_ms(&self) -> u64 {
        let limits = self.in_flight.as_ref().map(|it| it.config.limits);
        limits.map_or(0, |limits| limits.max_wait_ms.into())
    }
}
