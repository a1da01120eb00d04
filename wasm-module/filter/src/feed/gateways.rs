//! Exchange of updates about one engine between gateways of different proxies, through the server of the engine's event
//! feed.
//!
//! ```text
//!   requests ─▶ worker ── POST /v1/kv/records ──▶ server of the feed ──▶ other proxies' leaders ─▶ rings ─▶ workers
//!               leader ◀─ GET /v1/kv/records ────┘ stores the last ones
//!                            others' updates; long poll
//! ```
//!
//! The worker that leads (reads the feed for all workers of its proxy) also listens for updates with a long poll. Each
//! worker pushes the records of its own requests, a millisecond after they are made, one push at a time. A push also
//! has the proxy's load: the tokens that the engine has yet to compute for this proxy's requests, of which only the
//! latest number counts. The leader repeats the load every [`REPEAT_MS`] while it is not zero, and receivers drop it
//! [`FORGET_MS`] after the last push. So a lost push costs knowledge for a while, and a gateway that ends needs no
//! clean-up.
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

/// One worker's access to the exchange of updates about one engine with gateways of other proxies.
#[derive(Debug)]
pub(crate) struct Gateways {
    /// The id of this gateway, which all workers of this proxy share.
    id: GatewayId,
    /// Hash of the settings that must be equal in gateways that use each other's updates about cached prefixes.
    audience: u64,
    receiving: CallSlot,
    sending: CallSlot,
    last_push: LastPush,
    /// The position in the server's list of pushes from which to listen next; `None` to begin with new pushes.
    place: Option<(Epoch, u64)>,
    /// Number of other gateways that listen for updates about cached prefixes, as the server last said; 0 unless this
    /// worker leads (reads the feed for all workers of the proxy).
    others: u32,
    listeners: Listeners,
    /// True if another gateway listened, according to shared data, at the last [`Gateways::look`].
    is_listened_to: bool,
    /// The loads (tokens that the engine has yet to compute for their requests) that other gateways reported.
    loads: Vec<Load>,
    /// The sum of `loads` that [`Gateways::changed_load`] last returned, and the time of that in milliseconds.
    published: (u64, u64),
}

/// The content of the response to a push, or to a long poll for pushes of other gateways: their updates about cached
/// prefixes, and counts.
#[derive(Debug, Default)]
pub(crate) struct ExchangeResult {
    /// Updates about cached prefixes that other gateways pushed, in the order in which the server received them. Empty
    /// in the response to this worker's own push.
    pub(crate) updates: Vec<PeerUpdate>,
    /// Number of this worker's updates about cached prefixes that the server accepted.
    pub(crate) sent: u64,
    /// Number of this worker's updates about cached prefixes that the server did not accept, plus received pushes and
    /// updates that cannot be read.
    pub(crate) lost: u64,
    /// True if the worker should listen again at once. False if the server responded without updates and without having
    /// waited, so that it is not called in a tight loop.
    pub(crate) listens_again: bool,
}

/// This worker's last push of updates about cached prefixes, with the proxy's load (the tokens that the engine has yet
/// to compute for its requests).
#[derive(Debug, Default)]
struct LastPush {
    updates: u64,
    outstanding: u64,
    at_ms: u64,
    /// True if the push failed, so no gateway received the load in it and the worker must push the load again.
    failed: bool,
}

/// The load of another gateway: the tokens that the engine has yet to compute for its requests.
#[derive(Debug)]
struct Load {
    gateway: GatewayId,
    outstanding: u64,
    /// The number of the push that reported this load; the highest number is the latest. Workers of one gateway push
    /// concurrently, so pushes may arrive out of order.
    number: u64,
    received_ms: u64,
}

impl Gateways {
    /// Returns this worker's access to the exchange, with gateways of other proxies, of updates about the prefixes that
    /// one engine has cached. `name`, a part of a key in shared data, must identify the engine and be the same in all
    /// workers of the proxy.
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

    /// Reads from shared data whether gateways of other proxies listen for updates about cached prefixes, for
    /// [`Gateways::has_listeners`]. A worker that leads (`leads`: it reads the feed for all workers) first records
    /// there that one listens, if the server last said so. Any other worker forgets the state of its own listening: the
    /// call in flight, its position and other gateways' loads.
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

    /// Returns whether a gateway of another proxy listened for updates about cached prefixes at the last
    /// [`Gateways::look`], according to shared data.
    pub(super) fn has_listeners(&self) -> bool {
        self.is_listened_to
    }

    /// Returns whether updates about cached prefixes can be pushed to other gateways now: some listen, no push is in
    /// flight, and the pause after a failed push is over.
    pub(super) fn may_push(&self, now_ms: u64) -> bool {
        self.is_listened_to && self.sending.is_free(now_ms)
    }

    /// Returns whether this worker must push the load again (the tokens that the engine has yet to compute for this
    /// proxy's requests): its last push failed, or it leads (reads the feed for all workers) and its last push was
    /// [`REPEAT_MS`] ago.
    pub(super) fn repeats_load(&self, now_ms: u64, leads: bool) -> bool {
        let push = &self.last_push;
        push.failed || (leads && now_ms.abs_diff(push.at_ms) >= REPEAT_MS)
    }

    /// Starts a long poll for other gateways' pushes, unless one is in flight or the pause after a failed call is not
    /// over.
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

    /// Pushes the updates about cached prefixes in `taken` to gateways of other proxies, with the load that
    /// `outstanding` returns (the tokens that the engine has yet to compute for this proxy's requests). Without
    /// updates, pushes only a load that other gateways must learn of. Returns the number of updates lost because the
    /// queue was full or the call failed.
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

    /// Handles the response to the call with the number `call`, a push or a listening call. `None` if this exchange has
    /// no such call in flight.
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

    /// Returns the sum of other gateways' loads (tokens that the engine has yet to compute for their requests) if it
    /// has changed since it was last returned, or is not 0 and was last returned [`REPEAT_MS`] ago. Otherwise returns
    /// `None`.
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

    /// Handles the response to a push. Returns whether the server accepted the push.
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
    /// Returns whether the other gateway reported this load less than [`FORGET_MS`] ago. A report from the future,
    /// after the clock was set back, does not count.
    fn is_recent(&self, now_ms: u64) -> bool {
        let age_ms = now_ms.checked_sub(self.received_ms);
        age_ms.is_some_and(|age_ms| age_ms < FORGET_MS)
    }
}

/// Records in `slot`, the state of one kind of call, that a call was made or that the proxy refused it. Returns whether
/// it was made.
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

/// Records a failed call in `slot`, the state of one kind of call. Logs the first failure in a row, unless the server
/// only lacks the route.
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
/// Time in milliseconds after which the proxy's load (the tokens that the engine has yet to compute for its requests)
/// is pushed again even if it has not changed.
const REPEAT_MS: u64 = 1_000;
/// Time in milliseconds after another gateway's last push from which its load (the tokens that the engine has yet to
/// compute for its requests) no longer counts.
const FORGET_MS: u64 = 5_000;
/// The maximum number of other gateways whose loads (tokens yet to be computed for their requests) are recorded for one
/// engine.
const MAX_GATEWAYS: usize = 256;

#[cfg(test)]
mod tests;
