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
//! begin like an earlier one, and [`cause`] how that is called.

pub mod cause;
mod compare;
pub mod diagnosis;
mod marks;
pub(crate) mod outline;
pub mod segments;

pub use cause::{Cause, Volatile};
pub use diagnosis::{Asked, Diagnosis, Index, Limits};
pub use outline::Depth;
pub use segments::{Segment, SegmentKind, Segments};
