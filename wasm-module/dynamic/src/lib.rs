//! Foreword as a dynamic module for Envoy: the same filter as [`foreword_filter`], in Envoy's own process.
//!
//! ```text
//!             worker 1    worker 2    …    one Exchange for each request, on its worker's thread
//!                 └──────────┴─── Plugin   one for each configuration, its orderer behind a mutex
//! ```
//!
//! There is no VM between Envoy and the core, so a body is copied once instead of twice, and all workers share one set
//! of knowledge trees. In return, a crash here is a crash of Envoy. So panics are caught in each hook (`hooks`), and
//! unsafe code is limited to Envoy's objects. `abi` declares Envoy's interface, `stream` calls Envoy, Envoy calls
//! `hooks`, and `clock` produces ticks. The filter and the core make all decisions.
//!
//! Dynamic modules are available only on Linux. This one is built for the ABI of Envoy 1.40 (`v0.2.0`); another version
//! of Envoy logs a warning when it loads the module.

mod abi;
mod clock;
mod hooks;
mod stream;
#[cfg(test)]
mod tests;
