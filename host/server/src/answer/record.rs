//! The record of one answer: counts and times, but no text. It is reported to metrics, log and trace when it is
//! dropped.

use super::End;
use crate::failure::Failure;
use crate::metrics::{GenerationOutcome, Metrics};
use crate::spans::RequestSpan;
use opentelemetry::KeyValue;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::time::Instant;

/// Token counts of an answer so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompt, counted once however many choices the answer has.
    pub prompt: u32,
    /// Prompt tokens that were found in the cache for the first choice.
    pub cached: u32,
    /// Generated tokens of all choices together, without those that end an answer.
    pub completion: u32,
}

/// The record of one answer's counts and times, reported to metrics, log and trace when it is dropped. The log line has
/// the request id of the current span.
pub struct Record {
    metrics: Arc<Metrics>,
    span: Option<RequestSpan>,
    arrival: Instant,
    submitted: Instant,
    started: Option<Instant>,
    usage: Usage,
    first_token: Option<Instant>,
    /// For each choice, the time of its last token.
    last_tokens: Vec<Option<Instant>>,
    /// Number of choices that have ended.
    ended: usize,
    /// True if any choice ended because it reached its maximum length.
    cut: bool,
    outcome: GenerationOutcome,
}

impl Record {
    /// Returns the record of a request that arrived at `arrival` and is submitted to the engine now.
    pub fn new(
        metrics: Arc<Metrics>,
        arrival: Instant,
        prompt_tokens: u32,
        choices: usize,
    ) -> Self {
        Self {
            metrics,
            span: None,
            arrival,
            submitted: Instant::now(),
            started: None,
            usage: Usage {
                prompt: prompt_tokens,
                ..Usage::default()
            },
            first_token: None,
            last_tokens: vec![None; choices],
            ended: 0,
            cut: false,
            outcome: GenerationOutcome::Cancelled,
        }
    }

    /// Returns the record with `span`, to which it is also reported; `None` for no span.
    #[must_use]
    pub fn traced_by(mut self, span: Option<RequestSpan>) -> Self {
        self.span = span;
        self
    }

    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    pub(super) fn start(&mut self, cached_tokens: u32) {
        self.usage.cached = cached_tokens;
        let now = Instant::now();
        self.started = Some(now);
        self.metrics
            .queue_seconds
            .observe((now - self.submitted).as_secs_f64());
        self.metrics
            .prompt_tokens
            .observe(f64::from(self.usage.prompt));
        self.metrics.cached_tokens.observe(f64::from(cached_tokens));
    }

    pub(super) fn token(&mut self, choice: usize) {
        self.usage.completion += 1;
        let now = Instant::now();
        if let Some(last) = self.last_tokens[choice].replace(now) {
            self.metrics
                .between_tokens_seconds
                .observe((now - last).as_secs_f64());
        }
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.metrics
                .first_token_seconds
                .observe((now - self.arrival).as_secs_f64());
        }
    }

    /// Records the end of a choice. When the last one has ended, sets the outcome of the answer.
    pub(super) fn end(&mut self, end: End) {
        self.ended += 1;
        self.cut |= end == End::Length;
        if self.ended == self.last_tokens.len() {
            self.outcome = if self.cut {
                GenerationOutcome::Length
            } else {
                GenerationOutcome::Stop
            };
        }
    }

    pub(super) fn fail(&mut self, failure: Failure) -> Failure {
        self.outcome = match failure {
            Failure::Timeout { .. } => GenerationOutcome::TimedOut,
            Failure::Stopping => GenerationOutcome::Cut,
            _ => GenerationOutcome::Failed,
        };
        failure
    }

    /// Adds the counts to `span`, and a child span for each phase (queue, prefill, decode) that the request reached.
    fn trace(&self, span: &RequestSpan) {
        let tokens = |name, tokens| KeyValue::new(name, i64::from(tokens));
        span.set([
            tokens("gen_ai.usage.input_tokens", self.usage.prompt),
            tokens("gen_ai.usage.output_tokens", self.usage.completion),
            tokens("foreword.cached_tokens", self.usage.cached),
            KeyValue::new("foreword.choices", self.last_tokens.len() as i64),
            KeyValue::new("foreword.outcome", self.outcome.name()),
        ]);
        if matches!(
            self.outcome,
            GenerationOutcome::Failed | GenerationOutcome::TimedOut | GenerationOutcome::Cut
        ) {
            span.fail();
        }
        // Converts monotonic times to wall-clock times.
        let (now, wall) = (Instant::now(), SystemTime::now());
        let at = |moment: Instant| wall - (now - moment);
        let started = self.started.unwrap_or(now);
        span.part("queue", at(self.submitted), at(started));
        if self.started.is_some() {
            let first = self.first_token.unwrap_or(now);
            span.part("prefill", at(started), at(first));
        }
        let last = self.last_tokens.iter().flatten().max();
        if let (Some(first), Some(last)) = (self.first_token, last) {
            span.part("decode", at(first), at(*last));
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(span) = &self.span {
            self.trace(span);
        }
        let total = self.arrival.elapsed();
        self.metrics.ended(self.outcome);
        self.metrics.request_seconds.observe(total.as_secs_f64());
        let first_token_us = self
            .first_token
            .map(|first| (first - self.arrival).as_micros());
        tracing::info!(
            outcome = self.outcome.name(),
            prompt_tokens = self.usage.prompt,
            cached_tokens = self.usage.cached,
            completion_tokens = self.usage.completion,
            choices = self.last_tokens.len(),
            first_token_us,
            total_us = total.as_micros(),
            "generation"
        );
    }
}
