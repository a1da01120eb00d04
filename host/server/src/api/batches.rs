//! `/v1/batches`: files of requests that run while no other request waits, as in OpenAI's API ([`crate::batches`]).

use super::App;
use super::admit::{Admitted, admit};
use super::files::{self, Page, owner, store};
use crate::batches::{BatchRecord, RequestCounts, Status, Store, WINDOW, WINDOW_SECONDS, now};
use crate::failure::{Failure, clip};
use crate::http::body;
use crate::request::metadata;
use axum::Json;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::HeaderMap;
use foreword_simulation::URLS;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// `POST /v1/batches`: creates a batch for an uploaded file of requests, and starts it.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, Failure> {
    let owner = owner(&app, request.headers());
    if let Err(failure) = store(&app) {
        body::discard(request).await;
        return Err(failure);
    }
    let Admitted { body, .. } = admit(&app, request).await?;
    let asked = Asked::parse(&body)?;
    // A client that goes away meanwhile does not end this: nobody would start the batch then.
    let creating = async move {
        let record = files::asked(&app, move |store| asked.create(store, owner)).await??;
        if let Some(batches) = &app.batches {
            batches.start(&app, record.id.clone());
        }
        Ok(Json(record.object()))
    };
    tokio::spawn(creating).await.map_err(Failure::internal)?
}

/// `GET /v1/batches/{id}`: returns the batch, if it belongs to the client's API key.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let ask = |store: &Store, owner: &str, id: &str| store.batch(owner, id, now());
    let found = files::asked_of(&app, &headers, &id, ask).await?;
    Ok(Json(
        found
            .ok_or_else(|| Failure::not_stored("batch", &id, None))?
            .object(),
    ))
}

/// `GET /v1/batches`: returns the batches of the client's API key, latest first.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let page = Page::parse(query.as_deref(), 20, 100, &[])?;
    let owner = owner(&app, &headers);
    let batches = files::asked(&app, move |store| store.batches(&owner, now())).await?;
    let objects = batches.iter().map(BatchRecord::object).collect();
    page.of(objects).map(Json)
}

/// `POST /v1/batches/{id}/cancel`: begins to cancel the batch, if it belongs to the client's API key.
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let ask = |store: &Store, owner: &str, id: &str| store.cancel(owner, id, now());
    let cancelled = files::asked_of(&app, &headers, &id, ask).await??;
    Ok(Json(
        cancelled
            .ok_or_else(|| Failure::not_stored("batch", &id, None))?
            .object(),
    ))
}

/// The validated body of `POST /v1/batches`.
struct Asked {
    file: String,
    endpoint: String,
    metadata: Option<Map<String, Value>>,
}

impl Asked {
    fn parse(body: &[u8]) -> Result<Self, Failure> {
        let fields: Map<String, Value> = serde_json::from_slice(body)
            .map_err(|_| Failure::invalid_body("the body must be a JSON object"))?;
        for (name, value) in &fields {
            let is_known = matches!(
                name.as_str(),
                "input_file_id" | "endpoint" | "completion_window" | "metadata"
            );
            if !is_known && !value.is_null() {
                let message = format!("{} is not known for a batch", clip(name));
                return Err(Failure::invalid(clip(name), message));
            }
        }
        let text = |name: &'static str| {
            let value = fields.get(name).and_then(Value::as_str);
            value.ok_or_else(|| Failure::invalid(name, format!("{name} must be a string")))
        };
        let endpoint = text("endpoint")?;
        if !URLS.contains(&endpoint) {
            let message = format!(
                "endpoint must be {}, got `{}`",
                URLS.join(" or "),
                clip(endpoint)
            );
            return Err(Failure::invalid("endpoint", message));
        }
        let window = text("completion_window")?;
        if window != WINDOW {
            let message = format!(
                "completion_window must be `{WINDOW}`, got `{}`",
                clip(window)
            );
            return Err(Failure::invalid("completion_window", message));
        }
        Ok(Self {
            file: text("input_file_id")?.to_owned(),
            endpoint: endpoint.to_owned(),
            metadata: metadata(fields.get("metadata"))?,
        })
    }

    fn create(self, store: &Store, owner: String) -> Result<BatchRecord, Failure> {
        let now = now();
        let file = store.file(&owner, &self.file, now);
        let unknown = || Failure::not_stored("file", &self.file, Some("input_file_id"));
        let file = file.ok_or_else(unknown)?;
        if file.purpose != "batch" {
            let message = format!(
                "the purpose of {} must be `batch`, it is `{}`",
                file.id, file.purpose
            );
            return Err(Failure::invalid("input_file_id", message));
        }
        let record = BatchRecord {
            id: String::new(),
            owner,
            endpoint: self.endpoint,
            input_file_id: file.id,
            status: Status::Validating,
            errors: Vec::new(),
            output_file_id: None,
            error_file_id: None,
            created_at: now,
            expires_at: now + WINDOW_SECONDS,
            times: BTreeMap::new(),
            counts: RequestCounts::default(),
            tokens: [0; 3],
            metadata: self.metadata,
            ends_as: None,
        };
        store.create(record, now)
    }
}
