//! Runs a built proxy-wasm module under wasmtime, and shows its effect on a log of requests.
//!
//! ```text
//!   LOG ──▶ run ──▶ Proxy: VMs that share data ──▶ what the engine would get, fuel, calls, memory, faults
//!                      │  stream: a request's callbacks, as Envoy drives them
//!                      ▼
//!                    Vm ── callbacks ──▶ module.wasm ── host calls ──▶ calls
//! ```
//!
//! Nothing comes from outside: clock and random numbers are fixed, cluster responses are scripted, and instructions are
//! counted instead of time. Two runs agree to the instruction on any machine, so two builds or configurations can be
//! compared ([`run::run`] with `--against`).
//!
//! The host calls are the project's own: the existing crate (`proxy-wasm-host`) needs a newer compiler than this
//! workspace. They behave like Envoy's. Routes, retries and concurrent requests in a VM are not simulated.

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
pub use proxy::{Proxy, Setup, Totals, headers};
pub use request::{Answer, Forwarded, LocalResponse, Outcome, Request};
pub use vm::{CallbackUse, StartError};
