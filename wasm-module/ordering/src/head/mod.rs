//! The head: the part of a prompt before the documents.
//!
//! ```text
//!   tools            system text        history             documents      hint   question
//!   [t1] [t2] [t3]   "You are …"        user, assistant …   [a] [b] [c]    …      "Why?"
//!   └────────────────────── head ──────────────────────┘
//! ```
//!
//! One byte that differs in the head costs the engine's KV state of everything after it, documents included.
//! [`segments`] divides a request into the parts of its prompt, in the order in which engines render them;
//! [`diagnosis`] finds why a request does not share a longer prefix with an earlier one, and [`cause`] names the
//! reasons. `stabilise` decides the changes that make heads begin alike: one order and form of tools, and volatile
//! spans (texts that change between requests) moved behind the documents, replaced by their first value or dropped.
//! `contexts` restores documents that a client removes from its chat's history. [`config`] is the configuration,
//! [`HeadReport`] the report.

pub mod cause;
mod compare;
pub mod config;
pub(crate) mod contexts;
pub(crate) mod decision;
pub mod diagnosis;
mod entry;
mod learned;
mod marks;
pub(crate) mod outline;
pub mod patterns;
mod pending;
mod ranks;
mod report;
pub mod segments;
pub(crate) mod stabilise;
mod texts;
mod tools;
mod toolsets;

pub use cause::{Cause, Volatile};
pub use diagnosis::{Diagnosis, Index, Limits};
pub use outline::{Depth, sent};
pub use pending::PendingPrompt;
pub use report::{Change, ChangeKind, HeadReport};
pub use segments::{Segment, SegmentKind, Segments};
