//! Who computes what next.
//!
//! ```text
//!   requests ──▶ Queue ── in what order? ──▶ plan(state) ── what fits? ──▶ a step, or a preemption
//!                 │  shares: whose turn is it?         continuous batching, chunked prefill
//!                 └  rule:   which of theirs?
//! ```
//!
//! Two rooms with one question each. [`Queue`] says in what order waiting requests are to be admitted: first fairness
//! between tenants ([`shares`]), then, within a tenant, the core's rule for queues
//! ([`foreword_ordering::schedule`]), the same that simulations use. [`plan`] is an ordinary function from counts of
//! tokens and pages to what a step computes. Neither knows tokens, prefixes, arithmetic or the time; whoever calls
//! them carries the plan out and asks again.

mod plan;
mod queue;
pub mod shares;

pub use foreword_ordering::schedule::Rule;
pub use plan::{Limits, Plan, Running, State, Waiting, plan};
pub use queue::{Entry, Queue, Ticket};
