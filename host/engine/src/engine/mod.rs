//! The running engine: a handle, and a thread that owns cache, scheduler and backend.
//!
//! This module knows requests and their events. Arithmetic, pages and plans belong to the other modules.
//!
//! ```text
//!   Engine (clones)            worker, owns the device        core (no threads, no locks, no device)
//!   submit ──▶ inbox, bounded ──▶ wait, take ─────▶ prepare: cancel, plan, preempt, admit
//!                                 run the work   ◀─┘
//!   stats  ◀── Mutex<Inbox>   ◀── publish    ◀──── complete: choose tokens, keep pages
//!   Generation ◀── its own channel, room for every event ◀── events, after the counters are published
//! ```
//!
//! * A caller that never reads delays no other: its channel has room for all events that its request can cause.
//! * When an event has been received, [`Engine::stats`] already counts it.
//! * Waiting requests are ordered by fair shares between tenants, then by what is cached ([`crate::scheduler`]).
//! * When the device fails or panics, the requests of that step are computed again, a bounded number of times, and the
//!   engine continues. When the device does not return at all, a watchdog takes the core from the waiting thread and
//!   continues on another device ([`Engine::guarded`]).

mod admission;
mod core;
mod failure;
pub mod feed;
mod parking;
pub mod profile;
mod prompt_scores;
mod stepper;
#[cfg(test)]
mod tests;
mod watchdog;
mod work;
mod worker;

pub use self::failure::Failure;
pub use self::stepper::Stepper;
pub use self::watchdog::BackendFactory;
pub use self::worker::Health;
pub use crate::scheduler::Rule;

use self::admission::Admission;
use self::core::{Core, Sequence};
use self::feed::Feed;
use self::prompt_scores::PromptScores;
use self::worker::{Clock, Shared};
use crate::TokenId;
use crate::backend::Backend;
use crate::cache::{CacheConfig, CacheStats, CacheUse, DocumentPath};
use crate::sampling::{Constraint, Logprobs, Sampler, Sampling};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Configuration of an engine. A `max_…` field of 0 counts as 1 unless its documentation says otherwise.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Maximum number of waiting requests of all tenants; one more is refused with [`SubmitError::QueueFull`].
    pub max_waiting: u32,
    /// Maximum number of waiting requests of one tenant; one more is refused with [`SubmitError::TenantQueueFull`].
    pub max_waiting_per_tenant: u32,
    /// The rule that orders a tenant's waiting requests for admission.
    pub order: Rule,
    /// Maximum number of sequences that run (hold pages and are computed) at the same time.
    pub max_running: u32,
    /// Maximum number of running sequences of one tenant; its other requests wait, even if fewer than `max_running` run.
    /// A sequence that was preempted, or is computed again after a device failure, is admitted whatever this limit is.
    pub max_running_per_tenant: u32,
    /// Maximum number of tokens computed in one step, over all its sequences; longer prompts are prefilled in chunks.
    /// With fewer than `max_running`, the youngest sequences wait while the others decode.
    pub max_step_tokens: u32,
    /// Maximum number of tokens of a step, in place of `max_step_tokens` if it is larger, in steps in which no sequence
    /// decodes and no request is a [`Kind::Prefill`]; `None` for the same limit. Such a step delays no decoding
    /// sequence, and fewer steps read the weights less often.
    pub max_prefill_step_tokens: Option<u32>,
    /// Maximum number of times that a request is computed again after device failures; the next failure ends it. With
    /// 0, the first failure does.
    pub max_retries: u32,
    /// A [`Kind::Prefill`] is accepted only while less than this waits, of all tenants and kinds (RAGCache, algorithm
    /// 2).
    pub max_prefill_batch: PrefillBatch,
    /// Maximum time that the device may take for a step before it counts as stuck; `None` sets no limit. Choose it
    /// longer than the longest step of a working device.
    pub watchdog: Option<Duration>,
    /// True if requests start from cached prefixes and leave their own prefixes in the cache. If false, every prompt is
    /// computed in full.
    pub prefix_caching: bool,
    /// Configuration of the prefix cache: eviction policy, and copies of pages in host memory and on disk.
    pub cache: CacheConfig,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_waiting: 256,
            max_waiting_per_tenant: u32::MAX,
            order: Rule::CachedFirst {
                window: Rule::WINDOW,
            },
            max_running: 8,
            max_running_per_tenant: u32::MAX,
            max_step_tokens: 512,
            max_prefill_step_tokens: None,
            max_retries: 2,
            max_prefill_batch: PrefillBatch::Requests(4),
            watchdog: None,
            prefix_caching: true,
            cache: CacheConfig::default(),
        }
    }
}

