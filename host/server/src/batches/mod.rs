//! Files of requests that are asked when nobody else waits: OpenAI's `/v1/files` and `/v1/batches`.
//!
//! ```text
//!   POST /v1/files ──▶ store: a folder, bounded ──▶ POST /v1/batches ──▶ run: validate ─▶ ask ─▶ output, errors
//!                        ▲                                                     │
//!                        │ records, one JSON each, and lines of answers        │ one request after another, in the
//!                        └─────────────────────────────────────────────────────┘ plan's order, through the API's own
//!                                                                                admission, while no request waits
//! ```
//!
//! Everything is in the folder: a batch goes on after a restart, and asks nothing again that was answered. Whose a file
//! or a batch is, its API key says; nobody else finds it.

mod ask;
mod metrics;
mod run;
mod store;

pub use store::{
    BatchRecord, Bounds, FileRecord, RequestCounts, Status, Store, StoreNumbers, Upload, WINDOW,
    WINDOW_SECONDS, now,
};

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
    /// Folder for files and batches. One server uses it at a time.
    pub folder: PathBuf,
    /// How much is kept, and how long.
    pub bounds: Bounds,
    /// Most requests of all batches in flight.
    pub concurrency: u16,
    /// The order in which a batch is asked.
    pub order: BatchOrder,
    /// The gateway's configuration of ordering.
    pub ordering: RawConfig,
}

/// What the server lends to batches.
pub struct Access {
    /// The API keys, each the owner of its batches; `None`: there are none.
    pub keys: Option<ApiKeys>,
    /// Most bytes of a request's body.
    pub max_body_bytes: u64,
}

/// The batches of a server.
pub struct Batches {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

/// What running batches share.
struct Shared {
    store: Arc<Store>,
    access: Access,
    concurrency: u16,
    order: BatchOrder,
    ordering: RawConfig,
    /// Places of requests in flight, which waiting batches get in turn.
    places: Arc<Semaphore>,
    /// The place of the batch whose file is read or whose window is planned.
    planning: Arc<Semaphore>,
}

impl Batches {
    /// Opens the folder.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be used, another server uses it, or the configuration of ordering does not
    /// fit the order.
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

    /// Returns what is kept.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// Returns what exports the counts of batches.
    pub(crate) fn collector(&self) -> Box<dyn Collector> {
        Box::new(metrics::OfBatches(Arc::clone(self.store())))
    }

    /// Goes on with the batches that an earlier life of the server did not finish.
    pub(crate) fn resume<A: Ask>(&self, server: &Arc<A>) {
        for id in self.store().unfinished() {
            tracing::info!(id, "going on with a batch");
            self.start(server, id);
        }
    }

    /// Begins a batch, or goes on with it.
    pub(crate) fn start<A: Ask>(&self, server: &Arc<A>, id: String) {
        let (server, shared) = (Arc::clone(server), Arc::clone(&self.shared));
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move { run::run(&server, &shared, &id).await });
    }

    /// Waits until no batch runs; none begins after the gate has closed.
    pub(crate) async fn ended(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
    }
}
