//! `GET` and `POST /v1/kv/records`: gateways of one engine exchange updates.
//!
//! | request | meaning |
//! | --- | --- |
//! | `POST` | stores a gateway's [`SealedPush`], JSON; the response has the number of other gateways that listen |
//! | `GET ?gateway=ID` | returns other gateways' [`Pushes`] since `epoch` and `since`; without these, the position |
//! | `… &wait_ms=N` | longest wait for a push, at most 60,000; default 0 |
//! | `… &others=N` | returns at once if the number of other listeners is not `N` |
//!
//! The feed reports documents only when they are computed. Until then, other gateways do not know that a request with
//! them was sent, nor how many tokens wait. So gateways tell each other through the feed's server, whose address all
//! have. It stores the last pushes in memory and returns them unchanged.
//!
//! Access is as for the feed ([`super::readers`]), and a push also needs the feed's key: it is refused if there is none
//! or if the key does not open the push. So a reader with another accepted key can receive pushes that it cannot read,
//! and send none. Each update in a push must be a [`PeerUpdate`] of a kind that holds no text. Pushes are limited in
//! bytes, number and rate for each key; the store has a common limit.
//!
//! A gateway that fell behind continues with the oldest stored push; one without a position, or with another epoch's,
//! with the next push. Missed pushes are not reported: the feed corrects the state.

use super::pushes::RATE_BYTES;
use super::query::{self, number, read, wait};
use super::readers::Readers;
use crate::failure::{Failure, SOON, clip};
use crate::gate::Phase;
use crate::http::body;
use axum::Json;
use axum::extract::{Request, State};
use foreword_ordering::PeerUpdate;
use foreword_ordering::feed::{Epoch, GatewayId, MAX_PUSH_BYTES, Pushes, SealedPush};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The response to a gateway's push of updates.
#[derive(Serialize)]
pub(super) struct PushAnswer {
    /// Number of other gateways that listen for pushes.
    others: u32,
}

/// The validated query of a `GET` by which a gateway asks for the updates that other gateways have pushed to this
/// server.
struct Query {
    gateway: GatewayId,
    since: Option<(Epoch, u64)>,
    wait: Duration,
    others: Option<u32>,
}

/// Returns other gateways' pushes. If there are none, waits for one, as long as the query says.
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
    // Without a valid position the response is immediate, since the gateway needs its position first.
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

/// Checks a gateway's push and the rate of its API key, and stores the push for other gateways.
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
        for (name, value) in query::pairs(request.uri().query()) {
            match name {
                "gateway" => gateway = Some(read(name, value)?),
                "epoch" => epoch = Some(read(name, value)?),
                "since" => since = Some(number(name, value, 0..=u64::MAX)?),
                "wait_ms" => waits = wait(name, value)?,
                // Fits, since the limit does.
                "others" => {
                    others = Some(number(name, value, 0..=u32::MAX.into())? as u32);
                }
                _ => {
                    return Err(Failure::invalid(
                        clip(name),
                        "the parameters are gateway, epoch, since, others and wait_ms",
                    ));
                }
            }
        }
        let since = query::position(epoch, since)?;
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

/// Maximum length in bytes of the body of a push: the payload in hexadecimal digits, and the other fields.
const MAX_BODY_BYTES: u64 = 2 * MAX_PUSH_BYTES as u64 + 1_024;
/// Time limit for receiving the body of a push.
const BODY_TIME: Duration = Duration::from_secs(10);
