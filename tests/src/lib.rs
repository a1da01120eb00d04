//! The end-to-end harness: starts real Envoy with the built filter (as a Wasm or a dynamic module, or as
//! an external processor), the host, and
//! upstreams that follow a script. Used by the tests beside it, by the load bench and by `cargo xtask demo`.
//!
//! ```text
//!   http::Client ──► Gateway (Envoy + foreword_filter.wasm) ──► Upstream (scripted), or Host (`foreword`)
//! ```
//!
//! Everything listens on a port that the system chose, is waited for by what it prints and not by time, and
//! ends when its handle is dropped. Nothing here knows what the filter decides; the tests do.

pub mod artifacts;
mod bridge;
mod ext_proc;
mod gateway;
mod host;
pub mod http;
mod process;
mod starlette;
mod traffic;
mod upstream;
mod wait;

pub use bridge::Bridge;
pub use ext_proc::ExtProc;
pub use gateway::{Fallback, Gateway, GatewayOptions, Paths, Shell};
pub use host::Host;
pub use starlette::{RawRequest, Routed, Starlette, over_http2};
pub use traffic::under_traffic;
pub use upstream::{Received, Reply, Upstream};
pub use wait::until;
