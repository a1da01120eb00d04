//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API, and its errors.
//!
//! ```text
//!   event: message_start         the message, empty; its usage has the tokens read from the cache
//!   event: content_block_start   one for each text and each tool call
//!   event: ping                  after the first block starts
//!   event: content_block_delta   text_delta, input_json_delta
//!   event: content_block_stop
//!   event: message_delta         stop_reason, the whole usage
//!   event: message_stop
//! ```
//!
//! `input_tokens` counts the prompt's computed tokens; with `cache_read_input_tokens` it adds up to the prompt.

use super::{App, tokens};
use crate::answer::{End, Piece, Usage};
use crate::failure::{Failure, Wording};
use crate::ids::random_id;
use crate::request::{MessagesRequest, anthropic};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use foreword_engine::text::Part;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/messages/count_tokens`: returns the number of tokens of a chat's prompt.
pub(super) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, Failure> {
    let counted = tokens::work(&app, request, |model, body| {
        let chat = MessagesRequest::to_count(body)?.0;
        model.check_name(chat.options.model.as_deref())?;
        let tokens = model.chat_tokens(&chat)?.len();
        tokens::to_body(&json!({"input_tokens": tokens}))
    });
    let renamed = |failure: Failure| failure.renamed(anthropic::NAMES);
    counted.await.map_err(renamed)
}

/// Formats an answer as Anthropic's message object, complete or as events.
pub(super) struct MessagesShape {
    id: String,
    model: String,
    /// The content blocks of the message so far. If `open`, the last one may still grow and its `content_block_stop`
    /// was not sent.
    content: Vec<Value>,
    open: bool,
    started: bool,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
}

impl MessagesShape {
    pub(super) fn new(model: &str) -> Self {
        Self {
            id: format!("msg_{}", random_id()),
            model: model.to_owned(),
            content: Vec::new(),
            open: false,
            started: false,
            stop_reason: None,
            stop_sequence: None,
        }
    }

    pub(super) fn piece(&mut self, piece: Piece, usage: Usage) -> Vec<Event> {
        let mut events = self.start(usage);
        for part in piece.parts {
            match part {
                Part::Text(text) if text.is_empty() => {}
                Part::Text(text) => self.text(&text, &mut events),
                Part::Call(call) => {
                    self.close(&mut events);
                    let index = self.content.len();
                    let mut block = json!({
                        "type": "tool_use",
                        "id": format!("toolu_{}", random_id()),
                        "name": call.name,
                        "input": {},
                    });
                    self.begin(&block, &mut events);
                    let delta = json!({"type": "input_json_delta", "partial_json": call.arguments});
                    events.push(delta_event(index, &delta));
                    // Arguments that are not an object are still a call; the client receives them as written.
                    block["input"] = serde_json::from_str(&call.arguments)
                        .unwrap_or_else(|_| Value::String(call.arguments));
                    self.content.push(block);
                    self.open = true;
                }
            }
        }
        if let Some(end) = piece.end {
            self.stop_reason = Some(match end {
                End::Length => "max_tokens",
                End::Calls => "tool_use",
                End::Stop if piece.stopped_by.is_some() => "stop_sequence",
                End::Stop => "end_turn",
            });
            self.stop_sequence = piece.stopped_by;
        }
        events
    }

    pub(super) fn finish(&mut self, usage: Usage) -> Vec<Event> {
        let mut events = self.start(usage);
        self.close(&mut events);
        let delta = json!({"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence});
        events.push(event(
            "message_delta",
            json!({"type": "message_delta", "delta": delta, "usage": usage_object(usage)}),
        ));
        events.push(event("message_stop", json!({"type": "message_stop"})));
        events
    }

    pub(super) fn whole(&mut self, usage: Usage) -> Value {
        let content = std::mem::take(&mut self.content);
        self.message(content, usage)
    }

    fn message(&self, content: Vec<Value>, usage: Usage) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "usage": usage_object(usage),
        })
    }

    /// Returns the event `message_start` at the first call, and nothing later. It is sent with the first piece of the
    /// answer, when the number of cached tokens is known.
    fn start(&mut self, usage: Usage) -> Vec<Event> {
        if std::mem::replace(&mut self.started, true) {
            return Vec::new();
        }
        let mut message = self.message(Vec::new(), usage);
        message["stop_reason"] = Value::Null;
        let start = json!({"type": "message_start", "message": message});
        vec![event("message_start", start)]
    }

    fn text(&mut self, text: &str, events: &mut Vec<Event>) {
        let is_text = self
            .content
            .last()
            .is_some_and(|last| last["type"] == "text");
        if !self.open || !is_text {
            self.close(events);
            let block = json!({"type": "text", "text": ""});
            self.begin(&block, events);
            self.content.push(block);
            self.open = true;
        }
        let index = self.content.len().saturating_sub(1);
        events.push(delta_event(
            index,
            &json!({"type": "text_delta", "text": text}),
        ));
        if let Some(Value::String(whole)) = self.content.last_mut().map(|last| &mut last["text"]) {
            whole.push_str(text);
        }
    }

    fn begin(&self, block: &Value, events: &mut Vec<Event>) {
        let index = self.content.len();
        let start = json!({"type": "content_block_start", "index": index, "content_block": block});
        events.push(event("content_block_start", start));
        if index == 0 {
            events.push(event("ping", json!({"type": "ping"})));
        }
    }

    fn close(&mut self, events: &mut Vec<Event>) {
        if std::mem::take(&mut self.open) {
            let index = self.content.len().saturating_sub(1);
            let stop = json!({"type": "content_block_stop", "index": index});
            events.push(event("content_block_stop", stop));
        }
    }
}

fn delta_event(index: usize, delta: &Value) -> Event {
    let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
    event("content_block_delta", delta)
}

fn event(name: &str, data: Value) -> Event {
    Event::default().event(name).data(data.to_string())
}

fn usage_object(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached.min(usage.prompt),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    })
}

/// Returns the `error` event that ends a stream of Anthropic's API after a failure.
pub(super) fn failure_event(failure: &Failure) -> Event {
    event("error", error(failure.status(), &failure.to_string()))
}

fn error(status: StatusCode, message: &str) -> Value {
    let kind = match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        500 => "api_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

/// Middleware that rewrites every error of the routes under `/v1/messages` in Anthropic's format, and sets the response
/// header `request-id`.
pub(super) async fn format_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_theirs = path == "/v1/messages" || path.starts_with("/v1/messages/");
    let response = next.run(request).await;
    if !is_theirs {
        return response;
    }
    let id = response.headers().get("x-request-id").cloned();
    let mut response = match response.extensions().get::<Wording>() {
        None => response,
        Some(Wording(message)) => {
            let mut body = error(response.status(), message);
            body["request_id"] = match &id {
                Some(id) => String::from_utf8_lossy(id.as_bytes()).into(),
                None => Value::Null,
            };
            let (mut parts, _) = response.into_parts();
            parts.headers.remove(header::CONTENT_LENGTH);
            parts.headers.remove(header::CONTENT_TYPE);
            (parts.status, parts.headers, Json(body)).into_response()
        }
    };
    if let Some(id) = id {
        response
            .headers_mut()
            .insert(HeaderName::from_static("request-id"), id);
    }
    response
}
