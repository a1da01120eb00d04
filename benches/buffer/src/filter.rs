//! The filter, by callbacks of the proxy-wasm SDK.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root { copies: false }));
}}

struct Root {
    copies: bool,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        self.copies = self.get_plugin_configuration().as_deref() == Some(br#"{"copy":true}"#);
        true
    }

    fn create_http_context(&self, _context: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Buffer {
            copies: self.copies,
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Buffer {
    copies: bool,
}

impl Context for Buffer {}

impl HttpContext for Buffer {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        if end_of_stream {
            Action::Continue
        } else {
            Action::Pause
        }
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        if !end_of_stream {
            return Action::Pause;
        }
        if self.copies
            && let Some(body) = self.get_http_request_body(0, size)
        {
            self.set_http_request_body(0, size, &body);
        }
        Action::Continue
    }
}
