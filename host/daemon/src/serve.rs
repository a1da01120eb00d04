//! A server's life: it listens at once, opens when the model is there, drains when told to stop.

use crate::api::grammars::Room;
use crate::api::{App, Limits, router};
use crate::gate::{Gate, Phase};
use crate::keys::ApiKeys;
use crate::kv::http::{Readers, Source};
use crate::kv::publisher::{self, Publisher};
use crate::metrics::{Metrics, Numbers};
use crate::model::Model;
use crate::retrieval::{self, Retriever};
use crate::spans::Spans;
use anyhow::Context;
use axum::serve::ListenerExt;
use foreword_ordering::Config as OrderingConfig;
use foreword_ordering::path::Locator;
use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout_at};

/// How to serve.
pub struct Config {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The keys to ask for under `/v1`; `None`: nobody is asked.
    pub keys: Option<ApiKeys>,
    /// Where spans go, see [`crate::spans`]; `None`: nowhere.
    pub otlp_endpoint: Option<String>,
    /// Bounds of a request.
    pub limits: Limits,
    /// The keys to ask for under `/v1/kv`; `None`: those of the API.
    pub kv_keys: Option<ApiKeys>,
    /// How the gateway finds documents.
    pub ordering: OrderingConfig,
    /// What finds documents.
    pub retrieval: retrieval::Config,
    /// Where vLLM's KV events are published; `None`: nowhere.
    pub kv_events: Option<publisher::Config>,
    /// Requests inside at once, from the reading of their bodies to the end of their answers.
    pub max_inside: u32,
    /// How long [`Server::stop`] lets those inside go on.
    pub grace: Duration,
}

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    grace: Duration,
    connections: JoinHandle<io::Result<()>>,
    kv_events: Option<KvEvents>,
    /// Waits for a model to publish.
    publisher: Mutex<Option<Publisher>>,
    publishing: Mutex<JoinSet<()>>,
}

/// Where vLLM's KV events can be had.
#[derive(Clone, Copy, Debug)]
pub struct KvEvents {
    /// As they happen.
    pub address: SocketAddr,
    /// Those that were missed.
    pub replay: Option<SocketAddr>,
}

impl Server {
    /// Listens and answers; until [`Server::open`], with 503 to whatever needs the model.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn bind(config: Config) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(config.listen)
            .await
            .with_context(|| format!("cannot listen on {}", config.listen))?;
        let address = listener.local_addr().context("cannot tell the port")?;
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
                    engine: model.engine().stats(),
                    tokens: model.token_cache_stats(),
                })
            }
        };
        let gate = Gate::new(config.max_inside);
        let kv_keys = config.kv_keys.or_else(|| config.keys.clone());
        let metrics = Arc::new(Metrics::new(numbers));
        let cores = std::thread::available_parallelism().map_or(1, Into::into);
        let app = Arc::new(App {
            readers: Readers::new(kv_keys, Arc::clone(&gate)),
            locator: Locator::new(config.ordering),
            gate,
            grammars: Room::new(cores, metrics.grammars.clone()),
            metrics,
            model,
            retriever: Arc::new(Retriever::new(config.retrieval)),
            spans: config.otlp_endpoint.as_deref().map(Spans::to).transpose()?,
            keys: config.keys,
            limits: config.limits,
            preparing: Arc::new(Semaphore::new(cores)),
        });
        // Without Nagle's algorithm: a token must not wait for the acknowledgement of the one before.
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY not set");
            }
        });
        let closed = {
            let gate = Arc::clone(&app.gate);
            async move { gate.reached(Phase::Closed).await }
        };
        let serve = axum::serve(listener, router(Arc::clone(&app))).with_graceful_shutdown(closed);
        let connections = tokio::spawn(serve.into_future());
        Ok(Self {
            app,
            address,
            grace: config.grace,
            connections,
            kv_events,
            publisher: Mutex::new(publisher),
            publishing: Mutex::default(),
        })
    }

    /// The address in use, with its real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where vLLM's KV events can be had, if anywhere.
    pub fn kv_events(&self) -> Option<KvEvents> {
        self.kv_events
    }

    /// What its handlers see.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// Serves `model` from now on. A server opens once; a second model is dropped.
    pub fn open(&self, model: Model) {
        let (name, feed) = (model.name().to_owned(), model.engine().feed().clone());
        if self.app.model.set(Arc::new(model)).is_ok() {
            if let Some(publisher) = lock(&self.publisher).take() {
                let tasks = &mut lock(&self.publishing);
                publisher.start(Arc::clone(&feed), &self.app.gate, tasks);
            }
            self.app.readers.open(Source { feed, model: name });
        }
        self.app.gate.advance(Phase::Open);
    }

    /// Lets nobody in any more, waits for those inside up to the grace, cuts off who is left, and closes. The engine
    /// has ended when this returns.
    pub async fn stop(self) {
        let Self {
            app,
            grace,
            connections,
            publishing,
            ..
        } = self;
        let gate = &app.gate;
        let deadline = Instant::now() + grace;
        gate.advance(Phase::Stopping);
        tracing::info!(inside = gate.inside(), "stopping");
        if timeout_at(deadline, gate.emptied()).await.is_err() {
            tracing::warn!(
                inside = gate.inside(),
                "grace is over: cutting requests off"
            );
        }
        gate.advance(Phase::Cut);
        gate.emptied().await;
        gate.advance(Phase::Closed);
        // Answers are complete here; what is left is writing them, and a client need not read.
        let writing = deadline.max(Instant::now() + WRITING);
        if timeout_at(writing, connections).await.is_err() {
            tracing::warn!("closing connections whose clients do not read");
        }
        let mut publishing = publishing
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        while publishing.join_next().await.is_some() {}
        if let Some(model) = app.model.get().cloned() {
            // It blocks until the engine's thread has ended; with nobody inside, that is at once.
            let _ = tokio::task::spawn_blocking(move || model.engine().shutdown()).await;
        }
        if app.spans.is_some() {
            let flush = move || app.spans.as_ref().map(Spans::shutdown);
            let _ = tokio::task::spawn_blocking(flush).await;
        }
        tracing::info!("stopped");
    }
}

/// What is behind these locks is only ever taken or added to.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The least time for writing the last answers.
const WRITING: Duration = Duration::from_secs(1);
