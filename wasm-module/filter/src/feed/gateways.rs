//! Exchange of updates about one engine between gateways of different proxies, through the server of its feed.
//!
//! ```text
//!   requests ─▶ worker ── POST /v1/kv/records ──▶ server of the feed ──▶ other proxies' leaders ─▶ rings ─▶ workers
//!               leader ◀─ GET /v1/kv/records ────┘ stores the last ones
//!                            others' updates; long poll
//! ```
//!
//! The worker that leads a feed listens with a long poll. Each worker pushes its own requests' records, a millisecond
//! after they are made, one push at a time. A push also carries the tokens that the engine has yet to compute for this
//! proxy's requests: a state, of which the latest counts. The leader repeats it every [`REPEAT_MS`] while it is not
//! zero, and receivers drop it [`FORGET_MS`] after the last push. So a lost push costs knowledge for a while, and a
//! gateway that ends needs no clean-up.
//!
//! The server's responses say how many other gateways listen. If none has for a while, nothing is collected or pushed.
//! A server without the route, such as an older host's, is not called again for [`LONGEST_PAUSE_MS`].
//!
//! All gateways of an engine already have the address and the keys of its feed's server, but no gateway knows another.
//! Updates about an engine concern only gateways that send to it. A feed alone reports a prompt when it is computed; by
//! then, requests with the same documents have gone to other engines.

use foreword_ordering::PeerUpdate;
use foreword_ordering::feed::{Epoch, GatewayId, Push, Pushes};

use super::WAIT_MS;
use super::call::{CallSlot, LONGEST_PAUSE_MS, Link, body_of};
use super::listeners::Listeners;
use super::outbox::Outgoing;
use crate::host::{CallResponse, Host, HostError, LogLevel};

/// One worker's part in the exchange of updates about one engine with gateways of other proxies.
#[derive(Debug)]
pub(crate) struct Gateways {
    /// The id that all workers of this proxy share.
    id: GatewayId,
    /// Hash of the settings that gateways must share to use each other's updates.
    audience: u64,
    receiving: CallSlot,
    sending: CallSlot,
    last_push: LastPush,
    /// The position from which to listen; `None` to begin with new updates.
    place: Option<(Epoch, u64)>,
    /// Number of other gateways that listen, as the server says; 0 unless this worker leads.
    others: u32,
    listeners: Listeners,
    /// True if another gateway listened when this worker last looked.
    is_listened_to: bool,
    /// The loads (outstanding tokens) that other gateways reported.
    loads: Vec<Load>,
    /// The sum of `loads` as [`Gateways::changed_load`] last returned it, and the time of that in milliseconds.
    published: (u64, u64),
}

/// The result of a push or of a listen: other gateways' updates, and counts.
#[derive(Debug, Default)]
pub(crate) struct ExchangeResult {
    /// Updates of other gateways' requests.
    pub(crate) updates: Vec<PeerUpdate>,
    /// Number of own updates that the server accepted.
    pub(crate) sent: u64,
    /// Number of own updates that the server refused, plus received ones that cannot be read or contain texts.
    pub(crate) lost: u64,
    /// True if the worker listens again at once. False after an empty response without a wait, so that the server is
    /// not called in a tight loop.
    pub(crate) listens_again: bool,
}

/// This worker's last push.
#[derive(Debug, Default)]
struct LastPush {
    updates: u64,
    outstanding: u64,
    at_ms: u64,
    /// True if the push failed: no gateway received its load, so the worker pushes the load again.
    failed: bool,
}

/// The load of another gateway.
#[derive(Debug)]
struct Load {
    gateway: GatewayId,
    outstanding: u64,
    /// The number of the push that reported it. Workers of one gateway push concurrently, so pushes may arrive out of
    /// order.
    number: u64,
    received_ms: u64,
}

