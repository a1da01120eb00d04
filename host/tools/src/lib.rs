//! Foreword's tools. None of them needs our server or our engine.
//!
//! - [`batch`]: sends a file of requests to an endpoint, in the order that reuses most of the endpoint's prefix cache.
//! - [`check`]: checks whether the gateway's filter would accept a configuration.
//! - [`doctor`]: examines a running engine and gateway, and reports what keeps prefixes from being reused.
//! - [`evaluate`]: tests whether an engine's answers stay as good when documents are in another order.
//! - [`explain`]: reports why the prompts of a log share less than they could.
//! - [`index`]: builds a context index (a tree that clusters requests' document lists) from a log, for the policy
//!   `context-index`.
//! - [`ledger`]: reports the prompt tokens that ordering saved, from a gateway's access log.
//! - [`replay`]: reports what ordering would save on a log of requests, by simulating an engine's cache.

pub mod batch;
pub mod check;
mod client;
pub mod doctor;
pub mod evaluate;
pub mod explain;
pub mod index;
pub mod ledger;
pub mod options;
pub mod replay;
mod tls;

pub use foreword_report::log::BadInput;
