//! An answer as server-sent events.
//!
//! ```text
//!   data: {… "delta": {"role": "assistant", "content": ""} …}     with the first text (chat only)
//!   data: {… "delta": {"content": "Hel"} …}                       one for each piece of text, at once
//!   data: {… "delta": {"tool_calls": [{"index": 0, …}]} …}        one for each complete tool call
//!   data: {… "delta": {}, "finish_reason": "stop" …}              the end of a choice
//!   data: {… "choices": [], "usage": {…}}                         if requested
//!   data: [DONE]
//! ```
//!
//! This is the stream of a chat; those of responses and messages are in [`super::responses`] and [`super::messages`].
//! Several choices are interleaved, each with its `index`. A failure after the stream has begun is an event with the error
//! in the API's format, without a last event.
//!
//! One task makes the events of one stream, so that its deadline holds even while the client does not read. It ends when
//! the stream is dropped. It holds the request's [`Pass`](crate::gate::Pass), so emptying the gate waits for it.

use super::shape::Shape;
use crate::answer::{Answer, Submitted};
use crate::failure::Failure;
use crate::model::Model;
use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::Instrument;

/// Returns the response that streams the answer to what was submitted.
pub(super) fn stream(model: Arc<Model>, shape: Shape, submitted: Submitted) -> Response {
    let (sender, mut receiver) = mpsc::channel(EVENTS);
    tokio::spawn(
        async move {
            tokio::select! {
                biased;
                () = sender.closed() => {}
                () = send_answer(&model, shape, submitted, &sender) => {}
            }
        }
        .in_current_span(),
    );
    let events = stream::poll_fn(move |context| {
        receiver
            .poll_recv(context)
            .map(|event| event.map(Ok::<_, Infallible>))
    });
    // Comments while there are no events: proxies with idle time-outs keep the connection, and a disconnected client is
    // noticed.
    let mut response = Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response();
    // nginx and similar proxies would otherwise buffer events.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn send_answer(
    model: &Model,
    mut shape: Shape,
    submitted: Submitted,
    sender: &mpsc::Sender<Event>,
) {
    let mut answer = Answer::new(model, submitted);
    let outcome: Result<(), Failure> = async {
        for event in shape.opening() {
            send(sender, event, &mut answer).await?;
        }
        while let Some(piece) = answer.next().await? {
            for event in shape.piece(piece, answer.usage()) {
                send(sender, event, &mut answer).await?;
            }
        }
        for event in shape.finish(answer.usage()) {
            send(sender, event, &mut answer).await?;
        }
        Ok(())
    }
    .await;
    if let Err(failure) = outcome {
        failure.log();
        // A client that has stopped reading leaves no room for this event; its stream ends without a last event.
        let _ = sender.try_send(shape.failure(&failure, answer.usage()));
    }
}

/// Sends one event unless the answer's deadline comes first. If the stream was dropped, its task ends elsewhere.
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

/// Most events not yet written. Small, so that a slow client's backlog stays in the engine's channel.
const EVENTS: usize = 16;
