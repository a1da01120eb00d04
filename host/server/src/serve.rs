//! A server's life cycle: it listens at once, serves requests when the model is loaded, and finishes those in flight
//! when it is stopped.

use crate::api::{self, router};
use crate::app::{App, DropIn, Limits, PREPARED_KIB};
use crate::batches::{self, Access as BatchAccess, Batches};
use crate::canary::Canary;
use crate::connections::{Book, Bounds};
use crate::gate::{Gate, Phase};
use crate::grammars::Admission;
use crate::ids::now;
use crate::keys::ApiKeys;
use crate::kv::http::{Access, Readers, Source};
use crate::kv::publisher::{self, Publisher};
use crate::listeners::{Listeners, Serving};
use crate::metrics::{Metrics, Numbers};
use crate::model::Model;
use crate::retrieval::{self, Retriever};
use crate::spans::Spans;
use crate::transcripts::{self, Transcripts};
use foreword_ordering::Config as OrderingConfig;
use foreword_ordering::feed::FeedKey;
use foreword_ordering::path::Locator;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The configuration of a server.
pub struct Config {
    /// Address to listen on for clients; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Address of the internal listener, for probes, scrapers and gateways that read the feed of cache events; `None`
    /// for no internal listener.
    pub internal: Option<SocketAddr>,
    /// Limits on clients' connections, in number and memory.
    pub connections: Bounds,
    /// Keys that clients must send, on all routes that need one (see [`crate::api`]); `None` if no key is required.
    pub keys: Option<ApiKeys>,
    /// Collector of spans, see [`crate::spans`]; `None` for no spans.
    pub otlp_endpoint: Option<String>,
    /// Limits on one request's body and time.
    pub limits: Limits,
    /// The engine, vLLM or SGLang, that the responses of `/v1/models` and `/get_load` imitate.
    pub drop_in: DropIn,
    /// Limits on stored responses, which later requests can continue; `None` if responses are not stored.
    pub store: Option<transcripts::Bounds>,
    /// Configuration of batches (files of requests that run when the server is idle); `None` if they are off.
    pub batches: Option<batches::Config>,
    /// Keys accepted for the routes under `/v1/kv`, in addition to the token derived from `feed_key`. If `None`, only
    /// that token is accepted, or `keys` if there is no `feed_key`.
    pub kv_keys: Option<ApiKeys>,
    /// Key that encrypts the hashes in the feed of cache events; `None` for an unencrypted feed, which is served on
    /// loopback only.
    pub feed_key: Option<FeedKey>,
    /// The gateway's ordering configuration: its document formats are used to find documents in prompts.
    pub ordering: OrderingConfig,
    /// Configuration of document retrieval.
    pub retrieval: retrieval::Config,
    /// Configuration of the socket that publishes vLLM's KV events; `None` if they are not published.
    pub kv_events: Option<publisher::Config>,
    /// Maximum number of requests in flight at once, each from the arrival of its complete body to the end of its
    /// answer.
    pub max_inside: u32,
    /// Time that [`Server::stop`] gives requests in flight to finish.
    pub grace: Duration,
}

/// A running server.
pub struct Server {
    app: Arc<App>,
    serving: Serving,
    grace: Duration,
    kv_events: Option<KvEvents>,
    /// The publisher of vLLM's KV events, until the model is loaded; `None` afterwards, or if they are not published.
    publisher: Mutex<Option<Publisher>>,
    publishing: Mutex<JoinSet<()>>,
}

/// The addresses at which subscribers find vLLM's KV events.
#[derive(Clone, Copy, Debug)]
pub struct KvEvents {
    /// Address of the socket for current events.
    pub address: SocketAddr,
    /// Address of the socket for replaying missed events; `None` if there is none.
    pub replay: Option<SocketAddr>,
}

