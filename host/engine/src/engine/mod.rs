//! The running engine: a handle, and behind it one thread that owns cache, scheduler and backend.

use crate::backend::{Backend, TokenId};
use crate::sampling::Sampling;

/// Bounds of a running engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Requests that may wait; one more is refused with [`SubmitError::QueueFull`].
    pub max_waiting: u32,
    /// Requests computed side by side.
    pub max_running: u32,
    /// Tokens computed in one step, over all its segments (long prompts are prefilled in chunks of this size).
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
    /// Requests with different salts share no KV state (tenant isolation).
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
    Token(TokenId),
    /// The end.
    Finished(FinishReason),
    /// The engine could not go on with this request.
    Failed(String),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was chosen.
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
    /// Requests waiting now.
    pub waiting: u32,
    /// Requests running now.
    pub running: u32,
    /// Prompt tokens taken in so far.
    pub prompt_tokens: u64,
    /// Of those, served from the cache.
    pub cached_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// Prefix lookups so far: all, those that matched some of the prompt, those that matched all but the last token.
    pub lookups: u64,
    /// See `lookups`.
    pub partial_hits: u64,
    /// See `lookups`.
    pub full_hits: u64,
    /// Pages taken back from the cache so far.
    pub evicted_pages: u64,
    /// Pages in the pool.
    pub pages: u32,
    /// Pages held by running requests now (shared ones counted once).
    pub pages_in_use: u32,
    /// Pages that hold cached prefixes now, in use or not.
    pub pages_cached: u32,
    /// Steps computed so far.
    pub steps: u64,
}

/// A handle on a running engine; clones share it.
#[derive(Clone)]
pub struct Engine {}

impl Engine {
    /// Starts the engine's thread on `backend`.
    pub fn start(backend: Box<dyn Backend>, config: EngineConfig) -> Self {
        let _ = (backend, config);
        todo!()
    }

    /// Queues a request.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing is queued then.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        let _ = request;
        todo!()
    }

    /// The engine's counters now.
    pub fn stats(&self) -> Stats {
        todo!()
    }

    /// Forgets every cached prefix that no running request uses; returns the number of pages freed.
    pub fn clear_cache(&self) -> u32 {
        todo!()
    }

    /// Takes no more requests, finishes the queued and running ones, and ends the thread; returns when it has ended.
    pub fn shutdown(&self) {
        todo!()
    }
}

/// The receiving end of one generation. Dropping it cancels the generation.
pub struct Generation {}

impl Generation {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        todo!()
    }

    /// As [`Generation::next`], for callers outside an async runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        todo!()
    }
}
