//! `GET` and `POST /v1/kv/records`: what gateways before this engine tell each other.
//!
//! | request | meaning |
//! | --- | --- |
//! | `POST` | a [`SealedPush`] of one gateway, JSON; answered with the number of others that listen |
//! | `GET ?gateway=ID` | [`Pushes`] of others since `epoch` and `since`; without these, from now on |
//! | `… &wait_ms=N` | how long to wait for one, at most 60,000; 0 where it is absent |
//! | `… &others=N` | the number of others that listen, as the gateway knows it: it does not wait where it is another one |
//!
//! A feed reports what a prompt has left in the cache when it is computed. Another gateway that gets the same documents
//! meanwhile knows nothing of it, nor of the tokens that wait. So gateways tell each other, and the server of the feed
//! passes it on: it is the one place that all of them know. It keeps the last pushes in memory, and passes them on as they
//! came.
//!
//! Access is the feed's ([`super::http`]): its keys, its seal, loopback alone without one. A push needs the feed's key
//! everywhere: without one it is refused, and so is one that the key does not open. So a reader with another accepted key
//! can listen to what it cannot read, and tell nothing. Of what the key opens, each update must be one of
//! [`PeerUpdate`]'s that holds no text. Pushes are bounded in bytes, number and rate for each key; what is kept is bounded
//! for all.
//!
//! A gateway that was overtaken goes on with the oldest push that is kept; one that is new, or comes to a new life of the
//! server, with the next one. The server does not report what a gateway missed: the feed corrects it.

use super::http::Readers;
use crate::api::body;
use crate::failure::{Failure, SOON, clip};
use crate::gate::Phase;
use axum::Json;
use axum::extract::{Request, State};
use foreword_ordering::PeerUpdate;
use foreword_ordering::feed::{Epoch, GatewayId, MAX_PUSH_BYTES, Pushes, SealedPush};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The pushes of all gateways, for each other.
pub(super) struct Records {
    state: Mutex<Recent>,
    /// Changes when something is told, or another gateway begins to listen.
    progress: watch::Sender<u64>,
}

struct Recent {
    epoch: u64,
    /// Position of the oldest push.
    first: u64,
    pushes: VecDeque<SealedPush>,
    bytes: usize,
    /// When each gateway was last listening.
    listeners: BTreeMap<GatewayId, Instant>,
    /// By key: what may still be told, in bytes, and when that was counted.
    budgets: Vec<(f64, Instant)>,
}

/// The answer to a push.
#[derive(Serialize)]
pub(super) struct PushAnswer {
    /// Number of other gateways that listen.
    others: u32,
}

/// The parameters of a gateway that listens, checked.
struct Query {
    gateway: GatewayId,
    since: Option<(Epoch, u64)>,
    wait: Duration,
    others: Option<u32>,
}

impl Records {
    /// Returns an empty list of pushes, with a rate budget for each of this many keys.
    pub(super) fn new(keys: usize) -> Self {
        let budget = (RATE_BYTES * BURST_SECONDS, Instant::now());
        Self {
            state: Mutex::new(Recent {
                epoch: RandomState::new().build_hasher().finish(),
                first: 0,
                pushes: VecDeque::new(),
                bytes: 0,
                listeners: BTreeMap::new(),
                budgets: vec![budget; keys],
            }),
            progress: watch::Sender::new(0),
        }
    }

    /// Takes so many bytes of a key's budget; returns whether there were as many.
    fn admit(&self, holder: usize, bytes: usize) -> bool {
        let mut state = self.lock();
        let Some((left, counted)) = state.budgets.get_mut(holder) else {
            return false;
        };
        let now = Instant::now();
        let earned = (now - *counted).as_secs_f64() * RATE_BYTES;
        *counted = now;
        *left = (*left + earned).min(RATE_BYTES * BURST_SECONDS);
        let bytes = bytes.max(LEAST_BYTES) as f64;
        let is_admitted = *left >= bytes;
        if is_admitted {
            *left -= bytes;
        }
        is_admitted
    }

    /// Keeps a push, and wakes those that listen. Returns the number of others that do.
    fn take(&self, push: SealedPush) -> u32 {
        let others = {
            let mut state = self.lock();
            let others = state.others(push.gateway);
            state.bytes += weight(&push);
            state.pushes.push_back(push);
            while state.bytes > KEPT_BYTES || state.pushes.len() > KEPT_PUSHES {
                let Some(oldest) = state.pushes.pop_front() else {
                    break;
                };
                state.bytes -= weight(&oldest);
                state.first += 1;
            }
            others
        };
        self.progress.send_modify(|changes| *changes += 1);
        others
    }

    /// Returns what others have told since a position, and notes that this gateway listens.
    fn since(&self, gateway: GatewayId, since: Option<(Epoch, u64)>) -> Pushes {
        let (pushes, is_new) = {
            let mut state = self.lock();
            let is_new = state.listen(gateway);
            (state.since(gateway, since), is_new)
        };
        if is_new {
            self.progress.send_modify(|changes| *changes += 1);
        }
        pushes
    }

