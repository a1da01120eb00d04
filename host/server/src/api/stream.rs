//! An answer as server-sent events.
//!
//! ```text
//!   data: {… "delta": {"role": "assistant", "content": ""} …}     before a choice's first piece (chat only)
//!   data: {… "delta": {"content": "Hel"} …}                       one for each piece of text, at once
//!   data: {… "delta": {"tool_calls": [{"index": 0, …}]} …}        one for each complete tool call
//!   data: {… "delta": {}, "finish_reason": "stop" …}              the end of a choice
//!   data: {… "choices": [], "usage": {…}}                         if requested
//!   data: [DONE]
//! ```
//!
//! This is the stream of a chat; those of responses and messages are in [`super::responses`] and [`super::messages`].
//! The events of several choices are interleaved, each with its `index`. After a failure, an event with the error in
//! the API's format ends the stream, without `[DONE]`.
//!
//! One task makes the events of one stream, so its deadline holds even while the client does not read. The task ends
//! when the stream is dropped, and holds the request's [`Pass`](crate::gate::Pass), so the gate waits for it.

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

/// Returns a response that streams the answer to a submitted request as server-sent events.
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
    // Sends comments while there are no events, so that proxies do not time out and a disconnected client is noticed.
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
        // If the client has stopped reading, there is no room for this event, and the stream just ends.
        let _ = sender.try_send(shape.failure(&failure, answer.usage()));
    }
}

/// Sends an event to the stream. Fails if the answer's deadline passes first, or the server aborts its requests. When
/// the client disconnects, the task is dropped.
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

/// Maximum number of events of one stream that wait to be written. It is low, so a slow client's backlog stays in the
/// engine's channel.
const EVENTS: usize = 16;