/// The size of a batch of waiting prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillBatch {
    /// A number of requests; 0 for an empty batch.
    Requests(u32),
    /// As many tokens of prompts as use the device fully or fit into its pool of pages, whichever is smaller (RAGCache,
    /// section 5.3). By [`CacheConfig::cost`], a number of tokens uses the device fully if each takes at most 10 %
    /// longer than in the best number, up to a step's. Without it, a step's tokens do.
    Derived,
}

/// A request to generate an answer to a prompt, or to compute a prompt only. The default has an empty prompt, which is
/// refused.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The purpose of the request: to generate an answer, or only to prefill the cache.
    pub kind: Kind,
    /// The prompt, at least one token.
    pub prompt: Vec<TokenId>,
    /// Maximum number of tokens to generate: at least one, unless `prompt_logprobs` is set; ignored for
    /// [`Kind::Prefill`].
    pub max_tokens: u32,
    /// Sampling parameters, such as temperature, top-p and seed.
    pub sampling: Sampling,
    /// Tokens that end the generation when they are chosen; they are not reported.
    pub stop_tokens: Vec<TokenId>,
    /// Grammar that the answer must follow; `None` allows any text.
    pub constraint: Option<Constraint>,
    /// Number of most likely tokens whose log-probabilities are reported with each generated token; `None` reports no
    /// log-probabilities at all.
    pub top_logprobs: Option<u32>,
    /// Number of most likely tokens whose log-probabilities are reported with each token of the prompt; `None` reports
    /// no log-probabilities of the prompt. If set, all positions that score a token are computed, even if they are
    /// cached, and `speculation` is ignored.
    pub prompt_logprobs: Option<u32>,
    /// Number of the prompt's last tokens whose log-probabilities are reported, if `prompt_logprobs` is set; `None` for
    /// the whole prompt.
    pub scored_tokens: Option<u32>,
    /// Name that isolates tenants in the prefix cache: requests with different salts share no KV state. At most
    /// [`MAX_SALT_BYTES`] bytes.
    pub cache_salt: String,
    /// The prompt's documents and the token indices at which they end; `None` if unknown.
    pub documents: Option<DocumentPath>,
    /// The request's permissions in the prefix cache; ignored if [`EngineConfig::prefix_caching`] is false.
    pub caching: PrefixCaching,
    /// Name of the tenant. All tenants with waiting requests get equal shares of the device, and their waiting requests
    /// are limited.
    pub tenant: Arc<str>,
    /// Time at which the answer becomes useless: the request then ends with [`Failure::Expired`], waiting or running.
    /// `None` for no deadline.
    pub deadline: Option<Instant>,
    /// Links speculative prefills to the request that they anticipate: they carry the same id and `cache_salt`. Only
    /// the newest request with an id is computed. If its prompt equals the previous one's, it takes over that request's
    /// progress; otherwise it supersedes that request once the current step is done. `None` for a request without
    /// speculation.
    pub speculation: Option<SpeculationId>,
}

/// A request's permissions in the prefix cache. By default it starts from a cached prefix, and its own pages stay
/// cached. The fields follow `GenerateParams` in ADR-011 of the repository ruvnet/RuVector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCaching {
    /// True if the request may start from a cached prefix of its prompt.
    pub reads: bool,
    /// True if later requests may reuse the pages that this request computes.
    pub keeps: bool,
    /// Minimum number of tokens of a prompt whose pages stay in the cache; those of shorter prompts do not, even if
    /// `keeps` is true.
    pub min_tokens: u32,
}

