//! Batches of requests that run while no other request waits: OpenAI's `/v1/files` and `/v1/batches`.
//!
//! ```text
//!   POST /v1/files ──▶ store: a folder, bounded ──▶ POST /v1/batches ──▶ run: validate ─▶ ask ─▶ output, errors
//!                        ▲                                                     │
//!                        │ records, one JSON each, and lines of answers        │ one request after another, in the
//!                        └─────────────────────────────────────────────────────┘ plan's order, through the API's own
//!                                                                                admission, while no request waits
//! ```
//!
//! All state is in the folder, so an unfinished batch continues after a restart without repeating answered requests.
//! Files and batches belong to an API key; other keys cannot see them.

mod ask;
mod metrics;
mod run;
mod store;

pub use store::{
    BatchRecord, Bounds, FileRecord, RequestCounts, Status, Store, StoreNumbers, Upload, WINDOW,
    WINDOW_SECONDS,
};

pub use crate::ids::now;
pub(crate) use ask::{Ask, Asking};

use crate::keys::ApiKeys;
use foreword_ordering::RawConfig;
use foreword_simulation::{BatchConfigError, BatchOrder, BatchOrderer};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The configuration of batches.
#[derive(Clone, Debug)]
pub struct Config {
    /// Folder in which files and batches are stored; one server at a time may use it.
    pub folder: PathBuf,
    /// Limits on files and batches, and their lifetime.
    pub bounds: Bounds,
    /// Maximum number of requests in flight, of all batches together.
    pub concurrency: u16,
    /// The rule by which the requests of a batch are ordered, and the documents in them.
    pub order: BatchOrder,
    /// The gateway's ordering configuration, by which documents in the requests are ordered.
    pub ordering: RawConfig,
}

/// The server's settings that batches need.
pub struct Access {
    /// The API keys, each of which owns its files and batches; `None` if no keys are configured.
    pub keys: Option<ApiKeys>,
    /// Maximum length of a request's body, in bytes.
    pub max_body_bytes: u64,
}

/// The batches of a server: their store, and the tasks that run them.
pub struct Batches {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

/// The state that all running batches share.
struct Shared {
    store: Arc<Store>,
    access: Access,
    concurrency: u16,
    order: BatchOrder,
    ordering: RawConfig,
    /// Permits for requests in flight, of all batches together.
    places: Arc<Semaphore>,
    /// The single permit for reading a batch's file or planning the order of its next requests, so that one batch does
    /// it at a time.
    planning: Arc<Semaphore>,
}

impl Batches {
    /// Opens the folder of files and batches, and creates it if needed.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be used or is in use, or if the documents of batches cannot be ordered in
    /// the configured way.
    pub fn open(config: Config, access: Access) -> anyhow::Result<Self> {
        BatchOrderer::new(&config.ordering, config.order)
            .map_err(|error: BatchConfigError| anyhow::anyhow!("--batch-order: {error}"))?;
        let owners = access.keys.as_ref().map_or(0, ApiKeys::count);
        let shared = Shared {
            store: Arc::new(Store::open(config.folder, config.bounds, owners)?),
            access,
            concurrency: config.concurrency,
            order: config.order,
            ordering: config.ordering,
            places: Arc::new(Semaphore::new(config.concurrency.into())),
            planning: Arc::new(Semaphore::new(1)),
        };
        Ok(Self {
            shared: Arc::new(shared),
            tasks: Mutex::default(),
        })
    }

    /// Returns the store of files and batches.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// Returns the collector of the batches' metrics.
    pub(crate) fn collector(&self) -> Box<dyn Collector> {
        Box::new(metrics::BatchCollector(Arc::clone(self.store())))
    }

    /// Starts or continues the batch `id` in the background.
    pub(crate) fn start<A: Ask>(&self, server: &Arc<A>, id: String) {
        let (server, shared) = (Arc::clone(server), Arc::clone(&self.shared));
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move { run::run(&server, &shared, &id).await });
    }

    /// Waits until no batch runs. Must be called after the server has begun to stop and refuses new requests, so that
    /// no batch starts.
    pub(crate) async fn ended(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
    }
}
