//! The scheduler: which requests compute how many tokens in the next step.
//!
//! ```text
//!   requests ──▶ Queue ── in what order? ──▶ plan(state) ── what fits? ──▶ a step, or a preemption
//!                 │  shares: which tenant?             continuous batching, chunked prefill
//!                 └  rule:   which of its requests?
//! ```
//!
//! [`Queue`] orders the waiting requests for admission: first by fairness between tenants ([`shares`]), then, within a
//! tenant, by the rule of the queue ([`Rule`]). [`plan()`] is a pure function from counts of tokens and pages to
//! what a step computes. Neither knows tokens, prefixes, arithmetic or the time. The caller carries the plan out and
//! asks again.

mod order;
mod plan;
mod queue;
pub mod shares;

pub use order::Rule;
pub use plan::{Limits, Plan, Running, SchedulerState, Waiting, plan};
pub use queue::{Entry, Queue, Ticket};