impl Server {
    /// Listens on all configured addresses (for clients, internal, for KV events) and serves them in the background.
    /// Requests that need the model get 503 until [`Server::open`] is called.
    pub async fn bind(config: Config) -> anyhow::Result<Self> {
        let listeners = Listeners::bind(config.listen, "clients", config.internal).await?;
        let internal = listeners.internal_address();
        let publisher = match config.kv_events {
            Some(config) => Some(Publisher::bind(config).await?),
            None => None,
        };
        let kv_events = publisher.as_ref().map(|publisher| KvEvents {
            address: publisher.address(),
            replay: publisher.replay_address(),
        });
        let model = Arc::<OnceLock<Arc<Model>>>::default();
        let numbers = {
            let model = Arc::clone(&model);
            move || {
                model.get().map(|model| Numbers {
                    model: model.name().to_owned(),
                    page_tokens: model.shape().page_tokens,
                    page_bytes: model.shape().page_bytes as u64,
                    engine: model.engine().stats(),
                    tokens: model.token_cache_stats(),
                })
            }
        };
        let gate = Gate::new(config.max_inside);
        let operators = config.kv_keys.clone().or_else(|| config.keys.clone());
        let access = access(
            config.kv_keys,
            config.keys.as_ref(),
            config.feed_key,
            internal,
        );
        let internal_bounds = internal_bounds(&access);
        let batches = config.batches.map(|batches| {
            let access = BatchAccess {
                keys: config.keys.clone(),
                max_body_bytes: config.limits.max_body_bytes,
            };
            Batches::open(batches, access)
        });
        let batches = batches.transpose()?;
        let collector = batches.as_ref().map(Batches::collector);
        let metrics = Arc::new(Metrics::new(numbers, collector));
        let counts = &metrics.connections;
        let connections = Book::new("public", config.connections, counts.clone());
        let internal_connections = Book::new("internal", internal_bounds, counts.clone());
        let cores = std::thread::available_parallelism().map_or(1, Into::into);
        let app = Arc::new(App {
            readers: Readers::new(access, Arc::clone(&gate)),
            connections: Arc::clone(&connections),
            canary: Canary::default(),
            locator: Locator::new(config.ordering),
            gate,
            grammars: Admission::new(cores, metrics.grammars.clone()),
            metrics,
            model,
            retriever: Arc::new(Retriever::new(config.retrieval)),
            spans: config.otlp_endpoint.as_deref().map(Spans::to).transpose()?,
            keys: config.keys,
            operators,
            is_internal_exposed: internal.is_some_and(|address| !address.ip().is_loopback()),
            drop_in: config.drop_in,
            transcripts: config
                .store
                .map(|bounds| Arc::new(Transcripts::new(bounds))),
            batches,
            limits: config.limits,
            preparing: Arc::new(Semaphore::new(cores)),
            preparing_kib: Arc::new(Semaphore::new(PREPARED_KIB)),
            embedding: Arc::new(Semaphore::new(1)),
        });
        tokio::spawn(expire(Arc::downgrade(&app)));
        let serving = listeners.serve(
            &app.gate,
            (router(Arc::clone(&app)), connections),
            (api::internal(Arc::clone(&app)), internal_connections),
        );
        Ok(Self {
            app,
            serving,
            grace: config.grace,
            kv_events,
            publisher: Mutex::new(publisher),
            publishing: Mutex::default(),
        })
    }

    /// Returns the address of the clients' listener, with its real port.
    pub fn address(&self) -> SocketAddr {
        self.serving.address
    }

    /// Returns the internal listener's address, with its real port; `None` if there is no internal listener.
    pub fn internal_address(&self) -> Option<SocketAddr> {
        self.serving.internal
    }

    /// Returns the addresses of vLLM's KV events; `None` if they are not published.
    pub fn kv_events(&self) -> Option<KvEvents> {
        self.kv_events
    }

