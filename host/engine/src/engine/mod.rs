//! The running engine: a handle, and behind it one thread that owns cache, scheduler and backend.
//!
//! Knows requests and their events; the arithmetic, the pages and the plan are the other rooms' business.
//!
//! ```text
//!   Engine (clones)            worker, owns the device        core (no threads, no locks, no device)
//!   submit ──▶ inbox, bounded ──▶ wait, take ─────▶ prepare: cancel, plan, preempt, admit
//!                                 run the work   ◀─┘
//!   stats  ◀── Mutex<Inbox>   ◀── publish    ◀──── complete: choose tokens, keep pages
//!   Generation ◀── its own channel, room for every event ◀── events, after the counters are published
//! ```
//!
//! * A reader that never reads stalls nobody: its channel has room for all events that its request can cause.
//! * When an event has been received, [`Engine::stats`] already counts what led to it.
//! * Waiting requests are ordered by fair shares between tenants, then by what is cached ([`crate::scheduler`]).
//! * When the device fails or panics, the requests of that step are computed again, a bounded number of times; the
//!   engine goes on. When it does not come back at all, a watchdog takes the core from the thread that waits for it, and
//!   goes on on another device ([`Engine::guarded`]).

mod core;
mod failure;
pub mod feed;
pub mod profile;
mod room;
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

use self::core::{Core, Sequence};
use self::feed::Feed;
use self::room::Room;
use self::worker::{Clock, Shared};
use crate::TokenId;
use crate::backend::Backend;
use crate::cache::DiskCounts;
use crate::cache::{CacheConfig, DocumentPath};
use crate::sampling::{Constraint, Logprobs, Sampler, Sampling};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Bounds of a running engine; a bound of 0 is taken as 1.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Requests that may wait; one more is refused with [`SubmitError::QueueFull`].
    pub max_waiting: u32,
    /// Requests of one tenant that may wait; one more is refused with [`SubmitError::TenantQueueFull`].
    pub max_waiting_per_tenant: u32,
    /// In what order a tenant's waiting requests are admitted.
    pub order: Rule,
    /// Requests computed side by side.
    pub max_running: u32,
    /// Tokens computed in one step, over all its segments (long prompts are prefilled in chunks of this size).
    /// At least `max_running`, or the youngest answers wait for the others' tokens.
    pub max_step_tokens: u32,
    /// Times that a request is computed again because the device failed under it; once more and it fails.
    pub max_retries: u32,
    /// Speculative work is taken only while fewer requests than this wait (RAGCache, algorithm 2). May be 0: none is.
    pub max_prefill_batch: u32,
    /// How long a step may take before the device counts as stuck; `None`: as long as it likes. Longer than the longest
    /// step of a device that works.
    pub watchdog: Option<Duration>,
    /// How pages are kept beyond their use.
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
            max_step_tokens: 512,
            max_retries: 2,
            max_prefill_batch: 4,
            watchdog: None,
            cache: CacheConfig::default(),
        }
    }
}

/// One generation to run. The default is an answer to an empty prompt, which is refused.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// What it is for.
    pub kind: Kind,
    /// The prompt, at least one token.
    pub prompt: Vec<TokenId>,
    /// Tokens to generate at most, at least one in an answer.
    pub max_tokens: u32,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the generation (they are not reported).
    pub stop_tokens: Vec<TokenId>,
    /// What the answer must look like; `None`: anything.
    pub constraint: Option<Constraint>,
    /// Whether each token comes with its log-probability, and with how many rivals'.
    pub top_logprobs: Option<u32>,
    /// Requests with different salts share no KV state (tenant isolation). At most [`MAX_SALT_BYTES`].
    pub cache_salt: String,
    /// Where the prompt's documents end, if the caller knows.
    pub documents: Option<DocumentPath>,
    /// Who gets a fair share of the device: requests with different tenants get equal ones.
    pub tenant: Arc<str>,
    /// When nobody wants the answer any more: it then ends with [`Failure::Expired`], waiting or running.
    pub deadline: Option<Instant>,
    /// Which request this is a guess at, or is itself. Of all requests with one id and one salt only the last is
    /// computed: a later one supersedes an earlier one once the current step is done, or joins it if its prompt is the
    /// same.
    pub speculation: Option<SpeculationId>,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Tokens.
    #[default]
    Answer,
    /// Warming up: the prompt is computed, to be found in the cache, and ends with [`FinishReason::Prefilled`]. Taken
    /// only while few requests wait, see [`EngineConfig::max_prefill_batch`].
    Prefill,
}

/// Names a request to come, chosen by whoever sends guesses at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpeculationId(pub u64);

