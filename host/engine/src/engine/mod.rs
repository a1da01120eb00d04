//! The running engine: a handle, and behind it one thread that owns cache, scheduler and backend.
//!
//! Knows requests and their events; the arithmetic, the pages and the plan are the other rooms' business.
//!
//! ```text
//!   Engine (clones)            worker                        core (no threads, no locks)
//!   submit ──▶ inbox, bounded ──▶ wait, take ──▶ prepare: cancel, plan, preempt, admit
//!   stats  ◀── Mutex<Inbox>   ◀── publish    ◀── compute: run the step, choose tokens
//!   Generation ◀── its own channel, room for every event ◀── events, after the counters are published
//! ```
//!
//! * A reader that never reads stalls nobody: its channel has room for all events that its request can cause.
//! * When an event has been received, [`Engine::stats`] already counts what led to it.
//! * A failing or panicking backend fails the requests of that step; the engine goes on.

mod core;
#[cfg(test)]
mod tests;
mod worker;

use self::core::{Core, Sequence};
use self::worker::Shared;
use crate::backend::{Backend, TokenId};
use crate::sampling::{Constraint, Logprobs, Sampler, Sampling};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// Bounds of a running engine; a bound of 0 is taken as 1.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Requests that may wait; one more is refused with [`SubmitError::QueueFull`].
    pub max_waiting: u32,
    /// Requests computed side by side.
    pub max_running: u32,
    /// Tokens computed in one step, over all its segments (long prompts are prefilled in chunks of this size).
    /// At least `max_running`, or the youngest answers wait for the others' tokens.
    pub max_step_tokens: u32,
}

/// One generation to run.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, at least one token.
    pub prompt: Vec<TokenId>,
    /// Tokens to generate at most, at least one.
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
}

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
    Failed(String),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen, or the constraint lets nothing follow.
    Stop,
    /// `max_tokens` were generated, or the sequence is as long as the model allows.
    Length,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Try again later.
    #[error("the queue is full: {limit} requests are waiting")]
    QueueFull {
        /// [`EngineConfig::max_waiting`].
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
    /// Steps computed so far, failed ones included.
    pub steps: u64,
    /// How many sequences they computed side by side.
    pub step_sizes: StepSizes,
    /// Times that a running request gave its pages back to be computed again later, so far.
    pub preemptions: u64,
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
    bounds: Bounds,
    max_waiting: u32,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a request is held against.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    vocabulary: u32,
    /// Tokens in the longest sequence: the smaller of the model's positions and the pool's slots.
    capacity: u32,
}

impl Engine {
    /// Starts the engine's thread on `backend`. Should the system refuse a thread, every request is refused with
    /// [`SubmitError::Stopped`].
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig) -> Self {
        let core = Core::new(backend, &config);
        let bounds = core.bounds();
        let shared = Arc::new(Shared::new(core.stats()));
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn({
                let shared = shared.clone();
                move || worker::run(&shared, core)
            });
        if thread.is_err() {
            shared.stop();
        }
        let thread = Mutex::new(thread.ok());
        Self {
            handle: Arc::new(Handle {
                shared,
                bounds,
                max_waiting: config.max_waiting.max(1),
                thread,
            }),
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is queued then.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        let (sequence, generation) = request.accept(self.handle.bounds)?;
        self.handle
            .shared
            .submit(sequence, self.handle.max_waiting)?;
        Ok(generation)
    }

    /// The engine's counters now.
    pub fn stats(&self) -> Stats {
        self.handle.shared.stats()
    }

    /// Forgets every cached prefix that no running request uses; returns the number of pages freed. Waits for the
    /// step that is being computed. 0 when the engine has stopped.
    pub fn clear_cache(&self) -> u32 {
        self.handle.shared.clear_cache()
    }

    /// Takes no more requests, finishes the queued and running ones, and ends the thread; returns when it has ended.
    pub fn shutdown(&self) {
        self.handle.shared.stop();
        // Held while joining, so that a second caller waits for the end as well.
        let mut thread = self
            .handle
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic of the thread has been told to everybody who waits for an event.
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Request {
    /// Checks the request and splits it into what the engine works on and what its caller listens to.
    fn accept(self, bounds: Bounds) -> Result<(Sequence, Generation), SubmitError> {
        let invalid = |reason: String| Err(SubmitError::Invalid(reason));
        let tokens = u32::try_from(self.prompt.len()).unwrap_or(u32::MAX);
        let limit = bounds.capacity.saturating_sub(1);
        if tokens == 0 {
            return invalid("the prompt is empty".to_owned());
        }
        if self.max_tokens == 0 {
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
        let end = tokens.saturating_add(self.max_tokens).min(bounds.capacity);
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
            sampler,
            salt: self.cache_salt.into(),
            events: sender,
            started: false,
        };
        Ok((
            sequence,
            Generation {
                events: receiver,
                ended: false,
            },
        ))
    }
}

/// The receiving end of one generation. Dropping it cancels the generation.
pub struct Generation {
    events: mpsc::Receiver<Event>,
    ended: bool,
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
                return Some(Event::Failed(
                    "the engine ended before the answer did".to_owned(),
                ));
            }
            _ => {}
        }
        event
    }
}
