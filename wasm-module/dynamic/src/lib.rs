//! Foreword as a dynamic module for Envoy: the same filter as [`foreword_filter`], in Envoy's own process.
//!
//! ```text
//!             worker 1    worker 2    …    one Exchange for each request, on its worker's thread
//!                 └──────────┴─── Plugin   one for each configuration, its orderer behind a mutex
//! ```
//!
//! No VM stands between Envoy and the core, so a body is copied once instead of twice, and all workers share one set
//! of knowledge trees. The price is trust: a fault here is a fault in Envoy. So a panic ends at its hook (`hooks`),
//! and unsafe code is limited to Envoy's objects. `abi` declares Envoy's interface, `stream` calls it, `hooks` is
//! called by it, and `clock` has it tick. All decisions are the filter's and the core's.
//!
//! Dynamic modules, and so this one, exist on Linux only. It is built against the ABI of Envoy 1.40 (`v0.2.0`);
//! another Envoy warns about the version when it loads the module.

mod abi;
mod clock;
mod hooks;
mod stream;
#[cfg(test)]
mod tests;
