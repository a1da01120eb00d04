//! The state that all HTTP handlers share.

use crate::api::grammars;
use crate::batches::Batches;
use crate::canary::Canary;
use crate::connections::Book;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::keys::ApiKeys;
use crate::kv::http::Readers;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::retrieval::Retriever;
use crate::spans::Spans;
use crate::transcripts::Transcripts;
use foreword_ordering::path::Locator;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Configuration, metrics and running parts of the server, shared by all HTTP handlers.
pub struct App {
    /// Counts the requests in flight and refuses requests beyond the limit or while the server loads or stops.
    pub gate: Arc<Gate>,
    /// The model; unset until it is loaded, and until then the gate refuses requests.
    pub model: Arc<OnceLock<Arc<Model>>>,
    /// The Prometheus metrics.
    pub metrics: Arc<Metrics>,
    /// The exporter of OpenTelemetry spans; `None` if no collector is configured.
    pub spans: Option<Spans>,
    /// The clients' keys, for all routes that need one (see [`crate::api`]); `None` if no key is required.
    pub keys: Option<ApiKeys>,
    /// Keys for emptying the cache: those of the KV feed, else the clients'; `None` if no keys are configured for
    /// either.
    pub operators: Option<ApiKeys>,
    /// True if the internal listener is bound to an address other than loopback.
    pub is_internal_exposed: bool,
    /// The engine that `/v1/models` and `/get_load` imitate.
    pub drop_in: DropIn,
    /// Stored responses, for requests that continue them; `None` if none are stored.
    pub transcripts: Option<Arc<Transcripts>>,
    /// Files and batches; `None` if they are off.
    pub batches: Option<Batches>,
    /// Limits of a request.
    pub limits: Limits,
    /// The readers of the engine's KV feed, and the feed itself.
    pub readers: Arc<Readers>,
    /// Finds the ends of a prompt's documents from the gateway's path header.
    pub locator: Locator,
    /// Retrieves documents for requests that have none.
    pub retriever: Arc<Retriever>,
    /// Permits to parse, render and tokenise requests: one per core.
    pub preparing: Arc<Semaphore>,
    /// Bounds the preparation of grammars, apart from `preparing`.
    pub grammars: grammars::Admission,
    /// Measures how long a probe waits for a permit of `preparing`, to detect a stall.
    pub canary: Canary,
    /// The connections of clients.
    pub connections: Arc<Book>,
}

impl App {
    /// Returns the model, or [`Failure::Loading`] before it is loaded.
    pub(crate) fn model(&self) -> Result<Arc<Model>, Failure> {
        self.model.get().cloned().ok_or(Failure::Loading)
    }
}

/// Limits of a request's body and time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a body, in bytes.
    pub max_body_bytes: u64,
    /// Time limit for receiving the body.
    pub body_time: Duration,
    /// Time limit from the request's arrival to the end of its answer.
    pub request_timeout: Duration,
}

/// The engine that the server imitates in responses on which vLLM and SGLang differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DropIn {
    /// `owned_by` is `vllm`, and `/get_load` an object with `load`.
    #[default]
    Vllm,
    /// `owned_by` is `sglang`, and `/get_load` a list with `num_tokens`.
    Sglang,
}

impl DropIn {
    /// The name used as `owned_by` in `/v1/models`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }
}
