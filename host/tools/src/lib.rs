//! Foreword's tools, which need no server and no engine of ours.
//!
//! - [`check`]: whether the gateway's filter would take a configuration.
//! - [`evaluate`]: whether any engine's answers are as good when documents stand in another order.
//! - [`explain`]: why the prompts of a log share less than they could.
//! - [`replay`]: what ordering would save on a log of requests, computed without any engine.

pub mod check;
pub mod evaluate;
pub mod explain;
mod log;
pub mod replay;