impl Default for PrefixCaching {
    fn default() -> Self {
        Self {
            reads: true,
            keeps: true,
            min_tokens: 0,
        }
    }
}

/// The purpose of a request: to generate an answer, or only to fill the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Generates an answer: tokens after the prompt.
    #[default]
    Answer,
    /// Warms up the cache: only the prompt is computed, and the request ends with [`FinishReason::Prefilled`]. Accepted
    /// only while few requests wait, see [`EngineConfig::max_prefill_batch`]. With a [`Request::speculation`], its
    /// pages stay in use after that until a request with the same id arrives, the generation is dropped, its deadline
    /// passes or pages run out; until then [`Generation::next`] does not return the final `None`.
    Prefill,
}

/// Identifies a request that speculative prefills anticipate; chosen by the caller, see [`Request::speculation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpeculationId(pub u64);

/// An event of a request that runs. Events come in this order: `Started`, `Prompt`, `Token`s, then `Finished` or
/// `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The prompt was admitted, and its computation begins.
    Started {
        /// Number of the prompt's leading tokens that were served from the cache, at most the prompt's length less one.
        cached_tokens: u32,
    },
    /// Log-probabilities of the prompt's tokens, if [`Request::prompt_logprobs`] is set: one entry for each token
    /// except the first, or for the last [`Request::scored_tokens`].
    Prompt(Vec<Logprobs>),
    /// The next token of the answer was generated.
    Token {
        /// The id of the generated token.
        id: TokenId,
        /// Log-probabilities of the token and of alternatives; `None` unless [`Request::top_logprobs`] is set.
        logprobs: Option<Box<Logprobs>>,
    },
    /// The request is complete, for this reason.
    Finished(FinishReason),
    /// The engine could not complete the request, for this reason.
    Failed(Failure),
}

/// The reason that a generation ended without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen, or the grammar that the answer must follow allows no further token.
    Stop,
    /// [`Request::max_tokens`] were generated, or the sequence is as long as the model's positions or the page pool
    /// allow.
    Length,
    /// The prompt was computed, and no answer was requested.
    Prefilled,
}

/// The reason that a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Too many requests of all tenants wait; try again later.
    #[error("the queue is full: {limit} requests are waiting")]
    QueueFull {
        /// The configured [`EngineConfig::max_waiting`]: how many requests may wait.
        limit: u32,
        /// Suggested wait: the time in which half of `limit` waiting requests begin to run at the recent pace, at most
        /// 60 s.
        retry_after: Duration,
    },
    /// Too many requests of this tenant wait; try again later.
    #[error("the tenant's share of the queue is full: {limit} of its requests are waiting")]
    TenantQueueFull {
        /// The configured [`EngineConfig::max_waiting_per_tenant`]: how many requests of one tenant may wait.
        limit: u32,
        /// Suggested wait: the time in which half of `limit` waiting requests begin to run at the recent pace, at most
        /// 60 s.
        retry_after: Duration,
    },
    /// A [`Kind::Prefill`] was refused because too many requests wait. The request that it anticipates can still be
    /// submitted.
    #[error("too busy for speculative work: {waiting} requests are waiting")]
    Busy {
        /// Number of waiting requests, which come to the configured [`EngineConfig::max_prefill_batch`] or more.
        waiting: u32,
    },
    /// The prompt is too long: it could not be served at any time.
    #[error("the prompt has {tokens} tokens, more than the {limit} that fit")]
    TooLong {
        /// Number of tokens in the prompt.
        tokens: u32,
        /// Maximum number of tokens in a prompt: the smaller of the model's positions and the tokens that the page pool
        /// holds, less one for the answer.
        limit: u32,
    },
    /// A field of the request has an invalid value; the message says which and why.
    #[error("{0}")]
    Invalid(String),
    /// The engine is stopping or has stopped.
    #[error("the engine is stopping")]
    Stopped,
}

