//! `GET /v1/kv/events` and `GET /v1/kv/snapshot`: the documents that the engine's cache holds.
//!
//! | parameter | default | meaning |
//! | --- | --- | --- |
//! | `since`, `epoch` | absent: all that is held | `next` and `epoch` of the last batch read; together or not at all |
//! | `wait_ms` | 0 | how long to wait for something to happen, at most 60,000 |
//! | `limit` | 1,024 | events looked at for one batch, 1 to 4,096 |
//! | `tenant` | absent: everybody's | a tenant's key, sealed where the feed is |
//!
//! With `accept: text/event-stream` the events come as server-sent events, one batch each, with the id `EPOCH-NEXT`; a
//! reader that returns with `last-event-id` resumes there. The batches are [`foreword_ordering::feed`]'s. A batch with
//! `reset` holds everything, whatever `limit` says.
//!
//! Between a host and gateways that share a key, batches are sealed ([`foreword_ordering::feed::FeedKey`]), and
//! `tenant` is sealed too. From a feed without a key, anyone who has a document can tell that the engine holds it. So
//! it is served on loopback alone and refused with 403 on any other address.
//!
//! Readers are known by their keys, and each key has places of its own: no reader takes another key's. With a feed
//! key, the accepted keys are the token that gateways derive from it and the keys of `--kv-key-file`; a reader without
//! any gets 401.
//!
//! Gateways that read the feed tell each other what they send through `/v1/kv/records`, under the same keys, and only where
//! the feed has a key.
//!
//! A reader gets what there is when it asks, and holds nothing of the engine meanwhile. A slow reader falls behind and
//! is then told to begin anew.

use super::records::{self, Records};
use super::wire;
use crate::api::refusals;
use crate::failure::{Failure, SOON, clip};
use crate::gate::{Gate, Phase};
use crate::keys::ApiKeys;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use foreword_engine::engine::feed::{Feed, Position};
use foreword_ordering::feed::{Batch, Epoch, FeedKey, SealedTenant, TenantKey, Wire};
use futures_util::stream;
use std::convert::Infallible;
use std::fmt::Display;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

const MAX_WAIT: Duration = Duration::from_secs(60);
const MAX_LIMIT: u64 = 4096;
const DEFAULT_LIMIT: usize = 1024;

/// The readers of the feed, and their access.
pub struct Readers {
    access: Access,
    gate: Arc<Gate>,
    /// Places by key; if no key is required, those of everybody.
    places: Vec<Arc<Semaphore>>,
    /// The same for gateways that listen to each other.
    pub(super) listening: Vec<Arc<Semaphore>>,
    /// What gateways tell each other.
    pub(super) records: Records,
    source: OnceLock<Source>,
}

/// The access to the feed: its readers' keys, and its seal.
#[derive(Clone, Default)]
pub struct Access {
    /// Accepted keys; `None`: no key is required.
    keys: Option<ApiKeys>,
    /// Key that seals the feed.
    seal: Option<FeedKey>,
    /// Whether other machines can reach the feed.
    is_exposed: bool,
}

impl Access {
    /// Returns the access for a listener at `address`: a feed sealed with `seal`, for readers with one of `keys`.
    pub fn new(keys: Option<ApiKeys>, seal: Option<FeedKey>, address: Option<SocketAddr>) -> Self {
        let keys = match (&seal, keys) {
            // Every holder of the feed's key has this token.
            (Some(seal), Some(keys)) => Some(keys.and(seal.token())),
            (Some(seal), None) => Some(ApiKeys::of([seal.token().as_bytes()])),
            (None, keys) => keys,
        };
        Self {
            keys,
            seal,
            is_exposed: address.is_some_and(|address| !address.ip().is_loopback()),
        }
    }

    /// Logs one line with what the operator should know of the feed.
    pub fn log(&self) {
        match (&self.seal, self.is_exposed) {
            (Some(_), _) => tracing::info!("the KV feed is sealed with a key"),
            (None, false) => tracing::warn!(
                "the KV feed has no key (--feed-key-file): it is served on loopback, and whoever reads it there can tell which documents are held"
            ),
            (None, true) => tracing::warn!(
                "the KV feed is refused: it has no key (--feed-key-file), and the internal listener is not on loopback"
            ),
        }
    }

    fn pools(&self) -> u32 {
        let keys = self.keys.as_ref().map_or(1, ApiKeys::count);
        u32::try_from(keys).unwrap_or(u32::MAX).max(1)
    }

    /// Returns the number of places of one key.
    fn places(&self) -> u32 {
        (MAX_READERS_IN_ALL / self.pools()).clamp(1, MAX_READERS)
    }

    /// Returns the number of places of all keys.
    pub fn readers(&self) -> u32 {
        self.places().saturating_mul(self.pools())
    }
}

/// The feed that is served.
pub struct Source {
    /// The feed of the cache's events.
    pub feed: Arc<Feed>,
    /// Name of the model.
    pub model: String,
}

