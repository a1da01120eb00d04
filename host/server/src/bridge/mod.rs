//! `foreword kv-bridge`: a feed of cached documents for an engine that reports only blocks of tokens, such as vLLM.
//!
//! ```text
//!   Envoy ── copies of requests ──▶ http ──▶ prompts: tokens, ends of documents ── prompt ─┐
//!                                                                                           ├─▶ residency ──▶ feed
//!   vLLM ─── BlockStored, … ──────▶ subscription ──▶ sequence: what is missing ─── events ─┘    (blocks)       │
//!                                                                                                              │
//!   gateway's filter ◀────────────────── /v1/kv/events, /v1/kv/snapshot ◀──────────────────────────────────────┘
//! ```
//!
//! An engine's events contain tokens and hashes of blocks, but not where documents begin. The documents of a prompt
//! follow from a copy of its request; where they end in the prompt follows from the model's template and tokenizer.
//! [`Blocks`] matches blocks and prompts. The result has the form of our engine's events, so the same feed serves it.
//!
//! One bridge follows one engine. A fleet has a bridge for each engine, and every bridge receives copies of all
//! requests. A prompt whose blocks the engine does not report waits until newer ones
//! take its place.

mod blocks;
mod http;
mod metrics;
mod prompts;
mod residency;
mod sequence;
pub mod subscription;

pub use blocks::{Blocks, Counts, Limits};

use crate::canary::Canary;
use crate::connections::{Book, Bounds};
use crate::gate::{Gate, Phase};
use crate::keys::ApiKeys;
use crate::kv::http::{Readers, Source};
use crate::listeners::{Listeners, Serving};
use crate::serve;
use anyhow::Context;
use foreword_ordering::Config as OrderingConfig;
use foreword_ordering::feed::FeedKey;
use foreword_ordering::path::Locator;
use http::App;
use metrics::Metrics;
use prompts::Prompts;
use residency::Residency;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use subscription::Subscription;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The configuration of a bridge, which publishes a feed of cached documents for one engine.
pub struct Config {
    /// Address to listen on for copies of requests; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Address of the internal listener, for probes, scrapers and gateways that read the feed; `None` for no internal
    /// listener.
    pub internal: Option<SocketAddr>,
    /// Limits on the connections over which copies of requests arrive.
    pub connections: Bounds,
    /// The addresses of the engine's event sockets.
    pub engine: subscription::Config,
    /// Folder of the engine's checkpoint, for its template and tokenizer.
    pub model: PathBuf,
    /// File with the chat template that the engine was given; `None` if it uses the checkpoint's.
    pub chat_template: Option<PathBuf>,
    /// Names under which the engine serves the model, at least one; the feed reports the first.
    pub names: Vec<String>,
    /// The gateway's ordering configuration: its document formats are used to find documents in prompts.
    pub ordering: OrderingConfig,
    /// API keys that senders of copies of requests must send; `None` if no key is required.
    pub keys: Option<ApiKeys>,
    /// Keys accepted for the routes under `/v1/kv`, in addition to the token derived from `feed_key`. If `None`, only
    /// that token is accepted, or `keys` if there is no `feed_key`.
    pub kv_keys: Option<ApiKeys>,
    /// Key that encrypts the hashes in the feed; `None` for an unencrypted feed, which is served on loopback only.
    pub feed_key: Option<FeedKey>,
    /// Time limit for receiving the body of a copied request.
    pub body_time: Duration,
    /// Maximum length of the body of a copied request, in bytes.
    pub max_body_bytes: u64,
    /// Maximum number of copies of requests in flight, each until its prompt is tokenised.
    pub max_waiting: u32,
    /// Memory for the cache of tokenised texts, in bytes.
    pub token_cache_bytes: usize,
    /// Limits on the recorded blocks of the engine's cache, and on prompts that wait for the engine to report their
    /// blocks.
    pub limits: Limits,
    /// Longest time for which [`Bridge::stop`] waits until the copies of requests that have already arrived are
    /// processed; then it closes their connections.
    pub grace: Duration,
}

/// A running bridge, which publishes a feed of cached documents for one engine.
pub struct Bridge {
    serving: Serving,
    grace: Duration,
    following: JoinHandle<()>,
}

impl Bridge {
    /// Loads template and tokenizer, listens, and follows the engine's events, even if the engine is not running yet.
    /// Until its events arrive, the feed responds with 503.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or an address cannot be listened on.
    pub async fn start(config: Config) -> anyhow::Result<Self> {
        let residency = Arc::new(Residency::new(config.limits));
        let metrics = Arc::new(Metrics::new(Arc::clone(&residency)));
        let name = config.names.first().cloned().unwrap_or_default();
        let prompts = {
            let locator = Locator::new(config.ordering);
            let placements = metrics.placements.clone();
            let (model, names, bytes) = (config.model, config.names, config.token_cache_bytes);
            let template = config.chat_template;
            let load = move || {
                let template = template.as_deref();
                Prompts::load(&model, template, names, bytes, locator, placements)
            };
            let loaded = tokio::task::spawn_blocking(load).await;
            loaded.context("reading the model's text files panicked")??
        };
        let whom = "copies of requests";
        let listeners = Listeners::bind(config.listen, whom, config.internal).await?;
        let gate = Gate::new(config.max_waiting);
        let access = serve::access(
            config.kv_keys,
            config.keys.as_ref(),
            config.feed_key,
            listeners.internal_address(),
        );
        let internal_bounds = serve::internal_bounds(&access);
        let counts = &metrics.listeners;
        let copies = Book::new("public", config.connections, counts.clone());
        let internal_connections = Book::new("internal", internal_bounds, counts.clone());
        let cores = std::thread::available_parallelism().map_or(1, Into::into);
        let app = Arc::new(App {
            readers: Readers::new(access, Arc::clone(&gate)),
            connections: Arc::clone(&copies),
            body_time: config.body_time,
            canary: Canary::default(),
            gate,
            prompts,
            residency: Arc::clone(&residency),
            metrics: Arc::clone(&metrics),
            keys: config.keys,
            max_body_bytes: config.max_body_bytes,
            preparing: Arc::new(Semaphore::new(cores)),
        });
        app.gate.advance(Phase::Open);
        let serving = listeners.serve(
            &app.gate,
            (http::router(Arc::clone(&app)), copies),
            (http::internal(Arc::clone(&app)), internal_connections),
        );
        let following = {
            let feed = Arc::clone(residency.feed());
            let subscription = Subscription::new(config.engine, residency, metrics);
            tokio::spawn(async move {
                let caught_up = || {
                    app.readers.open(Source {
                        feed: Arc::clone(&feed),
                        model: name.clone(),
                    });
                };
                tokio::select! {
                    () = app.gate.reached(Phase::Stopping) => {}
                    () = subscription.run(caught_up) => {}
                }
            })
        };
        Ok(Self {
            serving,
            grace: config.grace,
            following,
        })
    }

    /// Returns the address of the listener for copies of requests, with its real port.
    pub fn address(&self) -> SocketAddr {
        self.serving.address
    }

    /// Returns the internal listener's address, with its real port; `None` if there is no internal listener.
    pub fn internal_address(&self) -> Option<SocketAddr> {
        self.serving.internal
    }

    /// Stops the bridge: refuses new copies of requests, waits for those in flight for at most the configured
    /// [`grace`](Config::grace), ends the waiting of gateways that read the feed, and closes the connections.
    pub async fn stop(self) {
        let followed = async {
            let _ = self.following.await;
        };
        self.serving.stop(self.grace, followed).await;
        tracing::info!("stopped");
    }
}
