//! What would be saved: traces of requests, replayed under a policy against a model of an engine's cache.
//!
//! ```text
//!   trace ──▶ policy + its knowledge tree ──▶ order ──▶ engine cache ──▶ tokens reused
//! ```
//!
//! The policy decides as it would in front of a real engine; the engine is modelled, document by document: what
//! counts is how many document tokens a prefix match would have saved. Generation, batching and time are not here.

mod bound;
mod cache;
mod compact;
mod log;
mod logged;
mod prompts;
mod replay;
pub mod workload;

pub use bound::Bound;
pub use cache::{Capacity, EngineCache};
pub use compact::CompactTrace;
pub use log::{BadLine, LogReader};
pub use logged::{Logged, LoggedKind};
pub use prompts::{PromptReplay, PromptReuse};
pub use replay::{Replay, Reuse, replay, upper_bound};

use crate::document::Fingerprint;
use crate::tree::Scope;

/// Requests in the order of their arrival.
pub type Trace = Vec<Request>;

/// A request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What stands before its documents.
    pub scope: Scope,
    /// Its distinct documents, in rank order.
    pub documents: Vec<Retrieved>,
}

/// A document of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retrieved {
    /// What it is called; the `sorted` policy looks at it.
    pub label: String,
    /// What it is.
    pub fingerprint: Fingerprint,
    /// Tokens of its block.
    pub tokens: u32,
}

impl Retrieved {
    /// Document `number` of a generated corpus.
    #[must_use]
    pub fn numbered(number: u64, tokens: u32) -> Self {
        Self {
            // Of one width, so that labels sort as numbers do.
            label: format!("{number:06}"),
            fingerprint: Fingerprint(number),
            tokens,
        }
    }
}

/// Tokens of a trace's documents.
#[must_use]
pub fn document_tokens(trace: &[Request]) -> u64 {
    trace
        .iter()
        .flat_map(|request| &request.documents)
        .map(|document| u64::from(document.tokens))
        .sum()
}
