//! Who may read the feed of the engine's cache events, and how many at once.

use super::pushes::Records;
use crate::failure::{Failure, SOON};
use crate::gate::Gate;
use crate::keys::ApiKeys;
use axum::http::HeaderMap;
use foreword_engine::engine::feed::Feed;
use foreword_ordering::feed::FeedKey;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The feed of the engine's cache events with its access rules, the limits on simultaneous readers, and the stored
/// pushes of gateways.
pub struct Readers {
    pub(super) access: Access,
    pub(super) gate: Arc<Gate>,
    /// For each API key, permits to read the feed of cache events; a single semaphore if no key is required.
    pub(super) places: Vec<Arc<Semaphore>>,
    /// For each API key, permits to wait for other gateways' pushes; a single semaphore if no key is required.
    pub(super) listening: Vec<Arc<Semaphore>>,
    /// The stored pushes of updates between gateways.
    pub(super) records: Records,
    pub(super) source: OnceLock<Source>,
}

/// The access rules of the feed of cache events: the readers' API keys, and the key that encrypts the feed.
#[derive(Clone, Default)]
pub struct Access {
    /// API keys with which the feed of cache events may be read; `None` if no key is required.
    pub(super) keys: Option<ApiKeys>,
    /// Key that seals (encrypts) the hashes in the feed; `None` for an unsealed feed.
    pub(super) seal: Option<FeedKey>,
    /// True if the listener that serves the feed of cache events is bound to an address other than loopback.
    is_exposed: bool,
}

impl Access {
    /// Returns the access rules for a feed of cache events that is served at `address` (`None`: nowhere) and sealed
    /// (encrypted) with `seal`. Accepts `keys` and the token derived from `seal`.
    pub fn new(keys: Option<ApiKeys>, seal: Option<FeedKey>, address: Option<SocketAddr>) -> Self {
        let keys = match (&seal, keys) {
            // A client that has the feed's key can derive this token.
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

    /// Logs how the feed of cache events is protected: by a key, by its address, or not at all.
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

    /// Returns the maximum number of requests with one API key that read the feed at the same time.
    fn places(&self) -> u32 {
        (MAX_READERS_IN_ALL / self.pools()).clamp(1, MAX_READERS)
    }

    /// Returns the maximum number of requests, with all API keys together, that read the feed of cache events at the
    /// same time.
    pub fn readers(&self) -> u32 {
        self.places().saturating_mul(self.pools())
    }
}

/// The engine's feed of cache events, and the model to which they belong.
pub struct Source {
    /// The engine's feed of cache events.
    pub feed: Arc<Feed>,
    /// Name of the model, which is sent with each batch of cache events.
    pub model: String,
}

/// Maximum number of requests with one API key that read the feed of cache events at the same time, if there are few
/// keys; with many it is lower.
pub const MAX_READERS: u32 = 64;
/// Maximum number of requests with all API keys together that read the feed of cache events at the same time. It is
/// divided equally among the keys, but each key may have one.
const MAX_READERS_IN_ALL: u32 = 1024;

impl Readers {
    /// Returns the access to a feed that is not available yet: readers get 503 until [`Readers::open`]. When `gate` is
    /// stopping, waiting readers get their responses.
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

    /// Makes the feed of cache events in `source` available from now on; a second one is ignored.
    pub fn open(&self, source: Source) {
        let _ = self.source.set(source);
    }

    /// Returns whether the feed of cache events is available.
    pub fn is_open(&self) -> bool {
        self.source.get().is_some()
    }

    /// Returns the key that seals (encrypts) the hashes in the feed of cache events; `None` for an unsealed feed.
    pub(super) fn seal(&self) -> Option<&FeedKey> {
        self.access.seal.as_ref()
    }

    /// Returns [`Failure::FeedKeyRequired`] if the feed has no key and its listener is not on loopback.
    pub(super) fn check_exposure(&self) -> Result<(), Failure> {
        if self.access.seal.is_none() && self.access.is_exposed {
            return Err(Failure::FeedKeyRequired);
        }
        Ok(())
    }

    /// Returns the number of the API key in the request's headers; 0 if no key is required. Returns an error if there
    /// is no accepted key.
    pub(super) fn holder(&self, headers: &HeaderMap) -> Result<usize, Failure> {
        let holder = self.access.keys.as_ref();
        // A request without a key was already refused.
        let holder = holder.map_or(Some(0), |keys| keys.holder(headers));
        holder.ok_or(Failure::Unauthorized)
    }

    /// Takes one of the permits in `places` that the request's API key has, or fails with 429 if all are taken.
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

    /// Returns the number of requests that are reading the feed of cache events now.
    pub fn reading(&self) -> u32 {
        self.taken(&self.places)
    }

    /// Returns the number of gateways that are waiting for other gateways' updates now.
    pub fn listening(&self) -> u32 {
        self.taken(&self.listening)
    }

    fn taken(&self, places: &[Arc<Semaphore>]) -> u32 {
        let free = places.iter().map(|places| places.available_permits());
        self.access.readers() - free.sum::<usize>() as u32
    }
}