/// What happens to a generation, in this order: `Started`, `Token`s, then `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The prompt entered the engine; this many of its tokens were found in the cache and are not computed again.
    Started {
        /// Prompt tokens served from the cache, at most the prompt's length less one.
        cached_tokens: u32,
    },
    /// The next token.
    Token {
        /// The token.
        id: TokenId,
        /// If [`Request::top_logprobs`] asked for them.
        logprobs: Option<Box<Logprobs>>,
    },
    /// The end.
    Finished(FinishReason),
    /// The engine could not go on with this request.
    Failed(Failure),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen, or the constraint lets nothing follow.
    Stop,
    /// `max_tokens` were generated, or the sequence is as long as the model allows.
    Length,
    /// The prompt is computed, and no more was asked for.
    Prefilled,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Try again later.
    #[error("the queue is full: {limit} requests are waiting")]
    QueueFull {
        /// [`EngineConfig::max_waiting`].
        limit: u32,
        /// When there will be room, by the recent pace.
        retry_after: Duration,
    },
    /// As `QueueFull`, for this tenant.
    #[error("the tenant's share of the queue is full: {limit} of its requests are waiting")]
    TenantQueueFull {
        /// [`EngineConfig::max_waiting_per_tenant`].
        limit: u32,
        /// When there will be room, by the recent pace.
        retry_after: Duration,
    },
    /// No time for speculative work. The request that it was a guess at can be sent all the same.
    #[error("too busy for speculative work: {limit} requests or more are waiting")]
    Busy {
        /// [`EngineConfig::max_prefill_batch`].
        limit: u32,
    },
    /// The prompt can never be served.
    #[error("the prompt has {tokens} tokens, more than the {limit} that fit")]
    TooLong {
        /// The prompt's.
        tokens: u32,
        /// The smaller of the model's positions and the pool's room, less one for the answer.
        limit: u32,
    },
    /// A value that no request may have.
    #[error("{0}")]
    Invalid(String),
    /// The engine is stopping or has stopped.
    #[error("the engine is stopping")]
    Stopped,
}

/// Counters and gauges, read for `/metrics`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Requests finished, failed or cancelled so far.
    pub finished: u64,
    /// Requests waiting now, those included that were preempted and wait to go on.
    pub waiting: u32,
    /// Requests running now.
    pub running: u32,
    /// Prompt tokens taken in so far.
    pub prompt_tokens: u64,
    /// Of those, served from the cache.
    pub cached_tokens: u64,
    /// Of those, loaded from host memory, into which they may have come from disk.
    pub host_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// Prefix lookups so far, one per request: those that matched some of the prompt and those that matched all but
    /// its last token are counted below, the others matched nothing.
    pub lookups: u64,
    /// See `lookups`.
    pub partial_hits: u64,
    /// See `lookups`.
    pub full_hits: u64,
    /// Pages taken back from the cache to make room, so far.
    pub evicted_pages: u64,
    /// Pages in the pool.
    pub pages: u32,
    /// Pages held by running requests now (shared ones counted once).
    pub pages_in_use: u32,
    /// Pages that hold cached prefixes now, in use or not.
    pub pages_cached: u32,
    /// Pages in the host's pool.
    pub host_pages: u32,
    /// Pages of the host's that hold cached prefixes now.
    pub host_pages_cached: u32,
    /// Pages taken back to make room in host memory, so far.
    pub host_evicted_pages: u64,
    /// Pages read back from disk, so far.
    pub fetched_pages: u64,
    /// What became of the pages that were given to the disk.
    pub disk: DiskCounts,
    /// Steps computed so far, failed ones included.
    pub steps: u64,
    /// How many sequences they computed side by side.
    pub step_sizes: StepSizes,
    /// Times that a running request gave its pages back to be computed again later, so far.
    pub preemptions: u64,
    /// Times that a request waits to be computed again because the device failed under it, so far.
    pub retries: u64,
    /// Times that everything on the device was lost, be it that the device was replaced, so far.
    pub devices_lost: u64,
    /// Requests whose deadline passed before they were complete, so far.
    pub expired: u64,
    /// Speculative prefills taken in so far.
    pub speculations_started: u64,
    /// Speculative prefills refused because too many requests waited, so far.
    pub speculations_refused: u64,
    /// Requests that took an earlier one's place and progress, so far.
    pub speculations_joined: u64,
    /// Requests that were ended for a later one with another prompt, so far.
    pub speculations_superseded: u64,
}

/// How large steps were: a histogram over powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSizes {
    /// Steps of one sequence, of 2, of 3 and 4, of 5 to 8, and so on; the last counts all above.
    pub counts: [u64; 14],
    /// Sequences of all steps together.
    pub sequences: u64,
}

impl StepSizes {
    fn add(&mut self, sequences: usize) {
        let place = sequences.max(1).next_power_of_two().trailing_zeros() as usize;
        self.counts[place.min(self.counts.len() - 1)] += 1;
        self.sequences += sequences as u64;
    }
}

/// Longest [`Request::cache_salt`].
pub const MAX_SALT_BYTES: usize = 1024;

/// A handle on a running engine; clones share it. When the last is dropped the engine finishes what it was given and
/// ends.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

