//! A proxy-wasm module as it ships, under wasmtime: what it would do to a log of requests.
//!
//! ```text
//!   LOG ──▶ run ──▶ Proxy: VMs that share data ──▶ what the engine would get, fuel, calls, memory, faults
//!                      │  stream: a request's callbacks, as Envoy drives them
//!                      ▼
//!                    Vm ── callbacks ──▶ module.wasm ── host calls ──▶ calls
//! ```
//!
//! Nothing comes from outside: clock and random numbers are fixed, clusters answer by a script, and instructions are counted
//! instead of time. So two runs agree to the instruction, on any machine, and two builds or configurations can be compared
//! ([`run::run`] with `--against`).
//!
//! The host calls are ours, not a crate's: the one there is (`proxy-wasm-host`) needs a newer compiler than this workspace.
//! They answer as Envoy's do. What Envoy has beside them, routes, retries, several requests at once in a VM, is not played.

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
pub use request::{Answer, Forwarded, Outcome, Request};
pub use state::{CallAnswer, LocalResponse};
pub use vm::{CallbackUse, StartError};
