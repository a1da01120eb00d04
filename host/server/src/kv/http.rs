//! `GET /v1/kv/events` and `GET /v1/kv/snapshot`: the documents in the engine's cache.
//!
//! | parameter | default | meaning |
//! | --- | --- | --- |
//! | `since`, `epoch` | absent: a snapshot | `next` and `epoch` of the last batch read; together or not at all |
//! | `wait_ms` | 0 | how long to wait for an event, at most 60,000 |
//! | `limit` | 1,024 | most events read for one batch, 1 to 4,096 |
//! | `tenant` | absent: all tenants | a tenant's key, sealed if the feed is |
//!
//! With `accept: text/event-stream` the events are sent as server-sent events, one batch each, with the id `EPOCH-NEXT`; a
//! reader that returns with `last-event-id` resumes there. The batches are those of [`foreword_ordering::feed`]. A batch
//! with `reset` is a full snapshot, whatever `limit` says.
//!
//! Between a host and gateways that share a key, batches are sealed ([`foreword_ordering::feed::FeedKey`]), and `tenant` is
//! sealed too. From a feed without a key, anyone who has a document can learn that the engine holds it. So such a feed is
//! served only on loopback and refused with 403 on any other address.
//!
//! Readers are identified by their keys, and each key has its own places: no reader takes another key's. With a feed key,
//! the accepted keys are the token that gateways derive from it and the keys of `--kv-key-file`; a reader without any gets
//! 401.
//!
//! Gateways that read the feed exchange updates through `/v1/kv/records`, with the same keys, and only if the feed has a
//! key.
//!
//! A reader receives the current events on request and holds no part of the engine meanwhile. A slow reader falls behind
//! and must then start with a snapshot.

pub use super::readers::{Access, MAX_READERS, Readers, Source};

use super::query::{self, MAX_WAIT, number, read, wait};
use super::{records, wire};
use crate::api::refusals;
use crate::failure::Failure;
use crate::gate::Phase;
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

/// Returns the routes.
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

/// A request's parameters, validated.
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
                "since" => since = Some(number(name, value, u64::MAX)?),
                "epoch" => epoch = Some(read(name, value)?),
                "wait_ms" => parsed.wait = wait(name, value)?,
                "limit" => {
                    // Fits, since the limit fits.
                    parsed.limit = number(name, value, MAX_LIMIT)?.max(1) as usize;
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

/// Parses the position in an event's id.
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

/// A reader with its position in the feed.
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

    /// Returns the events since the last batch; if there are none, waits for one until the deadline or the server's end.
    async fn next(&mut self, deadline: Instant) -> Result<Batch, Failure> {
        let Source { feed, model } = self.readers.source.get().ok_or(Failure::Loading)?;
        let mut progress = feed.watch();
        let mut from = None;
        loop {
            progress.mark_unchanged();
            let news = feed.documents_since(self.since, self.limit);
            let mut batch = wire::batch(&news, model, self.tenant);
            self.since = Some(wire::position(batch.epoch, batch.next));
            if batch.reset {
                return Ok(batch);
            }
            // `from` is the reader's position, so that skipped events of other tenants are included.
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

    /// Returns the batch in sealed or unsealed form.
    fn wire(&self, batch: &Batch) -> Wire {
        batch.wire(self.readers.access.seal.as_ref())
    }

    /// Streams batches, with an empty one when there are no events for a while, until the server stops.
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
