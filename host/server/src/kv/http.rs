//! `GET /v1/kv/events` and `/v1/kv/snapshot`: the feed of the documents in the engine's cache, as JSON.
//!
//! | parameter | default | meaning |
//! | --- | --- | --- |
//! | `since`, `epoch` | absent: a snapshot | `next` and `epoch` of the last batch received; both or neither |
//! | `wait_ms` | 0 | longest wait for an event, at most 60,000 |
//! | `limit` | 1,024 | maximum number of cache events read for one batch, 1 to 4,096 |
//! | `tenant` | absent: all tenants | a tenant's key, sealed if the feed has a key |
//!
//! With `accept: text/event-stream` the response is a stream of server-sent events, each a batch with the id
//! `EPOCH-NEXT`; `last-event-id` resumes there. Batches have the format of [`foreword_ordering::feed`]. A batch with
//! `reset` is a full snapshot, whatever `limit` says. Other batches end at about 1 MiB, and a snapshot omits what
//! exceeds about 3 MiB, since gateways refuse bodies of more than 4 MiB.
//!
//! With a feed key, hashes in batches are sealed, that is, encrypted ([`foreword_ordering::feed::FeedKey`]), and so is
//! `tenant`. Without one, anyone who has a document can learn whether the engine holds it, so the feed is then served
//! on loopback only and refused with 403 elsewhere.
//!
//! Readers are identified by their keys, and each key has a limit of simultaneous readers of its own. With a feed key,
//! the accepted keys are the token that gateways derive from it and the keys of `--kv-key-file`; others get 401.
//!
//! Gateways exchange updates through `/v1/kv/records`, with the same keys, and only if the feed has a key.
//!
//! A reader copies the current events on request and blocks no part of the engine. A reader that falls too far behind
//! gets a snapshot.

pub use super::readers::{Access, MAX_READERS, Readers, Source};

use super::query::{self, MAX_WAIT, number, read, wait};
use super::{records, wire};
use crate::failure::Failure;
use crate::gate::Phase;
use crate::http::refusals;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use foreword_engine::engine::feed::Position;
use foreword_ordering::feed::{Batch, Epoch, SealedTenant, TenantKey, Wire};
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

const MAX_LIMIT: u64 = 4096;
const DEFAULT_LIMIT: usize = 1024;

/// Returns the routes under `/v1/kv`, for reading the feed and for pushes between gateways.
pub fn router(readers: Arc<Readers>) -> Router {
    Router::new()
        .route("/v1/kv/events", get(events))
        .route("/v1/kv/snapshot", get(snapshot))
        .route("/v1/kv/records", get(records::poll).post(records::push))
        .route_layer(from_fn_with_state(
            readers.access.keys.clone(),
            refusals::authorize,
        ))
        .with_state(readers)
}

async fn events(
    State(readers): State<Arc<Readers>>,
    request: Request,
) -> Result<Response, Failure> {
    let query = Query::parse(&request, &readers)?;
    let mut reader = Reader::new(readers, request.headers(), &query)?;
    if wants_stream(request.headers()) {
        if let Some(id) = request.headers().get("last-event-id") {
            reader.since = id.to_str().ok().and_then(position_of);
        }
        return Ok(reader.stream());
    }
    let deadline = Instant::now() + query.wait;
    let batch = reader.next(deadline).await?;
    Ok(Json(reader.wire(&batch)).into_response())
}

async fn snapshot(
    State(readers): State<Arc<Readers>>,
    request: Request,
) -> Result<Json<Wire>, Failure> {
    let query = Query {
        since: None,
        ..Query::parse(&request, &readers)?
    };
    let mut reader = Reader::new(readers, request.headers(), &query)?;
    let batch = reader.next(Instant::now()).await?;
    Ok(Json(reader.wire(&batch)))
}

/// The validated parameters of a request that reads the feed.
#[derive(Debug)]
struct Query {
    since: Option<Position>,
    wait: Duration,
    limit: usize,
    tenant: Option<TenantKey>,
}

