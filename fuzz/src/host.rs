//! A host in this process: the server's routes over the real engine, cache, tokenizer and template, and a model that says
//! what its prompt asks it to say.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "compiled here as the host's own tests have it, whose server has many more tokens"
)]
#[path = "../../host/daemon/tests/http/support/parrot.rs"]
mod parrot;

use self::parrot::{Parrot, Steps, VOCABULARY};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::response::Parts;
use foreword_engine::backend::{Backend, BackendError, BackendShape, Output, PageId, Step};
use foreword_engine::engine::{Engine, EngineConfig};
use foreword_server::api::drop_in::DropIn;
use foreword_server::api::{self, Limits};
use foreword_server::connections::Bounds;
use foreword_server::model::Model;
use foreword_server::serve::{Config, Server};
use foreword_server::{retrieval, transcripts};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The name of the model that is served.
pub(crate) const MODEL: &str = "m";

/// A server that keeps responses, and asks for no key.
pub(crate) struct Host {
    runtime: Runtime,
    clients: TowerToHyperService<Router>,
    internal: TowerToHyperService<Router>,
    server: Server,
}

/// Whose listener a request comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Clients,
    Internal,
}

impl Host {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let server = runtime.block_on(async {
            let server = Server::bind(config()).await.expect("port 0 is free");
            server.open(model());
            server
        });
        let app = server.app();
        Self {
            clients: TowerToHyperService::new(api::router(app.clone())),
            internal: TowerToHyperService::new(api::internal(app.clone())),
            runtime,
            server,
        }
    }

    /// The whole answer; its body has at most `limit` bytes.
    pub(crate) fn answer(
        &self,
        listener: Listener,
        request: Request<Body>,
        limit: usize,
    ) -> (Parts, Vec<u8>) {
        let service = match listener {
            Listener::Clients => &self.clients,
            Listener::Internal => &self.internal,
        };
        self.runtime.block_on(async {
            let answer = match service.call(request).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            let (head, body) = answer.into_parts();
            let body = to_bytes(body, limit).await;
            let body = body.unwrap_or_else(|error| panic!("more than {limit} bytes: {error}"));
            (head, body.to_vec())
        })
    }

    /// Waits until the server holds no request and the engine no page, which must follow once every request is answered.
    pub(crate) fn is_left(&self) {
        let app = self.server.app();
        let left = async {
            loop {
                let stats = app.model.get().map(|model| model.engine().stats());
                let busy = stats.map_or(0, |s| s.waiting + s.running + s.cache.in_use);
                if busy + app.gate.inside() == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let left = async { tokio::time::timeout(PATIENCE, left).await };
        let left = self.runtime.block_on(left);
        assert!(left.is_ok(), "places or pages are not given back");
    }
}

fn config() -> Config {
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    Config {
        listen: anywhere,
        internal: None,
        connections: Bounds::default(),
        keys: None,
        otlp_endpoint: None,
        limits: Limits {
            max_body_bytes: 1 << 20,
            body_time: PATIENCE,
            request_timeout: PATIENCE,
        },
        drop_in: DropIn::default(),
        store: Some(transcripts::Bounds {
            responses: 16,
            bytes: 1 << 20,
            time: Duration::from_secs(3600),
        }),
        batches: None,
        kv_keys: None,
        feed_key: None,
        ordering: foreword_ordering::Config::default(),
        retrieval: retrieval::Config::default(),
        kv_events: None,
        max_inside: 64,
        grace: Duration::ZERO,
    }
}

fn model() -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    parrot::write_checkpoint(folder.path(), Some(parrot::TEMPLATE));
    let backend = Box::new(Tame(Parrot::new(Steps::free())));
    let start = |backend| Engine::start(backend, EngineConfig::default());
    Model::with_engine(folder.path(), None, MODEL.to_owned(), backend, start)
        .expect("the checkpoint is whole")
}

/// A parrot whose device does not fail, with few tokens: an answer ends soon.
struct Tame(Parrot);

impl Backend for Tame {
    fn shape(&self) -> BackendShape {
        BackendShape {
            max_positions: 4096,
            pages: 2048,
            ..self.0.shape()
        }
    }

    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError> {
        if self.0.run(step, logits).is_err() {
            let rows = step.segments.iter().map(|segment| match segment.output {
                Output::None => 0,
                Output::Last | Output::Token(_) => 1,
                Output::All => segment.tokens.len(),
            });
            logits.clear();
            logits.resize(rows.sum::<usize>() * VOCABULARY as usize, 0.0);
        }
        Ok(())
    }

    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError> {
        self.0.copy_slots(from, to, tokens)
    }
}

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);
