//! What gateways of different proxies tell each other about one engine, through the server of its feed.
//!
//! ```text
//!   requests ─▶ ring ─▶ leader ── POST /v1/kv/records ──▶ server of the feed ──▶ other leaders ─▶ their rings ─▶ workers
//!                          ▲            updates, load            │ keeps the last ones
//!                          └────── GET /v1/kv/records ───────────┘ others' alone; waits
//! ```
//!
//! The worker that leads a feed listens with a long poll, and pushes what its own proxy's requests did as soon as no push
//! is under way, one at a time. A push carries the tokens that the engine has yet to compute for this proxy's requests
//! too: a state, sent again every [`REPEAT_MS`] while it is not zero, and forgotten [`FORGET_MS`] after the last push. So
//! a push that is lost costs knowledge for a while, and nothing has to be undone.
//!
//! The server's responses say how many other gateways listen. While none does, nothing is collected or pushed. A server
//! without the route, such as an older host's, is not called again for [`OFF_MS`].

use foreword_ordering::PeerUpdate;
use foreword_ordering::feed::{Epoch, GatewayId, Push, Pushes};

use super::WAIT_MS;
use super::call::{CallSlot, Link, body_of};
use super::outbox::Outgoing;
use crate::host::{CallResponse, Host, HostError, LogLevel};

/// One worker's part in what gateways tell each other about one engine.
#[derive(Debug)]
pub(crate) struct Gateways {
    /// The id that all workers of this proxy share.
    id: GatewayId,
    /// A hash of what gateways must have in common to learn from each other.
    audience: u64,
    receiving: CallSlot,
    sending: CallSlot,
    /// What the push under way holds.
    last_push: LastPush,
    /// The position from which to listen; `None`: from now on.
    place: Option<(Epoch, u64)>,
    /// Number of other gateways that listen.
    others: u32,
    /// The load that others reported.
    loads: Vec<Load>,
    /// The sum of the loads as published, and when.
    published: (u64, u64),
}

/// What the response to a call brought.
#[derive(Debug, Default)]
pub(crate) struct ExchangeResult {
    /// Updates of other gateways' requests.
    pub(crate) updates: Vec<PeerUpdate>,
    /// Number of own updates that the server took.
    pub(crate) sent: u64,
    /// Number of own updates that it did not take, and of others' that cannot be read.
    pub(crate) lost: u64,
}

/// The push that was made last.
#[derive(Debug, Default)]
struct LastPush {
    updates: u64,
    outstanding: u64,
    at_ms: u64,
}

/// The load of another gateway.
#[derive(Debug)]
struct Load {
    gateway: GatewayId,
    outstanding: u64,
    received_ms: u64,
}

impl Gateways {
    pub(crate) fn new(id: GatewayId, audience: u64) -> Self {
        Self {
            id,
            audience,
            receiving: CallSlot::default(),
            sending: CallSlot::default(),
            last_push: LastPush::default(),
            place: None,
            others: 0,
            loads: Vec::new(),
            published: (0, 0),
        }
    }

