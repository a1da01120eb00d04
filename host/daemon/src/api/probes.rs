//! `GET /healthz`, `/readyz` and `/metrics`: for orchestrators and scrapers, without a key.

use super::App;
use crate::failure::Failure;
use crate::gate::Phase;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use std::sync::Arc;

/// The process is up.
pub(super) async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
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
