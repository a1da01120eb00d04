//! What a plugin tells gateways of other proxies, and hears of them; see [`crate::feed`] on how.

use foreword_ordering::feed::GatewayId;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Plugin;
use crate::agreement::Origin;
use crate::feed::{Feed, Outgoing};
use crate::host::{CallResponse, Host, HostError};
use crate::swap;

/// A tick of a plugin's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// Everything was done that there is to do now and then.
    Full,
    /// Only what cannot wait that long was done: learning, telling.
    Short,
}

/// The times of full ticks.
#[derive(Debug, Default)]
pub(super) struct FullTicks {
    /// Time of the next one.
    next_ms: AtomicU64,
}

impl FullTicks {
    /// Returns whether a full tick is due, and notes it.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        // A clock that was set back must not stop them.
        let is_due = now_ms >= next_ms || next_ms.saturating_sub(now_ms) > FULL_TICK_MS;
        if is_due {
            let next_ms = now_ms.saturating_add(FULL_TICK_MS);
            self.next_ms.store(next_ms, Ordering::Relaxed);
        }
        is_due
    }
}

impl Plugin {
    /// Returns the interval of [`Plugin::on_tick`].
    pub fn tick_ms(&self) -> u64 {
        if self.config.exchanges() {
            SHORT_TICK_MS
        } else {
            FULL_TICK_MS
        }
    }

    /// Listens to gateways of other proxies that send requests to this feed's engine, and tells them what is new.
    pub(super) fn exchange(&self, host: &impl Host, now_ms: u64, feed: &mut Feed, tick: Tick) {
        let engine = feed.engine();
        if let Some(load) = feed.poll_gateways(host, now_ms) {
            self.engines.set_elsewhere(host, now_ms, engine, load);
        }
        let may_push = feed.may_push(now_ms);
        let Some(mut knowledge) = self.knowledge() else {
            return;
        };
        knowledge.outbox.set_open(engine, feed.has_listeners());
        let outgoing = match may_push {
            true => knowledge.outbox.take(engine),
            false => Outgoing::default(),
        };
        drop(knowledge);
        // The load of an engine that had nothing to do is looked at now and then.
        let may_have_load = !outgoing.updates.is_empty() || feed.has_sent_load();
        if may_push && (may_have_load || tick == Tick::Full) {
            let load = self.engines.own_outstanding(host, now_ms, engine);
            let lost = feed.push(host, now_ms, outgoing, load);
            self.metrics.lost_updates(host, lost);
        }
    }

    /// Handles the response to a call for gateways of other proxies; returns whether it was one.
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
                let update = update.about(engine);
                knowledge.take(host, &self.metrics, update, Origin::Elsewhere);
            }
        }
        self.metrics.sent_updates(host, received.sent);
        self.metrics.lost_updates(host, received.lost);
        // The count comes last, so whoever sees it also sees the knowledge.
        self.metrics.received_updates(host, count);
        true
    }
}

/// Returns the id by which gateways of other proxies know this one: one for all workers that agree under `ring`. Keys are
/// created here: see [`crate::agreement`] on who may create keys.
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

/// Version of the id's form.
const LAYOUT: &str = "1";
/// Status for an id that is missing or malformed.
const NO_ID: u32 = 205;
/// The longest delay until an idle worker learns what others did, and until engines' feeds are looked at.
const FULL_TICK_MS: u64 = 100;
/// The delay until gateways of other proxies are told, where they are.
const SHORT_TICK_MS: u64 = 10;
