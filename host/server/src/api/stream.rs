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
//! That is a chat's; what a response and a message send is in [`super::responses`] and [`super::messages`]. Several choices come interleaved, each under its
//! `index`. A failure after the stream has begun is an event with the error in the API's own words, and no last event.
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
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::Instrument;

/// The response that streams `job`'s answer.
pub(super) fn stream(job: Job) -> Response {
    let (sender, mut receiver) = mpsc::channel(EVENTS);
    tokio::spawn(
        async move {
            tokio::select! {
                biased;
                () = sender.closed() => {}
                () = send_answer(job, &sender) => {}
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

async fn send_answer(job: Job, sender: &mpsc::Sender<Event>) {
    let model = Arc::clone(&job.model);
    let (mut answer, mut shape) = job.start(&model);
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
        // A client that has stopped reading leaves no room for this; it sees the stream end without its last event.
        let _ = sender.try_send(shape.failure(&failure, answer.usage()));
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
