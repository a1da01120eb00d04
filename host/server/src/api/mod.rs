//! The HTTP API: routes, and the middleware around them.
//!
//! | route | methods | key needed |
//! | --- | --- | --- |
//! | `/v1/chat/completions`, `/v1/completions` | POST | yes |
//! | `/v1/responses`, `/v1/responses/{id}/cancel` | POST | yes |
//! | `/v1/responses/{id}` | GET, DELETE | yes |
//! | `/v1/responses/{id}/input_items` | GET | yes |
//! | `/v1/messages`, `/v1/messages/count_tokens` | POST | yes |
//! | `/v1/chat/completions/render`, `/v1/responses/render`, `/v1/completions/render` | POST | yes |
//! | `/tokenize`, `/detokenize` | POST | yes |
//! | `/v1/embeddings`, `/v1/retrieve`, `/v1/prefill` | POST | yes |
//! | `/v1/files` | GET, POST | yes |
//! | `/v1/files/{id}` | GET, DELETE | yes |
//! | `/v1/files/{id}/content` | GET | yes |
//! | `/v1/batches` | GET, POST | yes |
//! | `/v1/batches/{id}` | GET | yes |
//! | `/v1/batches/{id}/cancel` | POST | yes |
//! | `/v1/models`, `/v1/models/{id}` | GET | yes |
//! | the routes by which routers query an engine, see [`drop_in`] | | see there |
//!
//! The internal listener, for the server's operator, has the routes of [`drop_in`] and:
//!
//! | route | methods | key needed |
//! | --- | --- | --- |
//! | `/v1/kv/events`, `/v1/kv/snapshot` | GET | the feed's own, if configured |
//! | `/v1/kv/records` | GET, POST | the same |
//! | `/healthz`, `/readyz`, `/metrics` | GET | no |
//!
//! ```text
//!   observe (request id, log span, count) ─▶ authorize (routes with a key) ─▶ handler ─▶ Failure or response
//! ```

mod admit;
mod batches;
mod dialect;
pub mod drop_in;
mod embeddings;
mod files;
mod generate;
mod logprobs;
mod messages;
mod models;
mod prefill;
mod probes;
mod responses;
mod retrieve;
mod shape;
mod stream;
mod tokens;

pub use crate::app::{App, Limits};
pub use crate::canary::Canary;

use self::dialect::{Api, Dialect};
use self::drop_in::Operators;
use crate::http::refusals;
use crate::kv;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::Instrument;

/// Returns the routes of the clients' listener.
pub fn router(app: Arc<App>) -> Router {
    let router = Router::new()
        .route(
            "/v1/chat/completions",
            generate::route(Api::OpenAi(Dialect::Chat)),
        )
        .route(
            "/v1/completions",
            generate::route(Api::OpenAi(Dialect::Completion)),
        )
        .route("/v1/responses", generate::route(Api::Responses))
        .route(
            "/v1/responses/{id}",
            get(responses::show).delete(responses::forget),
        )
        .route(
            "/v1/responses/{id}/input_items",
            get(responses::input_items),
        )
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/messages", generate::route(Api::Messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/chat/completions/render", post(tokens::render_chat))
        .route("/v1/responses/render", post(tokens::render_response))
        .route("/v1/completions/render", post(tokens::render_completion))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/retrieve", post(retrieve::retrieve))
        .route("/v1/prefill", post(prefill::prefill))
        .route("/v1/files", get(files::list).post(files::upload))
        .route("/v1/files/{id}", get(files::show).delete(files::remove))
        .route("/v1/files/{id}/content", get(files::content))
        .route("/v1/batches", get(batches::list).post(batches::create))
        .route("/v1/batches/{id}", get(batches::show))
        .route("/v1/batches/{id}/cancel", post(batches::cancel))
        .route("/v1/models", get(models::list))
        // A wildcard, since a model's name such as `organisation/model` may contain slashes.
        .route("/v1/models/{*id}", get(models::show))
        .merge(drop_in::reporting_routes())
        .method_not_allowed_fallback(refusals::method_not_allowed)
        .route_layer(from_fn_with_state(app.keys.clone(), refusals::authorize));
    // Without a key for this, any client could empty the cache of all tenants.
    let operators = match app.operators.clone() {
        Some(keys) => Operators::Keys(keys),
        None => Operators::Nobody,
    };
    let router = router
        .merge(drop_in::open())
        .merge(drop_in::flushing(operators));
    refusals::of_clients(router)
        .layer(from_fn_with_state(Arc::clone(&app), observe))
        .layer(from_fn(messages::format_errors))
        .with_state(app)
}

/// Returns the routes of the internal listener, for probes, metrics and gateways.
pub fn internal(app: Arc<App>) -> Router {
    let feed = kv::http::router(Arc::clone(&app.readers));
    let operators = match app.operators.clone() {
        Some(keys) => Operators::Keys(keys),
        None if app.is_internal_exposed => Operators::Nobody,
        None => Operators::Everybody,
    };
    Router::new()
        .route("/healthz", get(probes::healthz))
        .route("/readyz", get(probes::readyz))
        .route("/metrics", get(probes::metrics))
        .merge(drop_in::open())
        .merge(drop_in::reporting_routes())
        .merge(drop_in::flushing(operators))
        .merge(feed.with_state(()))
        .method_not_allowed_fallback(refusals::method_not_allowed)
        .fallback(refusals::unknown_url)
        .layer(from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

/// The id of a request, which is in the header `x-request-id` of its response, in the log and in traces.
#[derive(Clone, Debug)]
struct RequestId(String);

impl RequestId {
    /// Returns the client's `x-request-id` if it is 1 to 128 visible ASCII characters, otherwise a new id.
    fn of(headers: &HeaderMap) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let safe = |id: &&str| {
            (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match headers
            .get(&X_REQUEST_ID)
            .and_then(|value| value.to_str().ok())
            .filter(safe)
        {
            Some(id) => Self(id.to_owned()),
            None => {
                let count = COUNT.fetch_add(1, Ordering::Relaxed);
                Self(format!(
                    "{:016x}{count:08x}",
                    RandomState::new().hash_one(count)
                ))
            }
        }
    }
}

/// Middleware that assigns the request id, and counts, logs and traces the request.
async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let span = tracing::error_span!("http", request_id = id.0);
    // The id is visible ASCII.
    let header = HeaderValue::from_str(&id.0);
    let route = matched.as_ref().map_or("unmatched", MatchedPath::as_str);
    let traced = app
        .spans
        .as_ref()
        .and_then(|spans| spans.begin(request.method().as_str(), route, &id.0, request.headers()));
    request.extensions_mut().insert(id);
    if let Some(traced) = &traced {
        request.extensions_mut().insert(traced.clone());
    }
    async {
        let mut response = next.run(request).await;
        app.metrics.http(route, response.status());
        if let Some(traced) = traced {
            traced.status(response.status());
        }
        tracing::debug!(route, status = response.status().as_u16(), "response");
        if let Ok(header) = header {
            response.headers_mut().insert(X_REQUEST_ID, header);
        }
        response
    }
    .instrument(span)
    .await
}

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_ID_BYTES: usize = 128;
