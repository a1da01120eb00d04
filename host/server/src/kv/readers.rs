//! The access rules of the feed, and its limits on simultaneous readers.

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

/// The feed's access rules, readers and stored pushes.
pub struct Readers {
    pub(super) access: Access,
    pub(super) gate: Arc<Gate>,
    /// Permits to read the feed, for each key; one semaphore if no key is required.
    pub(super) places: Vec<Arc<Semaphore>>,
    /// Permits to wait for other gateways' pushes, for each key; one semaphore if no key is required.
    pub(super) listening: Vec<Arc<Semaphore>>,
    /// The last pushes of gateways.
    pub(super) records: Records,
    pub(super) source: OnceLock<Source>,
}

/// The access rules of the feed: the readers' keys, and the feed's own key.
#[derive(Clone, Default)]
pub struct Access {
    /// Accepted keys; `None` if no key is required.
    pub(super) keys: Option<ApiKeys>,
    /// Key that seals the feed; `None` for an unsealed feed.
    pub(super) seal: Option<FeedKey>,
    /// True if the feed's listener is bound to an address other than loopback.
    is_exposed: bool,
}

impl Access {
    /// Returns the rules for a feed at `address`, sealed with `seal`. Accepts `keys` and the token derived from `seal`.
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

    /// Logs how the feed is protected.
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

    /// Returns the maximum number of simultaneous readers with one key.
    fn places(&self) -> u32 {
        (MAX_READERS_IN_ALL / self.pools()).clamp(1, MAX_READERS)
    }

    /// Returns the maximum number of simultaneous readers with all keys.
    pub fn readers(&self) -> u32 {
        self.places().saturating_mul(self.pools())
    }
}

/// The feed to serve, and the model that it reports.
pub struct Source {
    /// The feed of the cache's events.
    pub feed: Arc<Feed>,
    /// Name of the model, as in batches.
    pub model: String,
}

/// Maximum number of simultaneous readers with one key, if there are few keys.
pub const MAX_READERS: u32 = 64;
/// Maximum number of simultaneous readers with all keys, divided equally among the keys; but each key may have one
/// reader.
const MAX_READERS_IN_ALL: u32 = 1024;

impl Readers {
    /// Returns readers that get 503 until [`Readers::open`]. Waiting ones return when `gate` is stopping.
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

    /// Serves `source` from now on; a second one is ignored.
    pub fn open(&self, source: Source) {
        let _ = self.source.set(source);
    }

    /// Returns whether there is a feed to read.
    pub fn is_open(&self) -> bool {
        self.source.get().is_some()
    }

    /// Returns the key that seals the feed; `None` for an unsealed feed.
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

    /// Returns the number of the request's key; 0 if no key is required.
    pub(super) fn holder(&self, headers: &HeaderMap) -> Result<usize, Failure> {
        let holder = self.access.keys.as_ref();
        // A request without a key was already refused.
        let holder = holder.map_or(Some(0), |keys| keys.holder(headers));
        holder.ok_or(Failure::Unauthorized)
    }

    /// Takes a permit of the request's key from `places`, or fails with 429 if there is none.
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

    /// Returns the number of requests that are reading the feed.
    pub fn reading(&self) -> u32 {
        self.taken(&self.places)
    }

    /// Returns the number of gateways that are waiting for pushes.
    pub fn listening(&self) -> u32 {
        self.taken(&self.listening)
    }

    fn taken(&self, places: &[Arc<Semaphore>]) -> u32 {
        let free = places.iter().map(|places| places.available_permits());
        self.access.readers() - free.sum::<usize>() as u32
    }
}