impl Gateways {
    /// Returns this worker's part in the exchange about one engine. `name`, a part of a key in shared data, must be the
    /// same in all workers of the proxy.
    pub(crate) fn new(
        host: &impl Host,
        id: GatewayId,
        audience: u64,
        name: &str,
    ) -> Result<Self, HostError> {
        Ok(Self {
            id,
            audience,
            listeners: Listeners::open(host, name)?,
            is_listened_to: false,
            receiving: CallSlot::default(),
            sending: CallSlot::default(),
            last_push: LastPush::default(),
            place: None,
            others: 0,
            loads: Vec::new(),
            published: (0, 0),
        })
    }

    /// Reads from shared data whether other gateways listen; a leader first records there what it knows. A worker that
    /// does not lead drops its state of listening.
    pub(super) fn look(&mut self, host: &impl Host, now_ms: u64, leads: bool) {
        if leads && self.others > 0 {
            self.listeners.note(host, now_ms);
        }
        if !leads {
            self.receiving.forget();
            self.place = None;
            self.others = 0;
            self.loads.clear();
            self.published = (0, 0);
        }
        self.is_listened_to = self.listeners.are_there(host, now_ms);
    }

    /// Returns whether other gateways listened at the last [`Gateways::look`].
    pub(super) fn has_listeners(&self) -> bool {
        self.is_listened_to
    }

    /// Returns whether a push can be made now: others listen, no push is in flight, and no pause after a failure is
    /// running.
    pub(super) fn may_push(&self, now_ms: u64) -> bool {
        self.is_listened_to && self.sending.is_free(now_ms)
    }

    /// Returns whether this worker must push the load again: its last push failed, or it leads and its last push is
    /// old.
    pub(super) fn repeats_load(&self, now_ms: u64, leads: bool) -> bool {
        let push = &self.last_push;
        push.failed || (leads && now_ms.abs_diff(push.at_ms) >= REPEAT_MS)
    }

    /// Starts a long poll, unless one is in flight or calls pause after a failure.
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

    /// Pushes new updates with the load; without updates, only a load that other gateways must learn of. Returns the
    /// number of updates lost because the queue was full or the call failed.
    ///
    /// The push's number is drawn before `outstanding` reads the load, so among several workers' pushes the one with
    /// the highest number has the latest load.
    pub(super) fn push(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        link: &Link<'_>,
        taken: Outgoing,
        outstanding: impl FnOnce() -> u64,
    ) -> u64 {
        let number = host.now_ns();
        let outstanding = outstanding();
        let last = &self.last_push;
        let has_load = taken.has_load || last.failed || outstanding > 0 || last.outstanding > 0;
        if taken.updates.is_empty() && !has_load {
            return taken.dropped;
        }
        let updates = count(taken.updates.len());
        let push = Push {
            gateway: self.id,
            number,
            audience: self.audience,
            outstanding,
            updates: taken.updates,
        };
        let body = serde_json::to_vec(&push.sealed(link.key)).unwrap_or_default();
        let call = link.call(host, "POST", PATH, &body);
        let is_made = begin(&mut self.sending, host, now_ms, call, link);
        self.last_push = LastPush {
            updates,
            outstanding,
            at_ms: now_ms,
            failed: !is_made,
        };
        let lost = if is_made { 0 } else { updates };
        taken.dropped.saturating_add(lost)
    }

    /// Handles the response to a push or a listen; `None` if this worker's exchange did not make the call.
    pub(super) fn on_answer(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        call: u32,
        answer: CallResponse<'_>,
        link: &Link<'_>,
    ) -> Option<ExchangeResult> {
        if self.sending.end(call).is_some() {
            let updates = std::mem::take(&mut self.last_push.updates);
            let is_taken = self.settle_push(host, now_ms, answer, link);
            let (sent, lost) = if is_taken { (updates, 0) } else { (0, updates) };
            return Some(ExchangeResult {
                sent,
                lost,
                ..ExchangeResult::default()
            });
        }
        let since = self.receiving.end(call)?;
        let mut received = self
            .receive(now_ms, answer, link)
            .unwrap_or_else(|problem| {
                self.others = 0;
                let slot = &mut self.receiving;
                failed(slot, host, now_ms, answer.status, &problem, link);
                ExchangeResult::default()
            });
        received.listens_again |= now_ms.saturating_sub(since) >= WAIT_MS / 2;
        Some(received)
    }

