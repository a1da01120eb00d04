//! `/v1/responses`: formats answers as OpenAI's responses, complete or streamed, and serves stored responses.
//!
//! ```text
//!   response.created, response.in_progress                          at once
//!   response.output_item.added                                      a message or a tool call
//!     response.content_part.added                                   (message)
//!     response.output_text.delta …, response.output_text.done
//!     response.content_part.done
//!     response.function_call_arguments.delta, …done                 (call)
//!   response.output_item.done
//!   response.completed | .incomplete | .failed                      with the usage
//! ```
//!
//! Events are numbered from 0. Responses are stored only if the server was started with `--store`; only the owner of a
//! response can read or continue it ([`crate::transcripts`]).

use super::App;
use super::files::Page;
use crate::answer::{End, Piece, Usage};
use crate::failure::{Failure, clip};
use crate::ids::{now, random_id};
use crate::model::Model;
use crate::transcripts::{Owner, Transcript, Transcripts};
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use foreword_engine::text::{Part, ToolCall};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokio::time::Instant;

/// Formats an answer as OpenAI's response object or as its events, and stores the response when it is complete, if
/// required.
pub(super) struct ResponsesShape {
    id: String,
    /// The fields of the response object that do not change, as a JSON object: those repeated from the request, the
    /// model, the time of creation, `store`. It is text, since parsed tools and schemas may take many times its memory.
    echoed: String,
    output: Vec<Value>,
    /// Id and text of the message that is being written, which is not in `output` yet; `None` if none is.
    open: Option<(String, String)>,
    end: Option<End>,
    sequence: u64,
    keep: Option<Keep>,
}

/// Where a response is stored when it is complete: the store, the owner, and the input items that are stored with it.
pub(super) struct Keep {
    pub(super) transcripts: Arc<Transcripts>,
    pub(super) owner: Owner,
    /// The array of the input items of the chat so far, as JSON, including those of the responses that this one
    /// continues.
    pub(super) input: String,
}

impl ResponsesShape {
    /// Returns the format of a new response. `echoed` are the request's fields that the response repeats, and `keep`
    /// says where to store the response (`None`: not stored).
    pub(super) fn new(model: &Model, mut echoed: Map<String, Value>, keep: Option<Keep>) -> Self {
        let defaults = model.sampling();
        for (name, default) in [
            ("temperature", defaults.temperature),
            ("top_p", defaults.top_p),
        ] {
            // As the shortest number: 0.6 and not 0.6000000238.
            let default = format!("{:?}", default.unwrap_or(1.0));
            let default = || serde_json::from_str(&default).unwrap_or(Value::Null);
            echoed.entry(name).or_insert_with(default);
        }
        echoed.insert("created_at".to_owned(), now().into());
        echoed.insert("model".to_owned(), model.name().into());
        echoed.insert("store".to_owned(), keep.is_some().into());
        Self {
            id: format!("resp_{}", random_id()),
            echoed: Value::Object(echoed).to_string(),
            output: Vec::new(),
            open: None,
            end: None,
            sequence: 0,
            keep,
        }
    }

    pub(super) fn opening(&mut self) -> Vec<Event> {
        let response = self.response("in_progress", None, &[]);
        ["response.created", "response.in_progress"]
            .map(|name| self.response_event(name, &response))
            .into()
    }

    pub(super) fn piece(&mut self, piece: Piece) -> Vec<Event> {
        let mut events = Vec::new();
        for part in piece.parts {
            match part {
                Part::Text(text) if text.is_empty() => {}
                Part::Text(text) => self.text(&text, &mut events),
                Part::Call(call) => {
                    self.close("completed", &mut events);
                    self.call(&call, &mut events);
                }
            }
        }
        self.end = self.end.or(piece.end);
        events
    }

    pub(super) fn finish(&mut self, usage: Usage) -> Vec<Event> {
        let mut events = Vec::new();
        let response = self.complete(usage, &mut events);
        let name = match self.end {
            Some(End::Length) => "response.incomplete",
            _ => "response.completed",
        };
        events.push(self.response_event(name, &response));
        events
    }

    pub(super) fn failure(&mut self, failure: &Failure, usage: Usage) -> Event {
        let error = json!({"code": "server_error", "message": failure.to_string()});
        let response = self.response("failed", Some(usage), &[("error", error)]);
        self.response_event("response.failed", &response)
    }

