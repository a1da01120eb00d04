//! The state that all HTTP handlers share.

use crate::batches::Batches;
use crate::canary::Canary;
use crate::connections::Book;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::grammars;
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
    /// Counts the requests in flight, and refuses requests beyond their limit or while the server is loading or
    /// stopping.
    pub gate: Arc<Gate>,
    /// The model; unset until it is loaded. Until then, requests are refused.
    pub model: Arc<OnceLock<Arc<Model>>>,
    /// The Prometheus metrics.
    pub metrics: Arc<Metrics>,
    /// The exporter of OpenTelemetry spans; `None` if no collector is configured.
    pub spans: Option<Spans>,
    /// The clients' keys, for all routes that need one (see [`crate::api`]); `None` if no key is required.
    pub keys: Option<ApiKeys>,
    /// The API keys with which an operator may empty the prefix cache: those of the feed of cache events (`/v1/kv`), or
    /// else the clients'. `None` if no keys are configured for either.
    pub operators: Option<ApiKeys>,
    /// True if the listener for probes, metrics and gateways is bound to an address other than loopback.
    pub is_internal_exposed: bool,
    /// The engine, vLLM or SGLang, that the responses of `/v1/models` and `/get_load` imitate.
    pub drop_in: DropIn,
    /// The store of responses that later requests can continue (`previous_response_id`); `None` if responses are not
    /// stored.
    pub transcripts: Option<Arc<Transcripts>>,
    /// Stored files and batches (files of requests that run when the server is idle); `None` if they are off.
    pub batches: Option<Batches>,
    /// Limits on one request's body and time.
    pub limits: Limits,
    /// Access of gateways to the feed of the engine's cache events, and the feed itself.
    pub readers: Arc<Readers>,
    /// Finds where each document ends in a prompt, from the header in which the gateway names the documents' order.
    pub locator: Locator,
    /// Searches for documents, for requests that have none.
    pub retriever: Arc<Retriever>,
    /// Permits to parse, render and tokenise a request on a blocking thread; there is one for each core.
    pub preparing: Arc<Semaphore>,
    /// A permit for each KiB of the bodies that are parsed, rendered and tokenised at once.
    pub preparing_kib: Arc<Semaphore>,
    /// The permit to embed texts of `/v1/embeddings`, which are many: one, so that chats keep the cores and the embedder.
    pub embedding: Arc<Semaphore>,
    /// Limits how many grammars for constrained answers are prepared at once.
    pub grammars: grammars::Admission,
    /// Measures how long a probe waits for a permit to parse, render and tokenise, to detect a stall.
    pub canary: Canary,
    /// The open connections of clients, and their limits.
    pub connections: Arc<Book>,
}

impl App {
    /// Returns the model, or [`Failure::Loading`] before it is loaded.
    pub(crate) fn model(&self) -> Result<Arc<Model>, Failure> {
        self.model.get().cloned().ok_or(Failure::Loading)
    }
}

/// Number of KiB of requests' bodies that are parsed, rendered and tokenised at once. For each byte of a hostile body,
/// parsed JSON takes up to 40 bytes of memory and its tokenisation up to 400.
pub(crate) const PREPARED_KIB: usize = 8 << 10;

/// Limits on one request's body and time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a request body, in bytes.
    pub max_body_bytes: u64,
    /// Time limit for receiving the whole body, counted from the request's arrival.
    pub body_time: Duration,
    /// Time limit from the request's arrival to the end of its answer.
    pub request_timeout: Duration,
}

foreword_ordering::named! {
    /// The engine that the server imitates in the responses in which vLLM and SGLang differ.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum DropIn {
        /// `owned_by` is `vllm`, and `/get_load` an object with `load`.
        #[default]
        Vllm = "vllm",
        /// `owned_by` is `sglang`, and `/get_load` a list with `num_tokens`.
        Sglang = "sglang",
    }
}
