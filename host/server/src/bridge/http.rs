//! The HTTP API of the bridge, which publishes a feed of cache events for an engine that does not.
//!
//! | route | method | key needed |
//! | --- | --- | --- |
//! | `/v1/chat/completions`, others under `/v1` | POST: a copy of a request, answered with 204 at once | the API's |
//!
//! and on the internal listener:
//!
//! | route | method | key needed |
//! | --- | --- | --- |
//! | `/v1/kv/events`, `/v1/kv/snapshot` | GET | as on the server's internal listener |
//! | `/v1/kv/records` | GET, POST | the same |
//! | `/healthz`, `/readyz`, `/metrics` | GET | no |
//!
//! The sender of a copy neither waits for nor reads a response, so errors in a copy are counted, not reported. Copies
//! of requests with documents are rendered and tokenised, one at a time per core; a bounded number of copies waits for
//! that. The others are discarded unread, unless it is unknown whether the engine reports salts: then they are searched
//! for one.

use super::metrics::Metrics;
use super::prompts::{Prompts, Reading, has_salt};
use super::residency::Residency;
use crate::canary::Canary;
use crate::connections::Book;
use crate::failure::Failure;
use crate::gate::{EXHAUSTED_AFTER, Gate, Pass, Phase};
use crate::http::{body, refusals};
use crate::keys::ApiKeys;
use crate::kv::http::{self as feed, Readers};
use crate::kv::place::PATH_HEADER;
use crate::metrics::Placement;
use axum::body::Bytes;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use foreword_process::metrics::OPENMETRICS;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// The state that all handlers of the bridge share.
pub(super) struct App {
    /// Counts the copied requests in flight, each until its prompt is tokenised, and limits their number.
    pub(super) gate: Arc<Gate>,
    /// Renders and tokenises the copied requests' prompts.
    pub(super) prompts: Prompts,
    /// The content of the engine's cache, as known from its events.
    pub(super) residency: Arc<Residency>,
    /// Access of gateways to the feed of cache events.
    pub(super) readers: Arc<Readers>,
    /// The bridge's metrics.
    pub(super) metrics: Arc<Metrics>,
    /// API keys that senders of copies of requests must have; `None` if no key is required.
    pub(super) keys: Option<ApiKeys>,
    /// Maximum length of a copied request's body, in bytes.
    pub(super) max_body_bytes: u64,
    /// Time limit for receiving the body of a copied request.
    pub(super) body_time: Duration,
    /// Permits to render and tokenise copies of requests; there is one for each core.
    pub(super) preparing: Arc<Semaphore>,
    /// Detects when the permits to render and tokenise (`preparing`) are no longer given back.
    pub(super) canary: Canary,
    /// The open connections over which copies of requests arrive, and their limits.
    pub(super) connections: Arc<Book>,
}

/// Returns the routes that receive copies of requests.
pub(super) fn router(app: Arc<App>) -> Router {
    let router = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/{*rest}", post(other))
        .route_layer(from_fn_with_state(app.keys.clone(), refusals::authorize));
    refusals::of_clients(router)
        .layer(from_fn_with_state(Arc::clone(&app), count))
        .with_state(app)
}

/// Returns the routes of the bridge's internal listener.
pub(super) fn internal(app: Arc<App>) -> Router {
    let feed = feed::router(Arc::clone(&app.readers));
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .merge(feed.with_state(()))
        .method_not_allowed_fallback(refusals::method_not_allowed)
        .fallback(refusals::unknown_url)
        .layer(from_fn_with_state(Arc::clone(&app), count))
        .with_state(app)
}

async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<StatusCode, Failure> {
    let Some(path) = request.headers().get(PATH_HEADER).cloned() else {
        app.metrics.placements.count(Placement::Absent);
        return Ok(other(State(app), request).await);
    };
    let (body, pass) = arrived(&app, request).await?;
    // The task holds the pass, so the bridge does not close before the copy is read.
    tokio::spawn(follow(app, pass, Some(path), body));
    Ok(StatusCode::NO_CONTENT)
}

