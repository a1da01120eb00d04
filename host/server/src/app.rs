//! What the server's parts share while it serves.

use crate::api::grammars;
use crate::batches::Batches;
use crate::canary::Canary;
use crate::connections::Book;
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

/// The state that all handlers share.
pub struct App {
    /// The gate, which admits requests.
    pub gate: Arc<Gate>,
    /// The model, which is set before the gate opens.
    pub model: Arc<OnceLock<Arc<Model>>>,
    /// Counters and histograms.
    pub metrics: Arc<Metrics>,
    /// Spans of requests; `None`: nobody collects them.
    pub spans: Option<Spans>,
    /// The keys that requests under `/v1` need; `None`: they need none.
    pub keys: Option<ApiKeys>,
    /// The keys of whoever runs the server; `None`: there are none.
    pub operators: Option<ApiKeys>,
    /// Whether others than this machine reach the internal listener.
    pub is_internal_exposed: bool,
    /// The engine in whose words routers are answered.
    pub drop_in: DropIn,
    /// Responses for those that go on from them; `None`: none are kept.
    pub transcripts: Option<Arc<Transcripts>>,
    /// Files and batches; `None`: none are taken.
    pub batches: Option<Batches>,
    /// Bounds of a request.
    pub limits: Limits,
    /// The feed of what the engine's cache holds.
    pub readers: Arc<Readers>,
    /// Finds requests' documents as the gateway does.
    pub locator: Locator,
    /// Finds documents for requests that come without.
    pub retriever: Arc<Retriever>,
    /// Requests being parsed, rendered and tokenised at once: one per core.
    pub preparing: Arc<Semaphore>,
    /// Grammars being prepared, apart from everything else.
    pub grammars: grammars::Admission,
    /// Whether somebody still gets to prepare.
    pub canary: Canary,
    /// The connections of clients.
    pub connections: Arc<Book>,
}

/// Bounds of a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of its body.
    pub max_body_bytes: u64,
    /// Time for its body to arrive.
    pub body_time: Duration,
    /// Time from its arrival to the end of its answer.
    pub request_timeout: Duration,
}

/// The engine in whose words routers are answered, where engines differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DropIn {
    /// `owned_by` is `vllm`, and `/get_load` an object with `load`.
    #[default]
    Vllm,
    /// `owned_by` is `sglang`, and `/get_load` a list with `num_tokens`.
    Sglang,
}

impl DropIn {
    /// As `/v1/models` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }
}