/// What a request is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    vocabulary: u32,
    /// Tokens in the longest sequence: the smaller of the model's positions and the pool's slots.
    capacity: u32,
    /// Whether the device chooses tokens.
    draws: bool,
}

impl Bounds {
    fn of(backend: &dyn Backend) -> Self {
        let slots = backend.pages().saturating_mul(backend.page_tokens().max(1));
        Self {
            vocabulary: backend.vocabulary(),
            capacity: backend.max_positions().min(slots),
            draws: backend.draws(),
        }
    }
}

impl Engine {
    /// Starts the engine's thread on `backend`. Should the system refuse a thread, every request is refused with
    /// [`SubmitError::Stopped`].
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig) -> Self {
        Self::launch(backend, None, &config, Arc::new(Instant::now))
    }

    /// As [`Engine::start`], with more devices where the first comes from: when the watchdog of `config` finds a step
    /// stuck, or the device is lost twice without a step in between, the engine goes on on a fresh one. Whoever waits keeps
    /// waiting, whoever ran goes on from its tokens; a thread that is stuck keeps its device and is left alone.
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

    /// Queues a request.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is queued then.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        self.handle.shared.submit(request)
    }

    /// Whether a [`Kind::Prefill`] would be taken now, for whoever would have to prepare it first. A refusal counts among
    /// [`Stats::speculations_refused`].
    pub fn takes_speculations(&self) -> bool {
        self.handle.shared.takes_guesses()
    }

    /// Whether requests are being served.
    pub fn health(&self) -> Health {
        self.handle.shared.health()
    }

    /// The engine's counters now.
    pub fn stats(&self) -> Stats {
        self.handle.shared.stats()
    }

    /// What happens in its cache. When an event of a generation has been received, the feed already tells what led to
    /// it.
    pub fn feed(&self) -> &Arc<Feed> {
        self.handle.shared.feed()
    }

    /// Forgets every cached prefix that no running request uses; returns the number of pages freed. Waits for the
    /// step that is being computed. 0 when the engine has stopped.
    pub fn clear_cache(&self) -> u32 {
        self.handle.shared.clear_cache()
    }

    /// Takes no more requests, finishes the queued and running ones, and ends the thread; returns when it has ended.
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
    /// Accepts the request, which comes at `now`, and gives it a place in `room`.
    fn admit(
        self,
        room: &Arc<Room>,
        bounds: Bounds,
        bell: &Arc<AtomicU64>,
        now: Instant,
    ) -> Result<(Sequence, Generation), SubmitError> {
        let (mut sequence, generation) = self.accept(bounds, bell)?;
        sequence.place = Some(room.enter(&sequence.tenant, sequence.kind, now)?);
        Ok((sequence, generation))
    }

    /// Checks the request and splits it into what the engine works on and what its caller listens to.
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
        if self.max_tokens == 0 && self.kind == Kind::Answer {
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
            documents.validate(tokens).map_err(SubmitError::Invalid)?;
        }
        let answer = match self.kind {
            Kind::Answer => self.max_tokens,
            Kind::Prefill => 0,
        };
        let end = tokens.saturating_add(answer).min(bounds.capacity);
        // `Started`, the tokens, and the end.
        let (sender, receiver) = mpsc::channel((end - tokens) as usize + 2);
        let sampler = Sampler::new(
            self.sampling,
            &self.prompt,
            &self.stop_tokens,
            self.constraint,
            self.top_logprobs,
        );
        let sequence = Sequence {
            tokens: self.prompt,
            end,
            kind: self.kind,
            tenant: self.tenant,
            deadline: self.deadline,
            speculation: self.speculation,
            sampler,
            salt: self.cache_salt.into(),
            documents: self.documents.map(Arc::new),
            events: sender,
            started: false,
            faults: 0,
            place: None,
            sighting: None,
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

/// The receiving end of one generation. Dropping it cancels the generation.
pub struct Generation {
    events: mpsc::Receiver<Event>,
    ended: bool,
    /// Counts those that were dropped before their end.
    bell: Arc<AtomicU64>,
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.ended {
            // Whoever hears the bell finds the channel closed.
            self.events.close();
            self.bell.fetch_add(1, Ordering::Release);
        }
    }
}

impl Generation {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.note(event)
    }

    /// As [`Generation::next`], for callers that wait for several at once.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context).map(|event| self.note(event))
    }

    /// The next event if it has come already; `None` also after the last.
    pub fn try_next(&mut self) -> Option<Event> {
        match self.events.try_recv() {
            Err(mpsc::error::TryRecvError::Empty) => None,
            event => self.note(event.ok()),
        }
    }

    /// As [`Generation::next`], for callers outside an async runtime.
    ///
    /// # Panics
    /// Inside one.
    pub fn blocking_next(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.note(event)
    }

    /// Sees to it that the last event is `Finished` or `Failed`, even if the engine's thread died.
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
