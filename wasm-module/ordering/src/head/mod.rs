//! The head: what stands in a prompt before the documents, as data.
//!
//! ```text
//!   tools            system text        history             documents      hint   question
//!   [t1] [t2] [t3]   "You are …"        user, assistant …   [a] [b] [c]    …      "Why?"
//!   └────────────────────── head ──────────────────────┘
//! ```
//!
//! One byte that differs in the head costs the engine's KV state of everything behind it, documents included.
//! [`segments`] says what a request is made of, in the order in which engines render it; [`diagnosis`] why one could not
//! begin like an earlier one, and [`cause`] how that is called. `stabilise` decides what is
//! done so that heads open alike: tools in one order and form, and words that change behind
//! the documents, or as they first were. `contexts` puts documents back that a client takes out of its chat's history.
//! [`config`] is what the operator says of it, [`HeadReport`] what is told.

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
pub use entry::Asked;
pub use outline::{Depth, sent};
pub use pending::PendingPrompt;
pub use report::{Change, ChangeKind, HeadReport};
pub use segments::{Segment, SegmentKind, Segments};
