//! The routes by which routers query an engine's health, model and load. They let the server replace vLLM or SGLang.
//!
//! | route | client | key |
//! | --- | --- | --- |
//! | `/health`, `/health_generate`, `/ping`, `/version`, `/is_sleeping` | every router | none |
//! | `/server_info`, `/get_server_info`, `/model_info`, `/get_model_info` | sglang-router, vllm-router, smg | API's |
//! | `/load`, `/get_load`, `/v1/loads` | routers that balance by load, such as smg | API's |
//! | `POST /reset_prefix_cache`, `/flush_cache` | the server's operator | operator's |
//!
//! The clients' listener has these routes because a router knows only one address of an engine. They report totals over
//! all tenants; what concerns a tenant's documents, and `/metrics`, is on the internal listener only. The internal
//! listener has them too, and there only emptying the cache may need a key.

pub use crate::app::DropIn;

use super::{App, probes};
use crate::failure::Failure;
use crate::gate::Phase;
use crate::keys::ApiKeys;
use crate::model::Model;
use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use foreword_engine::engine::Health;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The clients of a listener that may empty the prefix cache. Emptying it slows down every tenant's next requests.
pub(super) enum Operators {
    /// Only clients with one of these API keys may empty the cache.
    Keys(ApiKeys),
    /// Every client of the listener may empty the cache.
    Everybody,
    /// No client may empty the cache: no key is configured, and others than the operator can reach the listener.
    Nobody,
}

/// Returns the routes that need no key on either listener.
pub(super) fn open() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(health))
        .route("/health_generate", get(health))
        .route("/ping", get(health).post(health))
        .route("/version", get(version))
        .route("/is_sleeping", get(is_sleeping))
}

/// Returns the routes that report on the server and its load.
pub(super) fn reporting_routes() -> Router<Arc<App>> {
    Router::new()
        .route("/server_info", get(server_info))
        .route("/get_server_info", get(server_info))
        .route("/model_info", get(model_info))
        .route("/get_model_info", get(model_info))
        .route("/load", get(load))
        .route("/get_load", get(get_load))
        .route("/v1/loads", get(loads))
}

/// Returns the routes that empty the prefix cache, restricted to `operators`.
pub(super) fn flushing(operators: Operators) -> Router<Arc<App>> {
    Router::new()
        .route("/reset_prefix_cache", post(flush))
        .route("/flush_cache", post(flush))
        .route_layer(from_fn_with_state(Arc::new(operators), ask_operators))
}

async fn ask_operators(
    State(operators): State<Arc<Operators>>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    match &*operators {
        Operators::Keys(keys) if keys.admit(request.headers()) => {}
        Operators::Keys(_) => return Err(Failure::Unauthorized),
        Operators::Everybody => {}
        Operators::Nobody => return Err(Failure::OperatorsKeyRequired),
    }
    Ok(next.run(request).await)
}

/// Handles a health check of a router: 200 if `/readyz` returns 200 and the engine has not crashed, otherwise 503.
async fn health(State(app): State<Arc<App>>) -> Response {
    let ended = app
        .model
        .get()
        .is_some_and(|model| matches!(model.engine().health(), Health::Ended { .. }));
    if ended && app.gate.phase() <= Phase::Open {
        let failed = Json(json!({"status": "failed"}));
        return (StatusCode::SERVICE_UNAVAILABLE, failed).into_response();
    }
    probes::readyz(State(app)).await.into_response()
}

async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Returns that the engine does not sleep, since it has no sleep mode; routers ask for it.
async fn is_sleeping() -> Json<Value> {
    Json(json!({"is_sleeping": false}))
}

