//! The filter's callbacks for the proxy-wasm SDK.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};
use xxhash_rust::xxh3::xxh3_64;

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root::default()));
}}

#[derive(Default)]
struct Root {
    copies: bool,
    reads: bool,
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        let configuration = self.get_plugin_configuration();
        self.reads = configuration.as_deref() == Some(br#"{"copy":true,"read":true}"#);
        self.copies = self.reads || configuration.as_deref() == Some(br#"{"copy":true}"#);
        true
    }

    fn create_http_context(&self, _context: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Buffer {
            copies: self.copies,
            reads: self.reads,
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Buffer {
    copies: bool,
    reads: bool,
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
            if self.reads {
                let found = format!("{:016x}, {}", xxh3_64(&body), stops(&body));
                self.set_http_request_header("x-buffer-path", Some(&found));
            }
            self.set_http_request_body(0, size, &body);
        }
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        if self.reads {
            self.set_http_response_header("x-buffer", Some("read"));
        }
        Action::Continue
    }
}

/// Counts words of eight bytes that contain a quote, a backslash or a control character.
fn stops(body: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xff;
    let (words, _) = body.as_chunks();
    let marked = words.iter().filter(|word| {
        let word = u64::from_le_bytes(**word);
        let is = |byte: u8| (word ^ (u64::from(byte) * ONES)).wrapping_sub(ONES);
        let controls = word.wrapping_sub(0x20 * ONES);
        (is(b'"') | is(b'\\') | controls) & !word & (ONES << 7) != 0
    });
    marked.count()
}
