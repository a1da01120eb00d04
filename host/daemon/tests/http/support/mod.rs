//! A running server for one test, and functions to wait for conditions.

pub(crate) mod client;
pub(crate) mod clients;
pub(crate) mod engine;
pub(crate) mod parrot;
pub(crate) mod ports;
pub(crate) mod process;

use foreword_engine::engine::{Engine, EngineConfig, Stats};
use foreword_ordering::feed::FeedKey;
use foreword_server::api::Limits;
use foreword_server::api::drop_in::DropIn;
use foreword_server::batches;
use foreword_server::connections::Bounds;
use foreword_server::keys::ApiKeys;
use foreword_server::kv::publisher;
use foreword_server::model::Model;
use foreword_server::retrieval;
use foreword_server::serve::{Config, Server};
use foreword_server::transcripts;
use parrot::{Parrot, Steps};
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The server's settings that tests vary.
pub(crate) struct Options {
    pub(crate) max_body_bytes: u64,
    pub(crate) request_timeout: Duration,
    pub(crate) grace: Duration,
    pub(crate) max_waiting: u32,
    pub(crate) max_running: u32,
    pub(crate) max_step_tokens: u32,
    pub(crate) pages: u32,
    pub(crate) keys: Option<ApiKeys>,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) store: Option<transcripts::Bounds>,
    pub(crate) batches: Option<batches::Config>,
    pub(crate) drop_in: DropIn,
    pub(crate) kv_keys: Option<ApiKeys>,
    pub(crate) feed_key: Option<FeedKey>,
    pub(crate) internal: Option<SocketAddr>,
    pub(crate) connections: Bounds,
    pub(crate) body_time: Duration,
    pub(crate) kv_events: Option<publisher::Config>,
    pub(crate) retrieval: retrieval::Config,
    pub(crate) template: Option<&'static str>,
    pub(crate) name: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_body_bytes: 8 << 20,
            request_timeout: Duration::from_secs(600),
            grace: Duration::from_secs(600),
            max_waiting: 256,
            max_running: 8,
            max_step_tokens: 512,
            pages: parrot::PAGES,
            keys: None,
            otlp_endpoint: None,
            store: None,
            batches: None,
            drop_in: DropIn::default(),
            kv_keys: None,
            feed_key: None,
            internal: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            connections: Bounds::default(),
            body_time: Duration::from_secs(60),
            kv_events: None,
            retrieval: retrieval::Config::default(),
            template: Some(parrot::TEMPLATE),
            name: MODEL.to_owned(),
        }
    }
}

/// A server of a [`Parrot`], named [`MODEL`] unless a test chooses another name.
pub(crate) struct TestServer {
    pub(crate) server: Server,
    /// The parrot's steps, which run freely unless a test holds them.
    pub(crate) steps: Steps,
}

pub(crate) const MODEL: &str = "aviary/parrot";

impl TestServer {
    pub(crate) async fn open() -> Self {
        Self::with(Options::default()).await
    }

    /// Starts a server whose internal listener accepts connections on every interface. Also returns its loopback
    /// address.
    pub(crate) async fn with_internal_everywhere(options: Options) -> (Self, SocketAddr) {
        let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let house = Self::with(Options {
            internal: Some(everywhere),
            ..options
        })
        .await;
        let here = SocketAddr::from(([127, 0, 0, 1], house.internal().port()));
        (house, here)
    }

    pub(crate) async fn with(options: Options) -> Self {
        let steps = Steps::free();
        let model = model(&options, steps.clone());
        let server = loading(options).await;
        server.open(model);
        Self { server, steps }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns the address of its probes, metrics and KV feed.
    pub(crate) fn internal(&self) -> SocketAddr {
        internal(&self.server)
    }

    pub(crate) fn stats(&self) -> Stats {
        self.server
            .app()
            .model
            .get()
            .expect("the model is there")
            .engine()
            .stats()
    }

    /// Returns the number of generations that ended as `outcome`.
    pub(crate) fn ended(&self, outcome: &str) -> u64 {
        let name = format!("foreword_generations_total{{outcome=\"{outcome}\"}} ");
        let text = self.server.app().metrics.encode().expect("metrics");
        text.lines()
            .find_map(|line| line.strip_prefix(&name)?.parse().ok())
            .unwrap_or(0)
    }

    /// Waits until no request runs and no page is leased.
    pub(crate) async fn idle(&self) {
        until("nothing runs", || {
            let stats = self.stats();
            stats.waiting + stats.running + stats.cache.in_use == 0
        })
        .await;
    }
}

impl Deref for TestServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Returns the address of a server's probes, metrics and KV feed.
pub(crate) fn internal(server: &Server) -> SocketAddr {
    server.internal_address().expect("an internal listener")
}

/// Starts a server whose model is not loaded yet.
pub(crate) async fn loading(options: Options) -> Server {
    let config = Config {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        internal: options.internal,
        connections: options.connections,
        feed_key: options.feed_key,
        keys: options.keys,
        otlp_endpoint: options.otlp_endpoint,
        limits: Limits {
            max_body_bytes: options.max_body_bytes,
            body_time: options.body_time,
            request_timeout: options.request_timeout,
        },
        store: options.store,
        batches: options.batches,
        drop_in: options.drop_in,
        kv_keys: options.kv_keys,
        ordering: foreword_ordering::Config::default()
            .with_placement(foreword_ordering::policy::Placement::FREE),
        retrieval: options.retrieval,
        kv_events: options.kv_events,
        max_inside: options.max_waiting + options.max_running,
        grace: options.grace,
    };
    Server::bind(config).await.expect("port 0 is free")
}

/// A parrot behind the real engine, tokenizer and template.
pub(crate) fn model(options: &Options, steps: Steps) -> Model {
    let folder = TempDir::new().expect("a folder");
    parrot::write_checkpoint(folder.path(), options.template);
    let engine = EngineConfig {
        max_waiting: options.max_waiting,
        max_running: options.max_running,
        max_step_tokens: options.max_step_tokens,
        ..EngineConfig::default()
    };
    let backend = Box::new(Parrot::new(steps).with_pages(options.pages));
    let start = |backend| Engine::start(backend, engine);
    Model::with_engine(folder.path(), None, options.name.clone(), backend, start)
        .expect("the checkpoint is whole")
}

/// Waits for a condition that other threads make true.
///
/// # Panics
/// Panics when it is not true within a minute.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