    /// The state is valid after every line that runs under the lock, so a panic elsewhere spoils nothing.
    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent {
    /// Notes that a gateway listens; returns whether it is a new one. Of too many, the one that was heard of least
    /// recently is forgotten.
    fn listen(&mut self, gateway: GatewayId) -> bool {
        let now = Instant::now();
        self.listeners
            .retain(|_, seen| now.duration_since(*seen) < LISTENING);
        let is_new = self.listeners.insert(gateway, now).is_none();
        if self.listeners.len() > MAX_LISTENERS {
            let oldest = self.listeners.iter().min_by_key(|(_, seen)| **seen);
            if let Some(oldest) = oldest.map(|(gateway, _)| *gateway) {
                self.listeners.remove(&oldest);
            }
        }
        is_new
    }

    fn others(&self, gateway: GatewayId) -> u32 {
        let now = Instant::now();
        let listening = self
            .listeners
            .iter()
            .filter(|(other, seen)| **other != gateway && now.duration_since(**seen) < LISTENING);
        u32::try_from(listening.count()).unwrap_or(u32::MAX)
    }

    fn since(&self, gateway: GatewayId, since: Option<(Epoch, u64)>) -> Pushes {
        let next = self.first + self.pushes.len() as u64;
        let from = since
            .filter(|(epoch, from)| epoch.0 == self.epoch && *from <= next)
            .map_or(next, |(_, from)| from.max(self.first));
        // It fits: there are no more pushes than that.
        let known = (from - self.first) as usize;
        let pushes = self.pushes.range(known..);
        Pushes {
            epoch: Epoch(self.epoch),
            next,
            others: self.others(gateway),
            pushes: pushes
                .filter(|push| push.gateway != gateway)
                .cloned()
                .collect(),
        }
    }
}

/// Handles a gateway that listens: returns what others tell, and waits for it if it may.
pub(super) async fn poll(
    State(readers): State<Arc<Readers>>,
    request: Request,
) -> Result<Json<Pushes>, Failure> {
    let Query {
        gateway,
        since,
        wait,
        others,
    } = Query::parse(&request, &readers)?;
    let _place = readers.place(request.headers(), &readers.listening)?;
    let records = &readers.records;
    let deadline = Instant::now() + wait;
    let mut progress = records.progress.subscribe();
    let mut pushes = records.since(gateway, since);
    // Who gives no position begins here, and wants to know where that is.
    if since.is_none_or(|(epoch, _)| epoch != pushes.epoch) {
        return Ok(Json(pushes));
    }
    let others = others.unwrap_or(pushes.others);
    while pushes.pushes.is_empty() && pushes.others == others {
        tokio::select! {
            biased;
            () = readers.gate().reached(Phase::Stopping) => break,
            () = tokio::time::sleep_until(deadline) => break,
            _ = progress.changed() => {}
        }
        let place = Some((pushes.epoch, pushes.next));
        pushes = records.since(gateway, place);
    }
    Ok(Json(pushes))
}

/// Takes a gateway's push, within its key's rate, and keeps it for the others.
pub(super) async fn push(
    State(readers): State<Arc<Readers>>,
    request: Request,
) -> Result<Json<PushAnswer>, Failure> {
    if readers.seal().is_none() {
        body::discard(request).await;
        return Err(Failure::FeedKeyRequired);
    }
    let holder = readers.holder(request.headers())?;
    let bounds = body::Bounds {
        max_bytes: MAX_BODY_BYTES,
        time: BODY_TIME,
    };
    let body = body::read(request, bounds, Instant::now()).await?;
    if !readers.records.admit(holder, body.len()) {
        return Err(Failure::PushRate {
            limit: RATE_BYTES as u32,
            retry_after: SOON,
        });
    }
    let push: SealedPush = serde_json::from_slice(&body)
        .map_err(|error| Failure::invalid_body(format!("no push: {error}")))?;
    let opened = push.open(readers.seal());
    let opened = opened.map_err(|error| Failure::invalid("payload", error.to_string()))?;
    if let Some(at) = opened
        .updates
        .iter()
        .position(|update| PeerUpdate::decode_remote(update).is_err())
    {
        let message = format!("payload: update {at} is none of this version, or holds text");
        return Err(Failure::invalid("payload", message));
    }
    let others = readers.records.take(push);
    Ok(Json(PushAnswer { others }))
}

impl Query {
    fn parse(request: &Request, readers: &Readers) -> Result<Self, Failure> {
        readers.check_exposure()?;
        let (mut gateway, mut epoch, mut since, mut others) = (None, None, None, None);
        let mut wait = Duration::ZERO;
        let query = request.uri().query().unwrap_or_default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "gateway" => gateway = Some(super::http::read(name, value)?),
                "epoch" => epoch = Some(super::http::read(name, value)?),
                "since" => since = Some(super::http::number(name, value, u64::MAX)?),
                "wait_ms" => wait = super::http::wait(name, value)?,
                // It fits, since the limit does.
                "others" => {
                    others = Some(super::http::number(name, value, u32::MAX.into())? as u32);
                }
                _ => {
                    return Err(Failure::invalid(
                        clip(name),
                        "the parameters are gateway, epoch, since, others and wait_ms",
                    ));
                }
            }
        }
        let since = match (epoch, since) {
            (Some(epoch), Some(since)) => Some((epoch, since)),
            (None, None) => None,
            _ => return Err(Failure::invalid("since", super::http::BOTH_OR_NEITHER)),
        };
        let gateway = gateway.ok_or_else(|| {
            Failure::invalid(
                "gateway",
                "gateway is missing: an id of 16 hexadecimal digits",
            )
        })?;
        Ok(Self {
            gateway,
            since,
            wait,
            others,
        })
    }
}

