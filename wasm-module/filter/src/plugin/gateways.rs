//! A plugin's exchange of updates with gateways of other proxies; see [`crate::feed`] for the protocol.

use foreword_ordering::EngineId;
use foreword_ordering::feed::GatewayId;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::{Plugin, Tick};
use crate::feed::{Feed, Outbox};
use crate::host::{CallResponse, Host, HostError};
use crate::swap;

impl Plugin {
    /// Calls `note` to queue an update for gateways of other proxies, if updates are exchanged with them. If it returns
    /// true (a gateway listens), requests a tick that pushes the update.
    pub(super) fn note(&self, note: impl FnOnce(&mut Outbox) -> bool) {
        if self.config.exchanges()
            && let Some(mut outbox) = self.outbox.lock(|outbox| *outbox = Outbox::default())
            && note(&mut outbox)
        {
            self.clock.wake();
        }
    }

    /// Records for gateways of other proxies that an engine's outstanding tokens changed. Does nothing with one engine,
    /// since no choice depends on its load.
    pub(super) fn note_load(&self, engine: EngineId) {
        if self.engines.are_several() {
            self.note(|outbox| outbox.add_load(engine));
        }
    }

    /// Listens to gateways of other proxies that use this feed's engine, and pushes new updates to them.
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
            self.metrics.lost_updates(host, lost);
        }
    }

    /// Handles the response to a call of the exchange; returns false if the call is not the exchange's.
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
        self.metrics.sent_updates(host, received.sent);
        self.metrics.lost_updates(host, received.lost);
        // Counted last, so a reader who sees the count also sees the updates applied.
        self.metrics.received_updates(host, count);
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

/// Returns the id of this gateway, shared by all workers in agreement under `ring`. Creates its key in shared data: see
/// [`crate::swap`] on when that is safe.
pub(super) fn gateway_id(host: &impl Host, ring: &str) -> Result<GatewayId, HostError> {
    let key = format!("foreword/gateway/{LAYOUT}/{ring}");
    let random = RandomState::new().build_hasher().finish();
    swap::create(host, &key, &random.to_le_bytes())?;
    let bytes = host.shared_data(&key)?;
    let bytes = bytes.and_then(|(bytes, _)| <[u8; 8]>::try_from(bytes).ok());
    let bytes = bytes.ok_or(HostError {
        call: "shared_data",
        status: NO_ID,
    })?;
    Ok(GatewayId(u64::from_le_bytes(bytes)))
}

/// Version of the id's layout in shared data.
const LAYOUT: &str = "1";
/// Status for an id that is missing or malformed.
const NO_ID: u32 = 205;