/// Most readers of one key at once, as long as there are few keys.
pub const MAX_READERS: u32 = 64;
/// Most readers of all keys at once.
const MAX_READERS_IN_ALL: u32 = 1024;

impl Readers {
    /// Returns readers that can read nothing until [`Readers::open`]; `gate` ends their reading.
    pub fn new(access: Access, gate: Arc<Gate>) -> Arc<Self> {
        let each = access.places() as usize;
        let places = || (0..access.pools()).map(|_| Arc::new(Semaphore::new(each)));
        Arc::new(Self {
            places: places().collect(),
            listening: places().collect(),
            records: Records::new(access.pools() as usize),
            access,
            gate,
            source: OnceLock::new(),
        })
    }

    /// Serves this feed from now on; a second one is dropped.
    pub fn open(&self, source: Source) {
        let _ = self.source.set(source);
    }

    /// Returns whether there is a feed to read.
    pub fn is_open(&self) -> bool {
        self.source.get().is_some()
    }

    /// Returns the gate, which ends all waiting.
    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns the key that seals the feed.
    pub(super) fn seal(&self) -> Option<&FeedKey> {
        self.access.seal.as_ref()
    }

    /// Fails where the feed would tell anyone what there is.
    pub(super) fn check_exposure(&self) -> Result<(), Failure> {
        if self.access.seal.is_none() && self.access.is_exposed {
            return Err(Failure::FeedKeyRequired);
        }
        Ok(())
    }

    /// Returns the number of the key that came with a request; 0 where none is required.
    pub(super) fn holder(&self, headers: &HeaderMap) -> Result<usize, Failure> {
        let holder = self.access.keys.as_ref();
        // A request without a key was refused before.
        let holder = holder.map_or(Some(0), |keys| keys.holder(headers));
        holder.ok_or(Failure::Unauthorized)
    }

    /// Takes one of the key's places.
    pub(super) fn place(
        &self,
        headers: &HeaderMap,
        places: &[Arc<Semaphore>],
    ) -> Result<OwnedSemaphorePermit, Failure> {
        let places = places.get(self.holder(headers)?);
        let place = Arc::clone(places.ok_or(Failure::Unauthorized)?).try_acquire_owned();
        place.map_err(|_| Failure::QueueFull {
            limit: self.access.places(),
            retry_after: SOON,
        })
    }

    /// Returns the number of readers now.
    pub fn reading(&self) -> u32 {
        self.taken(&self.places)
    }

    /// Returns the number of gateways that listen to each other now.
    pub fn listening(&self) -> u32 {
        self.taken(&self.listening)
    }

    fn taken(&self, places: &[Arc<Semaphore>]) -> u32 {
        let free = places.iter().map(|places| places.available_permits());
        self.access.readers() - free.sum::<usize>() as u32
    }
}

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

/// The parameters of a request, checked.
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
        let query = request.uri().query().unwrap_or_default();
        let mut since = None;
        let mut epoch: Option<Epoch> = None;
        let mut parsed = Self {
            since: None,
            wait: Duration::ZERO,
            limit: DEFAULT_LIMIT,
            tenant: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "since" => since = Some(number(name, value, u64::MAX)?),
                "epoch" => epoch = Some(read(name, value)?),
                "wait_ms" => parsed.wait = wait(name, value)?,
                "limit" => {
                    // This fits, since the limit does.
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
        parsed.since = match (epoch, since) {
            (Some(epoch), Some(since)) => Some(wire::position(epoch, since)),
            (None, None) => None,
            _ => return Err(Failure::invalid("since", BOTH_OR_NEITHER)),
        };
        Ok(parsed)
    }
}

pub(super) const BOTH_OR_NEITHER: &str =
    "since means something within an epoch only: give both, or neither";

/// Reads how long a request may wait.
pub(super) fn wait(name: &str, value: &str) -> Result<Duration, Failure> {
    let limit = u64::try_from(MAX_WAIT.as_millis()).unwrap_or(u64::MAX);
    Ok(Duration::from_millis(number(name, value, limit)?))
}

pub(super) fn number(name: &str, value: &str, limit: u64) -> Result<u64, Failure> {
    match value.parse() {
        Ok(number) if number <= limit => Ok(number),
        _ => Err(Failure::invalid(
            name,
            format!(
                "{name} must be a whole number up to {limit}, got {:?}",
                clip(value)
            ),
        )),
    }
}

pub(super) fn read<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, Failure> {
    value
        .parse()
        .map_err(|error| Failure::invalid(name, format!("{name}: {error}, got {:?}", clip(value))))
}

/// Returns the position in the id of an event.
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

/// One reader, with its position in the feed.
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

    /// Returns what happened since the last batch; if nothing did, waits until something does, up to the deadline or
    /// the server's end.
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
            // Other tenants' events, which were skipped, lie between the reader's position and these.
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

    /// Returns the batch in this reader's form.
    fn wire(&self, batch: &Batch) -> Wire {
        batch.wire(self.readers.access.seal.as_ref())
    }

    /// Streams batch after batch, with an empty one now and then, until the server stops.
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
