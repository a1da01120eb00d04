//! From one generation's events to pieces of text, an end, and a record of how it went.
//!
//! ```text
//!   Event::Started ──▶ cached tokens, time in queue
//!   Event::Token ────▶ decoder ──▶ stop strings ──▶ Piece { text, end: None }
//!   Event::Finished ─▶ what both held back ───────▶ Piece { text, end: Some(…) }
//!   deadline, cut ───▶ Failure
//! ```
//!
//! Dropping an [`Answer`] cancels its generation, whatever its state: a client that goes away costs no more steps.

use crate::failure::Failure;
use crate::gate::Pass;
use crate::metrics::{Metrics, Outcome};
use foreword_engine::engine::{Event, FinishReason, Generation};
use foreword_engine::text::{Decoder, StopStrings};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An answer in the making. Holds its request's place inside until it is dropped.
pub struct Answer<'m> {
    generation: Generation,
    decoder: Decoder<'m>,
    stops: StopStrings,
    pass: Pass,
    time: TimeLimit,
    record: Record,
}

/// When a request came and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimit {
    /// When its head was read.
    pub arrival: Instant,
    /// How long it may take from there.
    pub limit: Duration,
}

impl TimeLimit {
    /// When it must be over.
    pub fn deadline(&self) -> Instant {
        self.arrival + self.limit
    }
}

/// Text that may be shown now, maybe empty, and the end if this is the last of it.
#[derive(Debug)]
pub struct Piece {
    /// See above.
    pub text: String,
    /// Why the answer ended; `None` while it goes on.
    pub end: Option<FinishReason>,
}

/// Tokens counted, as far as the answer has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Of those, served from the cache.
    pub cached: u32,
    /// Tokens of the answer; the token that ended it does not count.
    pub completion: u32,
}

impl<'m> Answer<'m> {
    /// Follows `generation`, which was just submitted; `decoder` is a fresh one.
    pub fn new(
        generation: Generation,
        decoder: Decoder<'m>,
        stop: Vec<String>,
        pass: Pass,
        time: TimeLimit,
        record: Record,
    ) -> Self {
        Self {
            generation,
            decoder,
            stops: StopStrings::new(stop),
            pass,
            time,
            record,
        }
    }

    /// The next piece. Not to be called after the end or a failure. May be cancelled and called again.
    ///
    /// # Errors
    /// When the engine failed, the time is over, or the server cuts its requests off.
    pub async fn next(&mut self) -> Result<Piece, Failure> {
        loop {
            let event = tokio::select! {
                biased;
                event = self.generation.next() => event,
                failure = expired(&mut self.pass, self.time) => return Err(self.record.fail(failure)),
            };
            match event {
                Some(Event::Started { cached_tokens }) => self.record.start(cached_tokens),
                Some(Event::Token(token)) => {
                    self.record.token();
                    let text = self.decoder.push(token);
                    let (text, met) = self.stops.push(&text);
                    if met {
                        return Ok(self.end(text, FinishReason::Stop));
                    }
                    if !text.is_empty() {
                        return Ok(Piece { text, end: None });
                    }
                }
                Some(Event::Finished(reason)) => {
                    let (mut text, met) = self.stops.push(&self.decoder.finish());
                    if met {
                        return Ok(self.end(text, FinishReason::Stop));
                    }
                    text.push_str(&self.stops.finish());
                    return Ok(self.end(text, reason));
                }
                Some(Event::Failed(cause)) => {
                    return Err(self.record.fail(Failure::internal(cause)));
                }
                None => {
                    return Err(self
                        .record
                        .fail(Failure::internal("the engine ended within an answer")));
                }
            }
        }
    }

    /// Returns, with the reason, when the answer must not go on.
    pub async fn expired(&mut self) -> Failure {
        let failure = expired(&mut self.pass, self.time).await;
        self.record.fail(failure)
    }

    /// The tokens so far.
    pub fn usage(&self) -> Usage {
        self.record.usage
    }

    fn end(&mut self, text: String, reason: FinishReason) -> Piece {
        self.record.outcome = match reason {
            FinishReason::Stop | FinishReason::Prefilled => Outcome::Stop,
            FinishReason::Length => Outcome::Length,
        };
        Piece {
            text,
            end: Some(reason),
        }
    }
}

async fn expired(pass: &mut Pass, time: TimeLimit) -> Failure {
    tokio::select! {
        () = tokio::time::sleep_until(time.deadline()) => Failure::Timeout { limit: time.limit },
        () = pass.cut() => Failure::Stopping,
    }
}

/// How one generation went: written to metrics and log when dropped. Holds counts and times, no text. The log's line
/// gets its request id from the span that it is dropped in.
pub struct Record {
    metrics: Arc<Metrics>,
    arrival: Instant,
    submitted: Instant,
    usage: Usage,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    outcome: Outcome,
}

impl Record {
    /// Of a request that came at `arrival` and is being submitted now, with a prompt of `prompt_tokens`.
    pub fn new(metrics: Arc<Metrics>, arrival: Instant, prompt_tokens: u32) -> Self {
        Self {
            metrics,
            arrival,
            submitted: Instant::now(),
            usage: Usage {
                prompt: prompt_tokens,
                ..Usage::default()
            },
            first_token: None,
            last_token: None,
            outcome: Outcome::Cancelled,
        }
    }

    fn start(&mut self, cached_tokens: u32) {
        self.usage.cached = cached_tokens;
        self.metrics
            .queue_seconds
            .observe(self.submitted.elapsed().as_secs_f64());
    }

    fn token(&mut self) {
        self.usage.completion += 1;
        let now = Instant::now();
        self.last_token = Some(now);
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.metrics
                .first_token_seconds
                .observe((now - self.arrival).as_secs_f64());
        }
    }

    fn fail(&mut self, failure: Failure) -> Failure {
        self.outcome = match failure {
            Failure::Timeout { .. } => Outcome::TimedOut,
            Failure::Stopping => Outcome::Cut,
            _ => Outcome::Failed,
        };
        failure
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let total = self.arrival.elapsed();
        self.metrics.ended(self.outcome);
        self.metrics.request_seconds.observe(total.as_secs_f64());
        if let (Some(first), Some(last)) = (self.first_token, self.last_token)
            && self.usage.completion > 1
        {
            let gaps = f64::from(self.usage.completion - 1);
            self.metrics
                .token_seconds
                .observe((last - first).as_secs_f64() / gaps);
        }
        let first_token_us = self
            .first_token
            .map(|first| (first - self.arrival).as_micros());
        tracing::info!(
            outcome = self.outcome.name(),
            prompt_tokens = self.usage.prompt,
            cached_tokens = self.usage.cached,
            completion_tokens = self.usage.completion,
            first_token_us,
            total_us = total.as_micros(),
            "generation"
        );
    }
}