    /// Returns the sum of others' loads if it changed, or is not 0 and was last returned [`REPEAT_MS`] ago.
    pub(super) fn changed_load(&mut self, now_ms: u64) -> Option<u64> {
        self.loads.retain(|load| load.is_recent(now_ms));
        let loads = self.loads.iter().map(|load| load.outstanding);
        let sum = loads.fold(0_u64, u64::saturating_add);
        let (published, at_ms) = self.published;
        let is_old = now_ms.abs_diff(at_ms) >= REPEAT_MS;
        (sum != published || (sum > 0 && is_old)).then(|| {
            self.published = (sum, now_ms);
            sum
        })
    }

    /// Handles the response to a push; returns whether the server accepted it.
    fn settle_push(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        answer: CallResponse<'_>,
        link: &Link<'_>,
    ) -> bool {
        let is_taken = matches!(answer.status, Some(200..=299));
        if is_taken {
            self.sending.succeeded();
        } else {
            let (slot, problem) = (&mut self.sending, "the push was refused");
            failed(slot, host, now_ms, answer.status, problem, link);
            self.last_push.failed = true;
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
        self.receiving.succeeded();
        self.place = Some((pushes.epoch, pushes.next));
        self.others = pushes.others;
        let mut received = ExchangeResult {
            listens_again: !pushes.pushes.is_empty(),
            ..ExchangeResult::default()
        };
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
                match PeerUpdate::decode_remote(update) {
                    Ok(update) => received.updates.push(update),
                    Err(_) => received.lost = received.lost.saturating_add(1),
                }
            }
        }
        Ok(received)
    }

    fn take_load(&mut self, now_ms: u64, push: &Push) {
        let is_overtaken = |load: &Load| {
            load.gateway == push.gateway && load.number > push.number && load.is_recent(now_ms)
        };
        if self.loads.iter().any(is_overtaken) {
            return;
        }
        self.loads.retain(|load| load.gateway != push.gateway);
        if self.loads.len() >= MAX_GATEWAYS
            && let Some(idle) = self.loads.iter().position(|load| load.outstanding == 0)
        {
            // Loads are in order of their reports, so this is the idle gateway with the oldest one.
            self.loads.remove(idle);
        }
        if self.loads.len() < MAX_GATEWAYS {
            self.loads.push(Load {
                gateway: push.gateway,
                outstanding: push.outstanding,
                number: push.number,
                received_ms: now_ms,
            });
        }
    }
}

impl Load {
    /// Returns whether the load still counts. A report from the future means that the clock was set back: it does not.
    fn is_recent(&self, now_ms: u64) -> bool {
        let age_ms = now_ms.checked_sub(self.received_ms);
        age_ms.is_some_and(|age_ms| age_ms < FORGET_MS)
    }
}

/// Records a call or its failure; returns whether the call was made.
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

/// Records a failure, and logs the first of several, unless the server only lacks the route.
fn failed(
    slot: &mut CallSlot,
    host: &impl Host,
    now_ms: u64,
    status: Option<u16>,
    problem: &str,
    link: &Link<'_>,
) {
    if matches!(status, Some(404 | 405 | 501)) {
        slot.failed_for(now_ms, LONGEST_PAUSE_MS);
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
/// Time after which an unchanged load is pushed again, in milliseconds.
const REPEAT_MS: u64 = 1_000;
/// Time after which the load of a silent gateway is dropped, in milliseconds.
const FORGET_MS: u64 = 5_000;
/// The maximum number of gateways with a recorded load.
const MAX_GATEWAYS: usize = 256;

#[cfg(test)]
mod tests;