/// Gauges and counters of one engine since its start, as `/metrics` reports them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Requests finished, failed or cancelled so far.
    pub finished: u64,
    /// Requests waiting now, including preempted ones.
    pub waiting: u32,
    /// Number of requests that are running now.
    pub running: u32,
    /// Tokens of prompts so far, counted when a request is first admitted.
    pub prompt_tokens: u64,
    /// Of the `prompt_tokens`, the number that were served from the cache.
    pub cached_tokens: u64,
    /// Of the `cached_tokens`, the number that were loaded from host memory, possibly after a read from
    /// disk.
    pub host_tokens: u64,
    /// Number of tokens generated so far, over all requests.
    pub generated_tokens: u64,
    /// Prefix lookups so far, one per request at its first admission. `partial_hits` and `full_hits` count those that
    /// matched something; the others matched nothing.
    pub lookups: u64,
    /// Lookups so far that matched a part of the prompt.
    pub partial_hits: u64,
    /// Lookups that matched all tokens of the prompt but the last, which is never looked up.
    pub full_hits: u64,
    /// Gauges and counters of the prefix cache, in pages.
    pub cache: CacheStats,
    /// True if prefixes are cached at all, see [`EngineConfig::prefix_caching`].
    pub prefix_caching: bool,
    /// Steps computed so far, without those that failed.
    pub steps: u64,
    /// Histogram of the number of sequences in each step that was computed so far.
    pub step_sizes: StepSizes,
    /// Number of times so far that a running request lost its pages to others and was queued again.
    pub preemptions: u64,
    /// Number of times so far that a request was queued again because the device failed while it ran.
    pub retries: u64,
    /// Number of times so far that all pages on the device were lost: it lost its memory, or was replaced.
    pub devices_lost: u64,
    /// Requests whose deadline passed before they were complete, so far.
    pub expired: u64,
    /// [`Kind::Prefill`] requests accepted so far, except those that took over the progress of an earlier request.
    pub speculations_started: u64,
    /// [`Kind::Prefill`] requests refused so far because too many requests waited, including the times that
    /// [`Engine::takes_speculations`] returned false.
    pub speculations_refused: u64,
    /// Requests so far that took over the progress of an earlier one with the same [`SpeculationId`] and prompt.
    pub speculations_joined: u64,
    /// Unfinished requests so far that a later one with the same [`SpeculationId`] and another prompt superseded.
    pub speculations_superseded: u64,
    /// Unfinished [`Kind::Prefill`] requests that their callers cancelled, so far.
    pub speculations_cancelled: u64,
}

/// Histogram of computed steps by their number of sequences, with buckets that end at powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSizes {
    /// Number of steps with 1 sequence, with 2, with 3 to 4, with 5 to 8, and so on; the last bucket counts all larger
    /// ones.
    pub counts: [u64; 14],
    /// Sum of the numbers of sequences over all steps that were computed so far.
    pub sequences: u64,
}

impl StepSizes {
    fn add(&mut self, sequences: usize) {
        let place = sequences.max(1).next_power_of_two().trailing_zeros() as usize;
        self.counts[place.min(self.counts.len() - 1)] += 1;
        self.sequences += sequences as u64;
    }
}

/// Maximum length of [`Request::cache_salt`], in bytes.
pub const MAX_SALT_BYTES: usize = 1024;

/// A handle on a running engine; clones share the engine. When the last handle is dropped, the engine finishes the
/// requests that it has accepted and stops.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

/// The model's and device's bounds that a request is validated against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    vocabulary: u32,
    /// Maximum number of tokens in a sequence, prompt and answer together.
    capacity: u32,
    /// True if the device can sample tokens, so that no logits are transferred.
    draws: bool,
}

impl Bounds {
    fn of(backend: &dyn Backend) -> Self {
        let shape = backend.shape();
        Self {
            vocabulary: shape.vocabulary,
            capacity: shape.longest_sequence(),
            draws: shape.draws,
        }
    }
}

