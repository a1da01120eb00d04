//! What gateways of different proxies tell each other about one engine, through the server of its feed.
//!
//! ```text
//!   requests ─▶ worker ── POST /v1/kv/records ──▶ server of the feed ──▶ leaders elsewhere ─▶ their rings ─▶ workers
//!               leader ◀─ GET /v1/kv/records ────┘ keeps the last ones
//!                            others' alone; waits
//! ```
//!
//! The worker that leads a feed listens with a long poll. Each worker pushes what its own requests did, a millisecond
//! after they did it, one push at a time. A push carries the tokens that the engine has yet to compute for this proxy's
//! requests too: a state, of which the latest counts. The leader sends it again every [`REPEAT_MS`] while it is not
//! zero, and it is forgotten [`FORGET_MS`] after the last push. So a push that is lost costs knowledge for a while, and
//! nothing has to be undone.
//!
//! The server's responses say how many other gateways listen. When none has for a while, nothing is collected or pushed. A server
//! without the route, such as an older host's, is not called again for [`LONGEST_PAUSE_MS`].
//!
//! The feed's server is the one place that all gateways before an engine know already, with its keys; a gateway knows
//! no other gateway. What is told of an engine concerns those alone that send to it. A feed by itself reports a prompt
//! when it is computed, and by then neighbours with the same documents have gone elsewhere.

use foreword_ordering::PeerUpdate;
use foreword_ordering::feed::{Epoch, GatewayId, Push, Pushes};

use super::WAIT_MS;
use super::call::{CallSlot, LONGEST_PAUSE_MS, Link, body_of};
use super::listeners::Listeners;
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
    last_push: LastPush,
    /// The position from which to listen; `None`: from now on.
    place: Option<(Epoch, u64)>,
    /// Number of other gateways that listen, as the leader knows it.
    others: u32,
    listeners: Listeners,
    /// Whether somebody listened when this worker last looked.
    is_listened_to: bool,
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
    /// Number of own updates that it did not take, and of others' that cannot be read, or may hold texts of requests.
    pub(crate) lost: u64,
    /// Whether to listen again at once: others had told something, or the server had waited for it, so it does not
    /// answer again and again.
    pub(crate) listens_again: bool,
}

/// The push that this worker made last.
#[derive(Debug, Default)]
struct LastPush {
    updates: u64,
    outstanding: u64,
    at_ms: u64,
    /// Whether the server did not take the push; then no gateway knows its load, and the worker pushes the load again.
    failed: bool,
}

/// The load of another gateway.
#[derive(Debug)]
struct Load {
    gateway: GatewayId,
    outstanding: u64,
    /// The push that told it. Workers of one gateway push beside each other, so a later one may come first.
    number: u64,
    received_ms: u64,
}

impl Gateways {
    /// Returns one worker's part. `name` is one for all workers and this engine.
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

    /// Reads from shared data whether other gateways listen. The worker that leads the feed writes it there first; a
    /// worker that does not lead forgets what it heard while it did.
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

    /// Returns whether somebody listens.
    pub(super) fn has_listeners(&self) -> bool {
        self.is_listened_to
    }

    /// Returns whether a push can be made now.
    pub(super) fn may_push(&self, now_ms: u64) -> bool {
        self.is_listened_to && self.sending.is_free(now_ms)
    }

    /// Returns whether this worker has to tell the load again: its last push failed, or it leads and the push was a while
    /// ago.
    pub(super) fn repeats_load(&self, now_ms: u64, leads: bool) -> bool {
        let push = &self.last_push;
        push.failed || (leads && now_ms.abs_diff(push.at_ms) >= REPEAT_MS)
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

    /// Pushes what is new, with the load; if nothing is, the load alone where others believe or should know that there is
    /// some. Returns the number of updates that are lost: they found no room, or the call could not be made.
    ///
    /// The push's number is drawn before `outstanding` reads the load, so the last of several workers' pushes is never older
    /// than a change.
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

    /// Handles the response to a call. Returns `None` if it is to none of these calls.
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

    /// Returns the sum of the loads of others, if it has to be published: it is another one, or was published a while
    /// ago.
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
            // The one that was heard of the longest ago.
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
    /// Returns whether it counts. What came after now came before the clock was set back.
    fn is_recent(&self, now_ms: u64) -> bool {
        let age_ms = now_ms.checked_sub(self.received_ms);
        age_ms.is_some_and(|age_ms| age_ms < FORGET_MS)
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
/// Time after which a load that has not changed is told again.
const REPEAT_MS: u64 = 1_000;
/// Time after which the load of a gateway that says nothing is forgotten.
const FORGET_MS: u64 = 5_000;
/// Most gateways whose load is known.
const MAX_GATEWAYS: usize = 256;

#[cfg(test)]
mod tests;
