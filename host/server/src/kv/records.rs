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
//! Access is the feed's ([`super::readers`]): its keys, its seal, loopback alone without one. A push needs the feed's key
//! everywhere: without one it is refused, and so is one that the key does not open. So a reader with another accepted key
//! can listen to what it cannot read, and tell nothing. Of what the key opens, each update must be one of
//! [`PeerUpdate`]'s that holds no text. Pushes are bounded in bytes, number and rate for each key; what is kept is bounded
//! for all.
//!
//! A gateway that was overtaken goes on with the oldest push that is kept; one that is new, or comes to a new life of the
//! server, with the next one. The server does not report what a gateway missed: the feed corrects it.

use super::pushes::RATE_BYTES;
use super::query::{BOTH_OR_NEITHER, number, read, wait};
use super::readers::Readers;
use crate::api::body;
use crate::failure::{Failure, SOON, clip};
use crate::gate::Phase;
use axum::Json;
use axum::extract::{Request, State};
use foreword_ordering::PeerUpdate;
use foreword_ordering::feed::{Epoch, GatewayId, MAX_PUSH_BYTES, Pushes, SealedPush};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

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
            () = readers.gate.reached(Phase::Stopping) => break,
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
        let mut waits = Duration::ZERO;
        let query = request.uri().query().unwrap_or_default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "gateway" => gateway = Some(read(name, value)?),
                "epoch" => epoch = Some(read(name, value)?),
                "since" => since = Some(number(name, value, u64::MAX)?),
                "wait_ms" => waits = wait(name, value)?,
                // It fits, since the limit does.
                "others" => {
                    others = Some(number(name, value, u32::MAX.into())? as u32);
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
            _ => return Err(Failure::invalid("since", BOTH_OR_NEITHER)),
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
            wait: waits,
            others,
        })
    }
}

/// Most bytes of a push's JSON: hexadecimal digits, and the frame.
const MAX_BODY_BYTES: u64 = 2 * MAX_PUSH_BYTES as u64 + 1_024;
/// Time for a push to arrive.
const BODY_TIME: Duration = Duration::from_secs(10);