async fn arrived(app: &App, request: Request) -> Result<(Bytes, Pass), Failure> {
    let bounds = body::Bounds {
        max_bytes: app.max_body_bytes,
        time: app.body_time,
    };
    body::admit(&app.gate, request, bounds, Instant::now()).await
}

/// Handles a copied request on a blocking thread: searches it for a salt and, if it has the header that names the order
/// of its documents (`path`), tokenises its prompt. Reports both to the state of what the engine has cached.
async fn follow(app: Arc<App>, mut pass: Pass, path: Option<HeaderValue>, body: Bytes) {
    let permit = tokio::select! {
        permit = Arc::clone(&app.preparing).acquire_owned() => permit,
        () = pass.cut() => return,
    };
    let reader = Arc::clone(&app);
    let read = move || {
        let _permit = permit;
        if reader.residency.awaits_first_salt() && has_salt(&body) {
            reader.residency.record_salt();
        }
        match path {
            Some(path) => reader.prompts.read(&path, &body),
            None => Ok(Reading::NoDocuments),
        }
    };
    let outcome = match tokio::task::spawn_blocking(read).await {
        Ok(Ok(Reading::Prompt(prompt))) => {
            app.residency.prompt(prompt);
            "followed"
        }
        Ok(Ok(Reading::NoDocuments)) => "no_documents",
        Ok(Ok(Reading::OtherModel)) => "other_model",
        // The failure may contain text of the request, so only its code is logged.
        Ok(Err(failure)) => {
            tracing::debug!(code = failure.code(), "no prompt can be made of a copy");
            "unreadable"
        }
        Err(error) => {
            tracing::error!(%error, "reading a copy panicked");
            "unreadable"
        }
    };
    app.metrics.copy(outcome);
}

/// Receives the copy of a request in which no documents can be found: a chat without documents, or not a chat. It is
/// read only for its salt, and only while it is unknown whether the engine reports salts.
async fn other(State(app): State<Arc<App>>, request: Request) -> StatusCode {
    if !app.residency.awaits_first_salt() {
        app.metrics.copy("no_documents");
        body::discard(request).await;
    } else if let Ok((body, pass)) = arrived(&app, request).await {
        tokio::spawn(follow(app, pass, None, body));
    } else {
        app.metrics.copy("no_documents");
    }
    StatusCode::NO_CONTENT
}

async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `GET /readyz`: returns 503 until the engine's events were first received, from the first stop signal on, and while
/// connections, copies of requests in flight or permits to render and tokenise have been used up for
/// [`EXHAUSTED_AFTER`]. A bridge that loses its engine later stays ready, since its last state is the best available.
async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let exhausted = || {
        app.connections.is_exhausted(EXHAUSTED_AFTER)
            || app.gate.is_exhausted(EXHAUSTED_AFTER)
            || app.canary.waits(&app.preparing) >= EXHAUSTED_AFTER
    };
    let (status, word) = match app.gate.phase() {
        Phase::Loading => (StatusCode::SERVICE_UNAVAILABLE, "connecting"),
        Phase::Open if !app.readers.is_open() => (StatusCode::SERVICE_UNAVAILABLE, "connecting"),
        Phase::Open if exhausted() => (StatusCode::SERVICE_UNAVAILABLE, "exhausted"),
        Phase::Open => (StatusCode::OK, "ready"),
        Phase::Stopping | Phase::Cut | Phase::Closed => {
            (StatusCode::SERVICE_UNAVAILABLE, "stopping")
        }
    };
    (status, Json(json!({"status": word})))
}

async fn metrics(State(app): State<Arc<App>>) -> Result<impl IntoResponse, Failure> {
    let text = app.metrics.encode().map_err(Failure::internal)?;
    Ok((OPENMETRICS, text))
}

async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = matched.as_ref().map_or("unmatched", MatchedPath::as_str);
    app.metrics.responses.count(route, response.status());
    response
}
