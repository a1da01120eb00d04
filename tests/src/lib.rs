//! The end-to-end harness: starts real Envoy with the built filter (as a Wasm or a dynamic module, or as an external
//! processor), the host, and scripted upstreams. The tests, the load bench and `cargo xtask demo` use it.
//!
//! ```text
//!   http::Client ──► Gateway (Envoy + foreword_filter.wasm) ──► Upstream (scripted), or Host (`foreword`)
//! ```
//!
//! Every process listens on a free port, is ready when its output says so, and stops when its handle is dropped. The
//! harness does not depend on the filter's decisions; the tests check those.

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
pub use wait::{pause, until};