    pub(super) fn whole(&mut self, usage: Usage) -> Box<RawValue> {
        self.complete(usage, &mut Vec::new())
    }

    /// Ends the message that is being written, adding its events to `events`. Returns the complete response, which it
    /// stores if required.
    fn complete(&mut self, usage: Usage, events: &mut Vec<Event>) -> Box<RawValue> {
        let status = match self.end {
            Some(End::Length) => "incomplete",
            _ => "completed",
        };
        if self.output.is_empty() && self.open.is_none() {
            self.begin(events);
        }
        self.close(status, events);
        let details = match status {
            "incomplete" => ("incomplete_details", json!({"reason": "max_output_tokens"})),
            _ => ("completed_at", now().into()),
        };
        let response = self.response(status, Some(usage), &[details]);
        if let Some(keep) = self.keep.take() {
            let transcript = Transcript {
                response: response.get().to_owned(),
                input: keep.input,
            };
            let transcripts = keep.transcripts;
            transcripts.keep(&keep.owner, &self.id, transcript, Instant::now());
        }
        response
    }

    /// Returns the response object as JSON, with these further or other fields.
    fn response(
        &self,
        status: &str,
        usage: Option<Usage>,
        fields: &[(&str, Value)],
    ) -> Box<RawValue> {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "status": status,
            "error": null,
            "incomplete_details": null,
            "output": self.output,
            "usage": usage.map(usage_object),
        });
        for (name, value) in fields {
            response[*name] = value.clone();
        }
        let own = response.to_string();
        // Neither object is empty, and they have no name in common.
        let own = own.strip_suffix('}').unwrap_or(&own);
        let echoed = self.echoed.strip_prefix('{').unwrap_or(&self.echoed);
        RawValue::from_string(format!("{own},{echoed}")).unwrap_or_default()
    }

    fn response_event(&mut self, name: &str, response: &RawValue) -> Event {
        let sequence = self.sequence;
        self.sequence += 1;
        let data =
            format!(r#"{{"response":{response},"type":"{name}","sequence_number":{sequence}}}"#);
        Event::default().event(name).data(data)
    }

    fn begin(&mut self, events: &mut Vec<Event>) {
        let id = format!("msg_{}", random_id());
        let index = self.output.len();
        let item = message(&id, "in_progress", Vec::new());
        let added = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.added", added));
        let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": output_text("")});
        events.push(self.event("response.content_part.added", part));
        self.open = Some((id, String::new()));
    }

    fn text(&mut self, text: &str, events: &mut Vec<Event>) {
        if self.open.is_none() {
            self.begin(events);
        }
        let index = self.output.len();
        let id = match &mut self.open {
            Some((id, whole)) => {
                whole.push_str(text);
                id.clone()
            }
            None => return,
        };
        let delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": []});
        events.push(self.event("response.output_text.delta", delta));
    }

    fn close(&mut self, status: &str, events: &mut Vec<Event>) {
        let Some((id, text)) = self.open.take() else {
            return;
        };
        let index = self.output.len();
        let part = output_text(&text);
        let done = json!({"item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": []});
        events.push(self.event("response.output_text.done", done));
        let done = json!({"item_id": id, "output_index": index, "content_index": 0, "part": part});
        events.push(self.event("response.content_part.done", done));
        let item = message(&id, status, vec![part]);
        let done = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.done", done));
        self.output.push(item);
    }

    fn call(&mut self, call: &ToolCall, events: &mut Vec<Event>) {
        let index = self.output.len();
        let (id, call_id) = (
            format!("fc_{}", random_id()),
            format!("call_{}", random_id()),
        );
        let item = |status: &str, arguments: &str| {
            json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": call_id,
                "name": call.name,
                "arguments": arguments,
            })
        };
        let added = json!({"output_index": index, "item": item("in_progress", "")});
        events.push(self.event("response.output_item.added", added));
        let delta = json!({"item_id": id, "output_index": index, "delta": call.arguments});
        events.push(self.event("response.function_call_arguments.delta", delta));
        let done = json!({"item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments});
        events.push(self.event("response.function_call_arguments.done", done));
        let item = item("completed", &call.arguments);
        let done = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.done", done));
        self.output.push(item);
    }

    fn event(&mut self, name: &str, mut data: Value) -> Event {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Event::default().event(name).data(data.to_string())
    }
}

fn message(id: &str, status: &str, content: Vec<Value>) -> Value {
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

fn output_text(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": u64::from(usage.prompt) + u64::from(usage.completion),
    })
}

