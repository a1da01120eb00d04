//! A plugin's exchange of updates with gateways of other proxies; see [`crate::feed`] for the protocol.

use foreword_ordering::EngineId;
use foreword_ordering::feed::GatewayId;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::{Plugin, Tick};
use crate::feed::{Feed, Outbox};
use crate::host::{CallResponse, Host, HostError};
use crate::swap;

impl Plugin {
    /// Calls `note` to queue an update about cached prefixes for gateways of other proxies, if updates are exchanged
    /// with them. If `note` returns true (such a gateway listens), requests an additional tick ([`Tick::Short`]) at
    /// which the update is pushed.
    pub(super) fn note(&self, note: impl FnOnce(&mut Outbox) -> bool) {
        if self.config.exchanges()
            && let Some(mut outbox) = self.outbox.lock(|outbox| *outbox = Outbox::default())
            && note(&mut outbox)
        {
            self.clock.wake();
        }
    }

    /// Records for gateways of other proxies that an engine's load changed (the tokens that it has yet to compute).
    /// Does nothing if there is one engine, since no choice depends on its load.
    pub(super) fn note_load(&self, engine: EngineId) {
        if self.engines.are_several() {
            self.note(|outbox| outbox.add_load(engine));
        }
    }

    /// Exchanges updates about cached prefixes with gateways of other proxies that use the same engine as `feed`: (1)
    /// if this worker reads the feed for all workers, starts a long poll for their updates unless one is in flight; (2)
    /// at a periodic tick ([`Tick::Full`]), reads from shared data whether any of them listens; (3) if one listens,
    /// pushes the updates about this worker's requests, unless a push is in flight or the pause after a failed push is
    /// not over.
    pub(super) fn exchange(&self, host: &impl Host, now_ms: u64, feed: &mut Feed, tick: Tick) {
        let engine = feed.engine();
        if let Some(load) = feed.poll_gateways(host, now_ms) {
            self.engines.set_elsewhere(host, now_ms, engine, load);
        }
        let Some(mut outbox) = self.outbox.lock(|outbox| *outbox = Outbox::default()) else {
            return;
        };
        if tick == Tick::Full {
            let is_open = feed.look_for_listeners(host, now_ms);
            outbox.set_open(engine, is_open);
        }
        if !feed.may_push(now_ms) {
            return;
        }
        let outgoing = outbox.take(engine);
        drop(outbox);
        if !outgoing.is_empty() || (tick == Tick::Full && feed.repeats_load(now_ms)) {
            let load = || self.engines.own_outstanding(host, now_ms, engine);
            let lost = feed.push(host, now_ms, outgoing, load);
            self.metrics.lost_updates.add(host, lost);
        }
    }

    /// Handles the response to the call with the number `call`, if it was a call of the exchange with gateways of other
    /// proxies: applies their updates and publishes them to the other workers. Returns whether it was such a call.
    pub(super) fn receive(
        &self,
        host: &impl Host,
        now_ms: u64,
        call: u32,
        answer: CallResponse<'_>,
    ) -> bool {
        let received = self.feeds().and_then(|mut feeds| {
            let mut feeds = feeds.iter_mut();
            feeds.find_map(|feed| {
                let received = feed.on_gateways_answer(host, now_ms, call, answer)?;
                Some((feed.engine(), received, feed.changed_load(now_ms)))
            })
        });
        let Some((engine, received, load)) = received else {
            return false;
        };
        if let Some(load) = load {
            self.engines.set_elsewhere(host, now_ms, engine, load);
        }
        let count = u64::try_from(received.updates.len()).unwrap_or(u64::MAX);
        if count > 0
            && let Some(mut knowledge) = self.knowledge()
        {
            for update in received.updates {
                knowledge.take(host, &self.metrics, &update.about(engine));
            }
        }
        self.metrics.sent_updates.add(host, received.sent);
        self.metrics.lost_updates.add(host, received.lost);
        // Counted last, so a reader who sees the count also sees the updates applied.
        self.metrics.received_updates.add(host, count);
        // There may be more to receive or to push by now.
        if received.listens_again || self.has_outgoing(engine) {
            self.clock.wake();
        }
        true
    }

    fn has_outgoing(&self, engine: EngineId) -> bool {
        let outbox = self.outbox.lock(|outbox| *outbox = Outbox::default());
        outbox.is_some_and(|outbox| outbox.has(engine))
    }
}

/// Returns the id by which gateways of other proxies identify this one. Workers with the same `ring` (the name of the
/// ring buffer through which they share updates) have the same id.
///
/// Creates its key in shared data: see [`crate::swap`] on when that is safe. Returns an error if the proxy refuses
/// access to shared data.
pub(super) fn gateway_id(host: &impl Host, ring: &str) -> Result<GatewayId, HostError> {
    let key = format!("foreword/gateway/{LAYOUT}/{ring}");
    let random = RandomState::new().build_hasher().finish();
    swap::create(host, &key, &random.to_le_bytes())?;
    let ([id], _) = swap::numbers(host, &key, NO_ID)?;
    Ok(GatewayId(id))
}

/// Version of the layout of the gateway's id in shared data. A build with another version draws another id.
const LAYOUT: &str = "1";
/// Error status for a gateway id that is missing or malformed in shared data.
const NO_ID: u32 = 205;
