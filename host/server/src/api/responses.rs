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
use axum::http::HeaderMap;
use axum::response::sse::Event;
use foreword_engine::text::{Part, ToolCall};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokio::time::Instant;

/// Formats an answer as OpenAI's response object or as its events, and stores the response when it is complete, if
/// required.
pub(super) struct ResponsesShape {
    id: String,
    /// The fields of the response object that do not change: those repeated from the request, the model, the time of
    /// creation, `store`.
    echoed: Map<String, Value>,
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
    /// The input items of the chat so far, including those of the responses that this one continues.
    pub(super) input: Vec<Value>,
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
            echoed,
            output: Vec::new(),
            open: None,
            end: None,
            sequence: 0,
            keep,
        }
    }

    pub(super) fn opening(&mut self) -> Vec<Event> {
        let response = self.response("in_progress", None);
        ["response.created", "response.in_progress"]
            .map(|name| self.event(name, json!({"response": response})))
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
        let last = self.event(name, json!({"response": response}));
        events.push(last);
        events
    }

    pub(super) fn failure(&mut self, failure: &Failure, usage: Usage) -> Event {
        let mut response = self.response("failed", Some(usage));
        response["error"] = json!({"code": "server_error", "message": failure.to_string()});
        self.event("response.failed", json!({"response": response}))
    }

    pub(super) fn whole(&mut self, usage: Usage) -> Value {
        self.complete(usage, &mut Vec::new())
    }

    /// Ends the message that is being written, adding its events to `events`. Returns the complete response, which it
    /// stores if required.
    fn complete(&mut self, usage: Usage, events: &mut Vec<Event>) -> Value {
        let status = match self.end {
            Some(End::Length) => "incomplete",
            _ => "completed",
        };
        if self.output.is_empty() && self.open.is_none() {
            self.begin(events);
        }
        self.close(status, events);
        let mut response = self.response(status, Some(usage));
        if status == "incomplete" {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        } else {
            response["completed_at"] = now().into();
        }
        if let Some(keep) = self.keep.take() {
            let transcript = Transcript {
                response: response.clone(),
                input: keep.input,
            };
            let transcripts = keep.transcripts;
            transcripts.keep(&keep.owner, &self.id, &transcript, Instant::now());
        }
        response
    }

    fn response(&self, status: &str, usage: Option<Usage>) -> Value {
        let mut response = json!({"id": self.id, "object": "response", "status": status});
        if let Value::Object(response) = &mut response {
            response.extend(self.echoed.clone());
            response.insert("error".to_owned(), Value::Null);
            response.insert("incomplete_details".to_owned(), Value::Null);
            response.insert("output".to_owned(), self.output.clone().into());
            let usage = usage.map_or(Value::Null, usage_object);
            response.insert("usage".to_owned(), usage);
        }
        response
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
/// Returns an error if no responses are stored, or `owner` has none with that id.
pub(super) fn earlier(app: &App, owner: &Owner, id: &str) -> Result<Vec<Value>, Failure> {
    let field = "previous_response_id";
    let Some(transcripts) = &app.transcripts else {
        let message = "previous_response_id needs kept responses, and this server keeps none: start it with --store, or send the earlier items as input";
        return Err(Failure::invalid(field, message));
    };
    let found = transcripts.get(owner, id, Instant::now());
    let Transcript { response, input } =
        found.ok_or_else(|| Failure::not_stored("response", id, Some(field)))?;
    let mut items = input;
    if let Some(output) = response["output"].as_array() {
        items.extend(output.iter().cloned());
    }
    Ok(items)
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
) -> Result<Json<Value>, Failure> {
    Ok(Json(found(&app, &headers, &id)?.response))
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
    let mut items = found(&app, &headers, &id)?.input;
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
    Ok(Json(page.of(items)?))
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