impl Query {
    fn parse(request: &Request, readers: &Readers) -> Result<Self, Failure> {
        readers.check_exposure()?;
        let access = &readers.access;
        let mut since = None;
        let mut epoch: Option<Epoch> = None;
        let mut parsed = Self {
            since: None,
            wait: Duration::ZERO,
            limit: DEFAULT_LIMIT,
            tenant: None,
        };
        for (name, value) in query::pairs(request.uri().query()) {
            match name {
                "since" => since = Some(number(name, value, 0..=u64::MAX)?),
                "epoch" => epoch = Some(read(name, value)?),
                "wait_ms" => parsed.wait = wait(name, value)?,
                "limit" => {
                    // Fits, since `MAX_LIMIT` does.
                    parsed.limit = number(name, value, 1..=MAX_LIMIT)? as usize;
                }
                "tenant" => {
                    parsed.tenant = Some(match &access.seal {
                        None => read(name, value)?,
                        Some(seal) => {
                            let sealed: SealedTenant = read(name, value)?;
                            seal.open_tenant(sealed).ok_or_else(|| {
                                Failure::invalid(name, "tenant: sealed with another key")
                            })?
                        }
                    });
                }
                _ => {}
            }
        }
        let position = query::position(epoch, since)?;
        parsed.since = position.map(|(epoch, since)| wire::position(epoch, since));
        Ok(parsed)
    }
}

/// Parses the id `EPOCH-NEXT` of a server-sent event into a position in the feed; `None` if it is malformed.
fn position_of(id: &str) -> Option<Position> {
    let (epoch, next) = id.split_once('-')?;
    Some(wire::position(epoch.parse().ok()?, next.parse().ok()?))
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    accept
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/event-stream"))
}

/// A request that reads the feed, with its position there and one of its API key's permits to read.
struct Reader {
    readers: Arc<Readers>,
    since: Option<Position>,
    limit: usize,
    tenant: Option<TenantKey>,
    _place: OwnedSemaphorePermit,
}

impl Reader {
    fn new(readers: Arc<Readers>, headers: &HeaderMap, query: &Query) -> Result<Self, Failure> {
        if readers.source.get().is_none() {
            return Err(Failure::Loading);
        }
        let place = readers.place(headers, &readers.places)?;
        Ok(Self {
            readers,
            since: query.since,
            limit: query.limit,
            tenant: query.tenant,
            _place: place,
        })
    }

    /// Returns the cache events since the last batch of them that this reader received. If there are none, waits for
    /// one until `deadline` or until the server stops, and then returns an empty batch.
    async fn next(&mut self, deadline: Instant) -> Result<Batch, Failure> {
        let Source { feed, model } = self.readers.source.get().ok_or(Failure::Loading)?;
        let mut progress = feed.watch();
        let mut from = None;
        loop {
            progress.mark_unchanged();
            let news = feed.documents_since(self.since, self.limit);
            let mut batch = wire::bounded_batch(&news, model, self.tenant);
            self.since = Some(wire::position(batch.epoch, batch.next));
            if batch.reset {
                return Ok(batch);
            }
            // `from` stays the reader's own position although events of other tenants were skipped.
            batch.from = *from.get_or_insert(batch.from);
            if !batch.events.is_empty() {
                return Ok(batch);
            }
            if progress.borrow().documents > batch.next {
                continue;
            }
            tokio::select! {
                biased;
                () = self.readers.gate.reached(Phase::Stopping) => return Ok(batch),
                () = tokio::time::sleep_until(deadline) => return Ok(batch),
                _ = progress.changed() => {}
            }
        }
    }

    /// Returns a batch of cache events in the form in which it is sent: sealed (encrypted) if the feed has a key.
    fn wire(&self, batch: &Batch) -> Wire {
        batch.wire(self.readers.access.seal.as_ref())
    }

    /// Returns a response that streams batches of events until the server stops. After a minute without events, it
    /// sends an empty batch.
    fn stream(self) -> Response {
        let batches = stream::unfold(self, |mut reader| async {
            if reader.readers.gate.phase() >= Phase::Stopping {
                return None;
            }
            let batch = reader.next(Instant::now() + MAX_WAIT).await.ok()?;
            let id = format!("{}-{}", batch.epoch, batch.next);
            let event = Event::default()
                .id(id)
                .json_data(reader.wire(&batch))
                .ok()?;
            Some((Ok::<_, Infallible>(event), reader))
        });
        Sse::new(batches)
            .keep_alive(KeepAlive::default())
            .into_response()
    }
}
