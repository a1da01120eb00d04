//! Simulates what ordering saves: replays traces of requests under a policy, against a model of an engine's cache.
//!
//! ```text
//!   trace ──▶ policy + its knowledge tree ──▶ order ──▶ engine cache ──▶ tokens reused
//! ```
//!
//! The policy decides as in front of a real engine. The engine's cache is modelled document by document: the result is
//! the number of document tokens that prefix matches save. Generation, batching and time are not modelled.
//!
//! This crate also plans batches, whose requests are all known before the first is sent: [`batch()`] returns the order
//! of the requests, and of the documents in each.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod bad_line;
mod batch;
mod bound;
mod boundary;
mod cache;
mod compact;
mod lines;
mod log;
mod logged;
mod prompts;
mod replay;
mod time;
pub mod workload;

// The traces for tests and benches name this crate as the benches do.
#[cfg(test)]
extern crate self as foreword_simulation;
#[cfg(test)]
#[allow(unreachable_pub)]
#[path = "../tests/support/workloads.rs"]
mod workloads;

pub use bad_line::BadLine;
pub use batch::{
    AnswerLine, BatchAnswer, BatchAnswers, BatchConfigError, BatchError, BatchIndex, BatchLimits,
    BatchOrder, BatchOrderer, BatchSchedule, BatchTask, BatchUsage, FirstDocuments, LineError,
    MAX_ID_BYTES, Planned, RequestLine, URLS, WINDOW, answer_line, batch, batch_placed,
};
pub use bound::Bound;
pub use boundary::{
    BoundaryArm, BoundaryCache, BoundaryOutcome, BoundaryReplay, BoundaryUsage, CachePrice,
    CachePrices, FIRST_TOKEN_MS,
};
pub use cache::{Capacity, EngineCache};
pub use compact::CompactTrace;
pub use lines::{Lines, MAX_LINE_BYTES};
pub use log::LogReader;
pub use logged::{Logged, LoggedKind};
pub use prompts::{PromptReplay, PromptReuse};
pub use replay::{Replay, Reuse};

pub use foreword_ordering::listing::{Request, Retrieved};

/// Requests in the order of their arrival.
pub type Trace = Vec<Request>;

/// Returns the sum of the tokens of a trace's documents, each counted in every request that has it.
#[must_use]
pub fn document_tokens(trace: &[Request]) -> u64 {
    trace
        .iter()
        .flat_map(|request| &request.documents)
        .map(|document| u64::from(document.tokens))
        .sum()
}

/// Returns a configuration in which every document may be in any place, for tests that are not about ranks.
#[cfg(test)]
fn placing_freely() -> foreword_ordering::RawConfig {
    foreword_ordering::RawConfig {
        rank: foreword_ordering::config::RawRank::free(),
        ..foreword_ordering::RawConfig::default()
    }
}
