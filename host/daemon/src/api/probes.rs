//! `GET /healthz`, `/readyz` and `/metrics`: for orchestrators and scrapers, without a key.

use super::App;
use crate::failure::Failure;
use crate::gate::Phase;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use foreword_engine::engine::Health;
use serde_json::{Value, json};
use std::sync::Arc;

/// The process is up, and its engine has not ended by itself: whoever asks may restart what is not.
pub(super) async fn healthz(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let serving = app.gate.phase() <= Phase::Open;
    let health = app.model.get().map(|model| model.engine().health());
    let (status, word) = match health {
        Some(Health::Ended { .. }) if serving => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        Some(Health::Recovering) => (StatusCode::OK, "recovering"),
        _ => (StatusCode::OK, "ok"),
    };
    (status, Json(json!({"status": word})))
}

/// Requests are served: 503 while the model loads and from the first signal to stop.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let (status, word) = match app.gate.phase() {
        Phase::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        Phase::Open => (StatusCode::OK, "ready"),
        Phase::Stopping | Phase::Cut | Phase::Closed => {
            (StatusCode::SERVICE_UNAVAILABLE, "stopping")
        }
    };
    (status, Json(json!({"status": word})))
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<impl IntoResponse, Failure> {
    let text = app.metrics.encode().map_err(Failure::internal)?;
    Ok((
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    ))
}
