//! `GET /healthz`, `/readyz` and `/metrics`: for orchestrators and scrapers, on the internal listener, without a key.

use super::App;
use crate::failure::Failure;
use crate::gate::{EXHAUSTED_AFTER, Phase};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use foreword_engine::engine::Health;
use foreword_process::metrics::OPENMETRICS;
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /healthz`: returns 200, except 503 if the engine has crashed while the server is running, so that an
/// orchestrator can restart it.
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

/// `GET /readyz`: returns 200 while requests are served. Returns 503 while the model loads, from the first stop signal
/// on, and while a resource, named in the field `exhausted`, has been used up for [`EXHAUSTED_AFTER`] without any of it
/// becoming free.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let word = match app.gate.phase() {
        Phase::Loading => "loading",
        Phase::Open => {
            let exhausted = exhausted(&app);
            let (status, word) = match exhausted.is_empty() {
                true => (StatusCode::OK, json!({"status": "ready"})),
                false => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    json!({"status": "exhausted", "exhausted": exhausted}),
                ),
            };
            return (status, Json(word));
        }
        Phase::Stopping | Phase::Cut | Phase::Closed => "stopping",
    };
    (
        StatusCode::SERVICE_UNAVAILABLE,
        Json(json!({"status": word})),
    )
}

/// Returns the names of the resources that have been used up for [`EXHAUSTED_AFTER`]: `connections`, `requests`,
/// `workers`.
fn exhausted(app: &App) -> Vec<&'static str> {
    let places = [
        ("connections", app.connections.is_exhausted(EXHAUSTED_AFTER)),
        ("requests", app.gate.is_exhausted(EXHAUSTED_AFTER)),
        (
            "workers",
            app.canary.waits(&app.preparing) >= EXHAUSTED_AFTER,
        ),
    ];
    let taken = places.into_iter().filter(|(_, is_taken)| *is_taken);
    taken.map(|(name, _)| name).collect()
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<impl IntoResponse, Failure> {
    // The store of batches may be writing to disk.
    let encoded = tokio::task::spawn_blocking(move || app.metrics.encode()).await;
    let encoded = encoded.map_err(Failure::internal)?;
    let text = encoded.map_err(Failure::internal)?;
    Ok((OPENMETRICS, text))
}