impl Engine {
    /// Starts an engine with its own thread on `backend`. If the system cannot create the thread, every request is
    /// refused with [`SubmitError::Stopped`].
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig) -> Self {
        Self::launch(backend, None, &config, Arc::new(Instant::now))
    }

    /// Starts an engine as [`Engine::start`] does, with a `factory` of replacement devices. When a step takes longer
    /// than [`EngineConfig::watchdog`], or the device is lost twice without a computed step in between, the engine
    /// continues on a fresh device. Waiting requests keep waiting, and running ones are computed again from the tokens
    /// that they have. A stuck thread keeps its device and is abandoned.
    pub fn guarded(
        backend: Box<dyn Backend>,
        factory: BackendFactory,
        config: EngineConfig,
    ) -> Self {
        Self::launch(backend, Some(factory), &config, Arc::new(Instant::now))
    }

    fn launch(
        backend: Box<dyn Backend>,
        factory: Option<BackendFactory>,
        config: &EngineConfig,
        clock: Clock,
    ) -> Self {
        let shared = Arc::new(Shared::new(&*backend, config, clock));
        let core = Core::new(&*backend, config, shared.bell());
        if let Some(disk) = &config.cache.disk {
            let shared = Arc::downgrade(&shared);
            disk.on_completion(Box::new(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.wake();
                }
            }));
        }
        worker::start(&shared, Box::new(core), backend);
        watchdog::start(&shared, config.watchdog, factory);
        Self {
            handle: Arc::new(Handle { shared }),
        }
    }

    /// Queues a request and returns its [`Generation`], which receives the events.
    ///
    /// # Errors
    /// A [`SubmitError`] says why the request was refused; it is not queued.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        self.handle.shared.submit(request)
    }

    /// Returns whether a [`Kind::Prefill`] would be accepted now, so that a caller can skip preparing one. A refusal
    /// counts among [`Stats::speculations_refused`].
    pub fn takes_speculations(&self) -> bool {
        self.handle.shared.takes_guesses()
    }

    /// Returns the maximum number of requests of one tenant that can wait at once.
    pub fn most_waiting(&self) -> u32 {
        self.handle.shared.most_waiting()
    }

    /// Returns whether the engine serves requests, for health checks.
    pub fn health(&self) -> Health {
        self.handle.shared.health()
    }

    /// Returns the engine's gauges and counters as of its last step.
    pub fn stats(&self) -> Stats {
        self.handle.shared.stats()
    }

    /// Returns the feed of the events of the engine's prefix cache. When an event of a generation has been received,
    /// the feed already contains the cache events that led to it.
    pub fn feed(&self) -> &Arc<Feed> {
        self.handle.shared.feed()
    }

    /// Evicts every cached prefix that no running request uses, from the device, host memory and disk, and returns the
    /// number of device pages freed. Waits for the step in progress. Returns 0 when the engine is stopping or has
    /// stopped.
    pub fn clear_cache(&self) -> u32 {
        self.handle.shared.clear_cache()
    }

    /// Refuses further requests, finishes the queued and running ones, and returns once the engine's thread has ended.
    pub fn shutdown(&self) {
        self.handle.shared.stop();
        self.handle.shared.join();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Request {
    /// Validates the request, which arrives at `now`, takes a place among the waiting requests in `admission` for it,
    /// and splits it as [`Request::accept`] does.
    fn admit(
        self,
        admission: &Arc<Admission>,
        bounds: Bounds,
        bell: &Arc<AtomicU64>,
        now: Instant,
    ) -> Result<(Sequence, Generation), SubmitError> {
        let (mut sequence, generation) = self.accept(bounds, bell)?;
        let tokens = sequence.tokens.len() as u64;
        let place = admission.enter(&sequence.tenant, sequence.kind, tokens, now)?;
        sequence.place = Some(place);
        Ok((sequence, generation))
    }

    /// Validates the request against `bounds` and splits it into the engine's part, a [`Sequence`], and the caller's
    /// part, a [`Generation`]. `bell` counts cancelled generations.
    fn accept(
        self,
        bounds: Bounds,
        bell: &Arc<AtomicU64>,
    ) -> Result<(Sequence, Generation), SubmitError> {
        let invalid = |reason: String| Err(SubmitError::Invalid(reason));
        let tokens = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        let limit = bounds.capacity.saturating_sub(1);
        if tokens == 0 {
            return invalid("the prompt is empty".to_owned());
        }
        if self.max_tokens == 0 && self.kind == Kind::Answer && self.prompt_logprobs.is_none() {
            return invalid("max_tokens is 0, not at least 1".to_owned());
        }
        if self.cache_salt.len() > MAX_SALT_BYTES {
            return invalid(format!(
                "the cache salt has {} bytes, more than {MAX_SALT_BYTES}",
                self.cache_salt.len()
            ));
        }
        if let Some(token) = self
            .prompt
            .iter()
            .find(|token| **token >= bounds.vocabulary)
        {
            return invalid(format!(
                "the prompt has token {token}, not below the vocabulary of {}",
                bounds.vocabulary
            ));
        }
        if tokens > limit {
            return Err(SubmitError::TooLong { tokens, limit });
        }
        if let Some(documents) = &self.documents {
            documents
                .validate(tokens)
                .map_err(|error| SubmitError::Invalid(error.to_string()))?;
        }
        let answer = match self.kind {
            Kind::Answer => self.max_tokens,
            Kind::Prefill => 0,
        };
        let end = tokens.saturating_add(answer).min(bounds.capacity);
        // The channel has room for `Started`, `Prompt`, all tokens, and the end.
        let (sender, receiver) = mpsc::channel((end - tokens) as usize + 3);
        let sampler = Sampler::new(
            self.sampling,
            &self.prompt,
            &self.stop_tokens,
            self.constraint,
            self.top_logprobs,
        );
        let scores = (self.prompt_logprobs)
            .map(|top| PromptScores::new(top, tokens, self.scored_tokens.unwrap_or(tokens)));
        let reads = match (self.caching.reads, &scores) {
            (true, Some(scores)) => scores.unscored(),
            (true, None) => u32::MAX,
            (false, _) => 0,
        };
        let sequence = Sequence {
            tokens: self.prompt,
            end,
            kind: self.kind,
            tenant: self.tenant,
            deadline: self.deadline,
            speculation: self.speculation.filter(|_| self.prompt_logprobs.is_none()),
            sampler,
            scores,
            salt: self.cache_salt.into(),
            documents: self.documents.map(Arc::new),
            cache_use: CacheUse {
                reads,
                keeps: self.caching.keeps && tokens >= self.caching.min_tokens,
            },
            events: sender,
            started: false,
            faults: 0,
            place: None,
            lookup: None,
        };
        Ok((
            sequence,
            Generation {
                events: receiver,
                ended: false,
                bell: bell.clone(),
            },
        ))
    }
}

/// The receiving end of one request's events. Dropping it cancels the request.
pub struct Generation {
    events: mpsc::Receiver<Event>,
    ended: bool,
    /// Number of generations that callers have dropped before their end; shared with the engine, which looks for them
    /// when it changes.
    bell: Arc<AtomicU64>,
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            // The channel is closed before the counter grows, so the engine finds it closed.
            self.events.close();
            self.bell.fetch_add(1, Ordering::Release);
        }
    }
}

impl Generation {
    /// Waits for the next event; returns `None` after the last one. For a speculative [`Kind::Prefill`], that `None`
    /// can take long.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.note(event)
    }

    /// Polls for the next event as [`Generation::next`] does, for callers that wait for several generations at once.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context).map(|event| self.note(event))
    }

    /// Returns the next event if it has already arrived. Returns `None` if it has not, and after the last event.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.events.try_recv() {
            Err(mpsc::error::TryRecvError::Empty) => None,
            event => self.note(event.ok()),
        }
    }

    /// Waits for the next event as [`Generation::next`] does, for callers outside an async runtime.
    ///
    /// # Panics
    /// Panics inside an async runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.note(event)
    }

    /// Passes `event` on, but replaces a channel's end with [`Failure::Stopped`] if no `Finished` or `Failed` came
    /// before it, because the engine's thread died.
    fn note(&mut self, event: Option<Event>) -> Option<Event> {
        match event {
            Some(Event::Finished(_) | Event::Failed(_)) => self.ended = true,
            None if !self.ended => {
                self.ended = true;
                return Some(Event::Failed(Failure::Stopped));
            }
            _ => {}
        }
        event
    }
}
