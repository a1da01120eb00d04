//! Which request goes next: the order of waiting requests, where [`crate::policy`] says the order of documents in one.
//!
//! | known | decided | function |
//! | --- | --- | --- |
//! | a queue, its documents already ordered | which waiting requests go first | [`order`], [`first`] |
//! | a whole batch, before any of it is sent | documents' order inside each, and the order of requests | [`batch()`] |
//!
//! Both are plain functions from a state to a plan. Nothing here waits, serves, or knows how long anything takes:
//! whoever owns the queue moves the requests.

mod batch;
mod queue;

pub use batch::{Planned, batch};
pub use queue::{Queued, Rule, first, order};
