//! An answer as server-sent events.
//!
//! ```text
//!   data: {… "delta": {"role": "assistant", "content": ""} …}     with the first text (chat only)
//!   data: {… "delta": {"content": "Hel"} …}                       one per piece of text, at once
//!   data: {… "delta": {"tool_calls": [{"index": 0, …}]} …}        one per call of a tool, when it is complete
//!   data: {… "delta": {}, "finish_reason": "stop" …}              the end of a choice
//!   data: {… "choices": [], "usage": {…}}                         if asked for
//!   data: [DONE]
//! ```
//!
//! Several choices come interleaved, each under its `index`. A failure after the stream has begun is an event with OpenAI's error object, and no `[DONE]`.
//!
//! One task makes the events of one stream, so that its deadline holds even while the client does not read. It ends
//! when the stream is dropped; it holds the request's [`Pass`](crate::gate::Pass), so whoever waits for the gate to be
//! empty waits for it.

use super::job::Job;
use crate::answer::Answer;
use crate::failure::Failure;
use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use foreword_engine::text::Part;
use futures_util::stream;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::Instrument;

/// The response that streams `job`'s answer.
pub(super) fn stream(job: Job, include_usage: bool) -> Response {
    let (sender, mut receiver) = mpsc::channel(EVENTS);
    tokio::spawn(
        async move {
            tokio::select! {
                biased;
                () = sender.closed() => {}
                () = send_answer(job, include_usage, &sender) => {}
            }
        }
        .in_current_span(),
    );
    let events = stream::poll_fn(move |context| {
        receiver
            .poll_recv(context)
            .map(|event| event.map(Ok::<_, Infallible>))
    });
    // Comments while nothing happens: proxies with idle time-outs stay on, and a client that left is noticed.
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response();
    // nginx and its like would otherwise hold events back.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn send_answer(job: Job, include_usage: bool, sender: &mpsc::Sender<Event>) {
    let model = Arc::clone(&job.model);
    let logprobs = job.logprobs;
    let (mut answer, envelope) = job.start(&model);
    // OpenAI's chunks carry an empty usage where the last one will carry a full one.
    let dress = |mut chunk: Value| {
        if include_usage && let Some(chunk) = chunk.as_object_mut() {
            chunk.entry("usage").or_insert(Value::Null);
        }
        Event::default().data(chunk.to_string())
    };
    let outcome: Result<(), Failure> = async {
        let mut opened = vec![false; answer.choices()];
        let mut calls = vec![0; answer.choices()];
        while let Some(piece) = answer.next().await? {
            let index = piece.choice;
            let mut chunks = Vec::new();
            if !std::mem::replace(&mut opened[index], true) {
                chunks.extend(envelope.opening(index));
            }
            // A piece's tokens go with the first chunk of it.
            let mut tokens = Some(&*piece.logprobs).filter(|_| logprobs);
            for part in &piece.parts {
                chunks.push(match part {
                    Part::Text(text) => envelope.text(index, text, tokens),
                    Part::Call(call) => {
                        calls[index] += 1;
                        envelope.call(index, calls[index] - 1, call, tokens)
                    }
                });
                tokens = tokens.map(|_| &[][..]);
            }
            if tokens.is_some_and(|tokens| !tokens.is_empty()) {
                chunks.push(envelope.text(index, "", tokens));
            }
            chunks.extend(piece.end.map(|end| envelope.end(index, end)));
            for chunk in chunks {
                send(sender, dress(chunk), &mut answer).await?;
            }
        }
        if include_usage {
            send(sender, dress(envelope.usage(answer.usage())), &mut answer).await?;
        }
        send(sender, Event::default().data("[DONE]"), &mut answer).await
    }
    .await;
    if let Err(failure) = outcome {
        failure.log();
        // A client that has stopped reading leaves no room for this; it sees the stream end without `[DONE]`.
        let _ = sender.try_send(Event::default().data(failure.body().to_string()));
    }
}

/// Sends one event unless the answer's time is over first. A stream that is gone ends its task by itself.
async fn send(
    sender: &mpsc::Sender<Event>,
    event: Event,
    answer: &mut Answer<'_>,
) -> Result<(), Failure> {
    tokio::select! {
        biased;
        _ = sender.send(event) => Ok(()),
        failure = answer.expired() => Err(failure),
    }
}

/// Events made and not yet written. Small: what a slow client has not read stays in the engine's channel.
const EVENTS: usize = 16;