    /// Forgets everything but the id: another worker leads.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.id, self.audience);
    }

    /// Returns whether somebody listens.
    pub(super) fn has_listeners(&self) -> bool {
        self.others > 0
    }

    /// Returns whether a push can be made now.
    pub(super) fn may_push(&self, now_ms: u64) -> bool {
        self.others > 0 && self.sending.is_free(now_ms)
    }

    /// Returns whether the load may have to be told again, though nothing else is: others believe that there is some.
    pub(super) fn has_sent_load(&self) -> bool {
        self.last_push.outstanding > 0
    }

    /// Listens, unless it does already.
    pub(super) fn poll(&mut self, host: &impl Host, now_ms: u64, link: &Link<'_>) {
        if !self.receiving.is_free(now_ms) {
            return;
        }
        let place = self.place.map_or_else(String::new, |(epoch, next)| {
            format!("&epoch={epoch}&since={next}&others={}", self.others)
        });
        let path = format!("{PATH}?gateway={}&wait_ms={WAIT_MS}{place}", self.id);
        let call = link.call(host, "GET", &path, &[]);
        begin(&mut self.receiving, host, now_ms, call, link);
    }

    /// Pushes the updates, and the load if it is other than told before, or was told a while ago. Returns the number of
    /// updates that are lost, since the call could not be made.
    pub(super) fn push(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        link: &Link<'_>,
        taken: Outgoing,
        outstanding: u64,
    ) -> u64 {
        let age_ms = now_ms.saturating_sub(self.last_push.at_ms);
        let is_due =
            outstanding != self.last_push.outstanding || (outstanding > 0 && age_ms >= REPEAT_MS);
        if taken.updates.is_empty() && !is_due {
            return taken.dropped;
        }
        let updates = count(taken.updates.len());
        let push = Push {
            gateway: self.id,
            number: host.now_ns(),
            audience: self.audience,
            outstanding,
            updates: taken.updates,
        };
        let body = serde_json::to_vec(&push.sealed(link.key)).unwrap_or_default();
        let call = link.call(host, "POST", PATH, &body);
        self.last_push = LastPush {
            updates,
            outstanding,
            at_ms: now_ms,
        };
        let is_made = begin(&mut self.sending, host, now_ms, call, link);
        let lost = if is_made { 0 } else { updates };
        taken.dropped.saturating_add(lost)
    }

    /// Handles the response to a call. Returns `None` if it is to none of these calls.
    pub(super) fn on_answer(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        call: u32,
        answer: CallResponse<'_>,
        link: &Link<'_>,
    ) -> Option<ExchangeResult> {
        if self.sending.end(call) {
            let updates = std::mem::take(&mut self.last_push.updates);
            let is_taken = self.settle_push(host, now_ms, answer, link);
            let (sent, lost) = if is_taken { (updates, 0) } else { (0, updates) };
            return Some(ExchangeResult {
                sent,
                lost,
                ..ExchangeResult::default()
            });
        }
        self.receiving.end(call).then(|| {
            self.receive(now_ms, answer, link)
                .unwrap_or_else(|problem| {
                    self.others = 0;
                    let slot = &mut self.receiving;
                    failed(slot, host, now_ms, answer.status, &problem, link);
                    ExchangeResult::default()
                })
        })
    }

    /// Returns the sum of the loads of others, if it has to be published: it is another one, or was published a while
    /// ago.
    pub(super) fn changed_load(&mut self, now_ms: u64) -> Option<u64> {
        let is_recent = |load: &Load| now_ms.saturating_sub(load.received_ms) < FORGET_MS;
        self.loads.retain(is_recent);
        let loads = self.loads.iter().map(|load| load.outstanding);
        let sum = loads.fold(0_u64, u64::saturating_add);
        let (published, at_ms) = self.published;
        let is_old = now_ms.saturating_sub(at_ms) >= REPEAT_MS;
        (sum != published || (sum > 0 && is_old)).then(|| {
            self.published = (sum, now_ms);
            sum
        })
    }

    /// Handles the response to a push; returns whether the server took it.
    fn settle_push(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        answer: CallResponse<'_>,
        link: &Link<'_>,
    ) -> bool {
        let is_taken = matches!(answer.status, Some(200..=299));
        if is_taken {
            self.sending.succeeded(now_ms);
        } else {
            let (slot, problem) = (&mut self.sending, "the push was refused");
            failed(slot, host, now_ms, answer.status, problem, link);
            // Nobody heard of the load, so it is told again.
            self.last_push = LastPush::default();
        }
        is_taken
    }

    fn receive(
        &mut self,
        now_ms: u64,
        answer: CallResponse<'_>,
        link: &Link<'_>,
    ) -> Result<ExchangeResult, String> {
        let pushes: Pushes = serde_json::from_slice(body_of(answer)?).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            format!("no pushes: line {line}, column {column}")
        })?;
        self.receiving.succeeded(now_ms);
        self.place = Some((pushes.epoch, pushes.next));
        self.others = pushes.others;
        let mut received = ExchangeResult::default();
        let own = self.id;
        for sealed in pushes.pushes.iter().filter(|push| push.gateway != own) {
            let Ok(push) = sealed.open(link.key) else {
                received.lost = received.lost.saturating_add(1);
                continue;
            };
            self.take_load(now_ms, &push);
            if push.audience != self.audience {
                continue;
            }
            for update in &push.updates {
                match PeerUpdate::decode(update) {
                    Ok(update) => received.updates.push(update),
                    Err(_) => received.lost = received.lost.saturating_add(1),
                }
            }
        }
        Ok(received)
    }

    fn take_load(&mut self, now_ms: u64, push: &Push) {
        self.loads.retain(|load| load.gateway != push.gateway);
        if push.outstanding > 0 && self.loads.len() < MAX_GATEWAYS {
            self.loads.push(Load {
                gateway: push.gateway,
                outstanding: push.outstanding,
                received_ms: now_ms,
            });
        }
    }
}

/// Notes a call, or that it could not be made; returns whether it was.
fn begin(
    slot: &mut CallSlot,
    host: &impl Host,
    now_ms: u64,
    call: Result<u32, HostError>,
    link: &Link<'_>,
) -> bool {
    match &call {
        Ok(call) => slot.begin(now_ms, *call),
        Err(error) => failed(slot, host, now_ms, None, &error.to_string(), link),
    }
    call.is_ok()
}

/// Notes a failure, and logs the first of several, except that a server does not know the route.
fn failed(
    slot: &mut CallSlot,
    host: &impl Host,
    now_ms: u64,
    status: Option<u16>,
    problem: &str,
    link: &Link<'_>,
) {
    if matches!(status, Some(404 | 405 | 501)) {
        slot.failed_for(now_ms, OFF_MS);
    } else if slot.failed(now_ms) {
        let name = link.name;
        let message = format!("gateways cannot exchange records at {name}: {problem}");
        host.log(LogLevel::Warn, &message);
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

const PATH: &str = "/v1/kv/records";
/// Time after which a load that has not changed is told again.
const REPEAT_MS: u64 = 1_000;
/// Time after which the load of a gateway that says nothing is forgotten.
const FORGET_MS: u64 = 5_000;
/// Time for which a server that does not know the route is left alone.
const OFF_MS: u64 = 300_000;
/// Most gateways whose load is known.
const MAX_GATEWAYS: usize = 256;

#[cfg(test)]
mod tests;
