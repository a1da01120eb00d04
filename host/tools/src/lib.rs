//! Foreword's tools, which need no server and no engine of ours.
//!
//! - [`batch`]: asks an endpoint the requests of a file, in the order in which they share most.
//! - [`check`]: checks whether the gateway's filter would accept a configuration.
//! - [`doctor`]: examines a running engine and gateway, and reports what keeps prefixes from being reused.
//! - [`evaluate`]: tests whether any engine's answers are as good when documents stand in another order.
//! - [`explain`]: reports why the prompts of a log share less than they could.
//! - [`index`]: makes a context index of a log, for the policy `context-index`.
//! - [`replay`]: reports what ordering would save on a log of requests, computed without any engine.

pub mod batch;
pub mod check;
pub mod doctor;
mod endpoint;
pub mod evaluate;
pub mod explain;
pub mod index;
mod log;
pub mod replay;
mod tls;

pub use log::EmptyLog;