    /// Returns the state that the handlers share.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Serves `model` from now on, and continues unfinished batches. A second model is ignored.
    pub fn open(&self, model: Model) {
        let (name, feed) = (model.name().to_owned(), model.engine().feed().clone());
        if self.app.model.set(Arc::new(model)).is_ok() {
            if let Some(publisher) = self.publisher.lock().take() {
                let tasks = &mut self.publishing.lock();
                let counts = &self.app.metrics.connections;
                publisher.start(Arc::clone(&feed), &self.app.gate, counts, tasks);
            }
            self.app.readers.open(Source { feed, model: name });
        }
        // Listed while no request can create another batch, which would then be started twice.
        let batches = self.app.batches.as_ref();
        let unfinished = batches.map(|batches| (batches, batches.store().unfinished()));
        self.app.gate.advance(Phase::Open);
        for (batches, id) in unfinished
            .into_iter()
            .flat_map(|(batches, ids)| ids.into_iter().map(move |id| (batches, id)))
        {
            tracing::info!(id, "going on with a batch");
            batches.start(&self.app, id);
        }
    }

    /// Stops the server: refuses new requests, waits up to the grace period for those in flight, aborts the rest, and
    /// closes the connections. Returns after the engine's thread has ended.
    pub async fn stop(self) {
        let Self {
            app,
            serving,
            grace,
            publishing,
            ..
        } = self;
        let ended = async {
            if let Some(batches) = &app.batches {
                batches.ended().await;
            }
        };
        serving.stop(grace, ended).await;
        let mut publishing = publishing.into_inner();
        while publishing.join_next().await.is_some() {}
        if let Some(model) = app.model.get().cloned() {
            // This blocks until the engine's thread has ended, which without requests in flight is at once.
            let _ = tokio::task::spawn_blocking(move || model.engine().shutdown()).await;
        }
        if app.spans.is_some() {
            let flush = move || app.spans.as_ref().map(Spans::shutdown);
            let _ = tokio::task::spawn_blocking(flush).await;
        }
        tracing::info!("stopped");
    }
}

/// Removes expired files, batches and stored responses once a minute, since requests remove them only when there are
/// any. Returns when the server has ended.
async fn expire(app: Weak<App>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(60));
    loop {
        ticks.tick().await;
        let Some(app) = app.upgrade() else { return };
        if let Some(transcripts) = &app.transcripts {
            transcripts.expire(Instant::now());
        }
        let store = app
            .batches
            .as_ref()
            .map(|batches| Arc::clone(batches.store()));
        drop(app);
        if let Some(store) = store {
            let work = move || store.expire(now());
            let _ = tokio::task::spawn_blocking(work).await;
        }
    }
}

/// Returns who may read the feed of cache events on the internal listener, and logs how the feed is protected.
pub(crate) fn access(
    kv_keys: Option<ApiKeys>,
    keys: Option<&ApiKeys>,
    seal: Option<FeedKey>,
    internal: Option<SocketAddr>,
) -> Access {
    // If the feed has a key of its own, clients' keys give no access to it.
    let keys = kv_keys.or_else(|| keys.cloned().filter(|_| seal.is_none()));
    let access = Access::new(keys, seal, internal);
    if internal.is_some() {
        access.log();
    }
    access
}

/// Returns the limits on the internal listener's connections: enough for all gateways that read the feed of cache
/// events and a few more, with at most 8 MiB for all request bodies, which are pushes between gateways.
pub(crate) fn internal_bounds(access: &Access) -> Bounds {
    Bounds {
        connections: access.readers() * CONNECTIONS_OF_A_READER + INTERNAL_CONNECTIONS,
        per_address: 0,
        body_bytes: 8 << 20,
        ..Bounds::default()
    }
}

/// Connections reserved for each gateway that reads the feed of cache events: two by which one worker reads the feed
/// and the other gateways' pushes, and one for each of eight workers that push. With more workers, the connections idle
/// longest are closed.
pub const CONNECTIONS_OF_A_READER: u32 = 2 + 8;
/// Connections of the internal listener for clients other than gateways: probes and scrapers.
pub const INTERNAL_CONNECTIONS: u32 = 64;