/// Returns the input items and then the output items of the stored response `id`, which a new request continues.
/// Returns an error if no responses are stored, `owner` has none with that id, or the chat is longer with the new
/// request's `body_bytes` than a body may be.
pub(super) fn earlier(
    app: &App,
    owner: &Owner,
    id: &str,
    body_bytes: usize,
) -> Result<Vec<Value>, Failure> {
    let field = "previous_response_id";
    let Some(transcripts) = &app.transcripts else {
        let message = "previous_response_id needs kept responses, and this server keeps none: start it with --store, or send the earlier items as input";
        return Err(Failure::invalid(field, message));
    };
    let found = transcripts.get(owner, id, Instant::now());
    let found = found.ok_or_else(|| Failure::not_stored("response", id, Some(field)))?;
    let (bytes, limit) = (found.input.len() + body_bytes, app.limits.max_body_bytes);
    if bytes as u64 > limit {
        let message = format!(
            "previous_response_id has a chat of {bytes} bytes with this request, more than the limit of {limit} for a body"
        );
        return Err(Failure::invalid(field, message));
    }
    let mut items: Vec<Value> = serde_json::from_str(&found.input).map_err(Failure::internal)?;
    let response: Output = serde_json::from_str(&found.response).map_err(Failure::internal)?;
    items.extend(response.output);
    Ok(items)
}

/// The field of a stored response that a continued chat needs: its output items.
#[derive(Deserialize)]
struct Output {
    output: Vec<Value>,
}

/// Returns the store of responses, and the owner that `headers` identify. Requests for stored responses have no
/// `cache_salt`, so responses to requests with a salt are not found. Returns an error if no responses are stored.
fn kept(app: &App, headers: &HeaderMap) -> Result<(Arc<Transcripts>, Owner), Failure> {
    let Some(transcripts) = app.transcripts.clone() else {
        let message = "this server keeps no responses: start it with --store";
        return Err(Failure::invalid("response_id", message));
    };
    let owner = Owner {
        key: app.keys.as_ref().and_then(|keys| keys.holder(headers)),
        salt: String::new(),
    };
    Ok((transcripts, owner))
}

fn found(app: &App, headers: &HeaderMap, id: &str) -> Result<Transcript, Failure> {
    let (transcripts, owner) = kept(app, headers)?;
    let found = transcripts.get(&owner, id, Instant::now());
    found.ok_or_else(|| Failure::not_stored("response", id, None))
}

/// `GET /v1/responses/{id}`: returns the stored response.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let response = found(&app, &headers, &id)?.response;
    Ok(([(header::CONTENT_TYPE, "application/json")], response).into_response())
}

/// `DELETE /v1/responses/{id}`: removes the stored response.
pub(super) async fn forget(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let (transcripts, owner) = kept(&app, &headers)?;
    if !transcripts.forget(&owner, &id, Instant::now()) {
        return Err(Failure::not_stored("response", &id, None));
    }
    Ok(Json(
        json!({"id": id, "object": "response", "deleted": true}),
    ))
}

/// `GET /v1/responses/{id}/input_items`: returns a page of the stored response's input items, latest first unless
/// `order` is `asc`, as in OpenAI's API.
pub(super) async fn input_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Json<Value>, Failure> {
    let page = Page::parse(query.as_deref(), 20, 100, &["order", "include"])?;
    let input = found(&app, &headers, &id)?.input;
    // A long chat takes a while, which the async workers do not have.
    let bytes = input.len();
    let listed = move || list(&input, &page);
    app.blocking(bytes, listed).await.map(Json)
}

fn list(input: &str, page: &Page) -> Result<Value, Failure> {
    let mut items: Vec<Value> = serde_json::from_str(input).map_err(Failure::internal)?;
    for (index, item) in items.iter_mut().enumerate() {
        if let Value::Object(item) = item {
            item.entry("type").or_insert("message".into());
            item.entry("id")
                .or_insert_with(|| format!("item_{index}").into());
        }
    }
    if !page.is_ascending {
        items.reverse();
    }
    page.of(items)
}

/// `POST /v1/responses/{id}/cancel`: always an error, since only background responses can be cancelled, and there are
/// none.
pub(super) async fn cancel(Path(id): Path<String>) -> Failure {
    let message = format!(
        "the response {} does not run in the background: close its connection to cancel it",
        clip(&id)
    );
    Failure::invalid("response_id", message)
}
