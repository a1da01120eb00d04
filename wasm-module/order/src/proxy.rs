//! The module as a proxy-wasm filter that needs nothing of its proxy except the body: no shared data, no calls, no timers,
//! no configuration, no metrics.
//!
//! The request's headers are let go at once, without `content-length`, since not every proxy can hold them (and the body
//! may grow by a hint), so the body goes on in chunks. The body is held until its end, within [`MAX_BODY_BYTES`].

use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, BufferType, ContextType, MapType};

use crate::reordered;

/// Bytes of a body that is held; a longer one goes on as it came. Proxies that limit a plugin's memory to 16 MiB need room
/// for the table, the body, what is found in it, and the body that is written.
const MAX_BODY_BYTES: usize = 1 << 20;

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root));
}}

struct Root;

impl Context for Root {}

impl RootContext for Root {
    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream { is_given_up: false }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// A request, whose body is held until its end.
struct Stream {
    /// Whether the body was too long to be held.
    is_given_up: bool,
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        if !end_of_stream {
            let _ = hostcalls::remove_map_value(MapType::HttpRequestHeaders, "content-length");
        }
        Action::Continue
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        self.is_given_up |= size > MAX_BODY_BYTES;
        if self.is_given_up || size == 0 {
            return Action::Continue;
        }
        if !end_of_stream {
            return Action::Pause;
        }
        let body = hostcalls::get_buffer(BufferType::HttpRequestBody, 0, size);
        let body = body.ok().flatten().unwrap_or_default();
        if let Some(body) = reordered(&body) {
            let _ = hostcalls::set_buffer(BufferType::HttpRequestBody, 0, size, &body);
        }
        Action::Continue
    }
}
