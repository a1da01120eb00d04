//! Runs a built proxy-wasm module under wasmtime, and reports what it does to the requests of a log.
//!
//! ```text
//!   LOG ──▶ run ──▶ Proxy: VMs that share data ──▶ what the engine would get, fuel, calls, memory, faults
//!                      │  stream: a request's callbacks, as Envoy drives them
//!                      ▼
//!                    Vm ── callbacks ──▶ module.wasm ── host calls ──▶ calls
//! ```
//!
//! Clock and random numbers are fixed, cluster responses are scripted, and instructions are counted instead of time. So
//! two runs agree to the instruction on any machine, and two builds or configurations can be compared (`--against`).
//!
//! The host calls behave like Envoy's. They are the project's own, since the crate `proxy-wasm-host` needs a newer
//! compiler. Routes, retries and concurrent requests in a VM are not simulated.

mod abi;
mod calls;
mod fault;
mod limits;
mod module;
mod proxy;
mod request;
pub mod run;
mod shared;
mod state;
mod stream;
mod vm;

pub use abi::Headers;
pub use fault::{Fault, FaultKind};
pub use limits::Limits;
pub use module::{Module, ModuleError};
pub use proxy::{Proxy, Setup, Totals};
pub use request::{Answer, Forwarded, LocalResponse, Outcome, Request};
pub use vm::{CallbackUse, StartError};