/// Returns what a kept push counts for: its text, and what surrounds it.
fn weight(push: &SealedPush) -> usize {
    push.payload_bytes() + 128
}

/// Most bytes of a push's JSON: hexadecimal digits, and the frame.
const MAX_BODY_BYTES: u64 = 2 * MAX_PUSH_BYTES as u64 + 1_024;
/// Time for a push to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Bytes that the holder of a key may push in a second, on average: some ten thousand requests.
const RATE_BYTES: f64 = (8 << 20) as f64;
/// Seconds of that rate that may come at once.
const BURST_SECONDS: f64 = 2.0;
/// The least that a push counts for, so that empty ones are bounded too.
const LEAST_BYTES: usize = 512;
/// Most bytes of pushes that are kept: some two thousand requests, seconds of the largest fleet.
const KEPT_BYTES: usize = 1 << 20;
/// Most pushes that are kept.
const KEPT_PUSHES: usize = 4_096;
/// Most gateways that are known.
const MAX_LISTENERS: usize = 1_024;
/// Time for which a gateway counts as listening after it asked: a long poll, and a pause.
const LISTENING: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::feed::Push;

    fn push(gateway: u64, bytes: usize) -> SealedPush {
        let push = Push {
            gateway: GatewayId(gateway),
            number: 0,
            audience: 0,
            outstanding: 0,
            updates: vec![vec![0; bytes]],
        };
        push.sealed(None)
    }

    fn heard(pushes: &Pushes) -> Vec<u64> {
        let pushes = pushes.pushes.iter();
        pushes.map(|push| push.gateway.0).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_hears_what_others_told_since_and_never_itself() {
        let records = Records::new(1);
        let [one, two, three] = [1, 2, 3].map(GatewayId);
        records.take(push(2, 1));
        let start = records.since(one, None);
        assert_eq!((heard(&start), start.others), (vec![], 0));
        assert_eq!(records.since(two, None).others, 1);
        for gateway in [2, 1, 3] {
            records.take(push(gateway, 1));
        }
        let place = Some((start.epoch, start.next));
        let more = records.since(one, place);
        assert_eq!((heard(&more), more.others), (vec![2, 3], 1));
        assert_eq!(heard(&records.since(two, place)), [1, 3]);
        let place = Some((more.epoch, more.next));
        assert_eq!(heard(&records.since(one, place)), [] as [u64; 0]);
        // Of another life, or ahead of this one: from now on.
        let (epoch, next) = (Epoch(more.epoch.0 ^ 1), more.next);
        for place in [(epoch, 0), (more.epoch, next + 1)] {
            let anew = records.since(three, Some(place));
            assert_eq!((heard(&anew), anew.next), (vec![], next));
        }
        tokio::time::advance(LISTENING).await;
        assert_eq!(records.since(one, None).others, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_bounded_and_who_was_overtaken_goes_on_with_the_oldest() {
        let records = Records::new(1);
        let start = records.since(GatewayId(1), None);
        let place = Some((start.epoch, start.next));
        for _ in 0..100 {
            records.take(push(2, 30_000));
        }
        let most = KEPT_BYTES / 60_000;
        let kept = records.since(GatewayId(1), place);
        assert!((most - 1..=most).contains(&kept.pushes.len()));
        assert_eq!(kept.next, 100);
        for _ in 0..2 * KEPT_PUSHES {
            records.take(push(2, 0));
        }
        let kept = records.since(GatewayId(1), place);
        assert!(kept.pushes.len() <= KEPT_PUSHES);
        let bytes: usize = kept.pushes.iter().map(weight).sum();
        assert_eq!(records.lock().bytes, bytes);
        assert!(bytes <= KEPT_BYTES);
        for gateway in 0..2 * MAX_LISTENERS as u64 {
            records.since(GatewayId(gateway), None);
        }
        assert_eq!(records.lock().listeners.len(), MAX_LISTENERS);
    }

    #[tokio::test(start_paused = true)]
    async fn each_key_has_a_budget_of_bytes_that_time_fills_again() {
        let records = Records::new(2);
        let burst = (RATE_BYTES * BURST_SECONDS) as usize;
        assert!(records.admit(0, burst));
        assert!(!records.admit(0, 1));
        assert!(records.admit(1, burst), "another key's is its own");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(records.admit(0, RATE_BYTES as usize));
        assert!(!records.admit(0, 0), "an empty one counts too");
        assert!(!records.admit(2, 1), "nobody's");
    }
}
