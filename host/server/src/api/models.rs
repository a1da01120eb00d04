//! `GET /v1/models` and `GET /v1/models/{id}`: the served model, as in OpenAI's API.

use super::App;
use crate::failure::Failure;
use crate::model::Model;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>, Failure> {
    let model = app.model()?;
    Ok(Json(
        json!({"object": "list", "data": [describe(&app, &model)]}),
    ))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let model = app.model()?;
    model.check_name(Some(&id))?;
    Ok(Json(describe(&app, &model)))
}

/// Returns OpenAI's model object for the served model, with fields that routers read: `max_model_len`, `root`, and
/// `owned_by`, which names the kind of engine.
fn describe(app: &App, model: &Model) -> Value {
    json!({
        "id": model.name(),
        "object": "model",
        "created": model.created_s(),
        "owned_by": app.drop_in.name(),
        "root": model.name(),
        "parent": null,
        "max_model_len": model.shape().longest_sequence(),
    })
}