/// Returns the fields of both vLLM and SGLang. Model paths are replaced by the model's name.
async fn server_info(State(app): State<Arc<App>>) -> Result<Json<Value>, Failure> {
    let model = app.model()?;
    let load = Load::of(&model);
    let stats = model.engine().stats();
    Ok(Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model_path": model.name(),
        "served_model_name": model.name(),
        "context_length": model.shape().longest_sequence(),
        "page_size": model.shape().page_tokens,
        "max_total_num_tokens": load.all_tokens,
        "tp_size": 1,
        "dp_size": 1,
        "vllm_config": {
            "model_config": {
                "model": model.name(),
                "served_model_name": model.name(),
                "max_model_len": model.shape().longest_sequence(),
            },
            "cache_config": {
                "block_size": model.shape().page_tokens,
                "num_gpu_blocks": stats.cache.pages,
                "enable_prefix_caching": stats.prefix_caching,
            },
            "parallel_config": {"tensor_parallel_size": 1, "data_parallel_size": 1},
        },
    })))
}

async fn model_info(State(app): State<Arc<App>>) -> Result<Json<Value>, Failure> {
    let model = app.model()?;
    Ok(Json(json!({
        "model_path": model.name(),
        "served_model_name": model.name(),
        "is_generation": true,
        "max_model_len": model.shape().longest_sequence(),
        "max_context_length": model.shape().longest_sequence(),
    })))
}

/// The engine's load, in requests and in tokens of KV state.
struct Load {
    running: u32,
    waiting: u32,
    /// Number of tokens for which the pages of KV state in use have room, and (`all_tokens`) for which all pages have
    /// room.
    held_tokens: u64,
    all_tokens: u64,
}

impl Load {
    fn of(model: &Model) -> Self {
        let stats = model.engine().stats();
        let tokens = |pages| u64::from(pages) * u64::from(model.shape().page_tokens);
        Self {
            running: stats.running,
            waiting: stats.waiting,
            held_tokens: tokens(stats.cache.in_use),
            all_tokens: tokens(stats.cache.pages),
        }
    }

    fn requests(&self) -> u64 {
        u64::from(self.running) + u64::from(self.waiting)
    }

    /// Returns the fraction of the tokens in the engine's KV memory whose pages are in use, from 0 to 1.
    fn usage(&self) -> f64 {
        self.held_tokens as f64 / self.all_tokens.max(1) as f64
    }
}

async fn load(State(app): State<Arc<App>>) -> Result<Json<Value>, Failure> {
    let model = app.model()?;
    Ok(Json(json!({"server_load": Load::of(&model).requests()})))
}

async fn get_load(State(app): State<Arc<App>>) -> Result<Json<Value>, Failure> {
    let model = app.model()?;
    let load = Load::of(&model);
    Ok(Json(match app.drop_in {
        DropIn::Vllm => json!({"load": load.requests()}),
        DropIn::Sglang => json!([{
            "dp_rank": 0,
            "num_reqs": load.requests(),
            "num_waiting_reqs": load.waiting,
            "num_tokens": load.held_tokens,
        }]),
    }))
}

async fn loads(State(app): State<Arc<App>>) -> Result<Json<Value>, Failure> {
    let model = app.model()?;
    let load = Load::of(&model);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs_f64();
    let usage = load.usage();
    Ok(Json(json!({
        "timestamp": now,
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": 1,
        "loads": [{
            "dp_rank": 0,
            "timestamp": now,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_used_tokens": load.held_tokens,
            "max_total_num_tokens": load.all_tokens,
            "token_usage": usage,
            "utilization": usage,
            "queues": {"waiting": load.waiting},
        }],
        "aggregate": {
            "total_running_reqs": load.running,
            "total_waiting_reqs": load.waiting,
            "total_reqs": load.requests(),
            "avg_token_usage": usage,
            "avg_utilization": usage,
        },
    })))
}

/// Evicts every page of the cache that no running request uses.
async fn flush(State(app): State<Arc<App>>) -> Result<Json<Value>, Failure> {
    let model = app.model()?;
    // It waits for the current step.
    let freed = tokio::task::spawn_blocking(move || model.engine().clear_cache()).await;
    let freed = freed.map_err(Failure::internal)?;
    tracing::info!(pages = freed, "the cache was emptied on request");
    Ok(Json(json!({"success": true, "freed_pages": freed})))
}
