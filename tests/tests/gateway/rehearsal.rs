//! What `foreword rehearse` foretells is what real Envoy does: every body of this suite, through both, to the byte.

use foreword_rehearse::{Limits, Module, Outcome, Proxy, Request, Setup};
use foreword_tests::artifacts::filter_module;
use foreword_tests::http::{Response, exchange, post_chunked};
use foreword_tests::{Gateway, Upstream};
use serde_json::{Value, json};

use crate::formats::{self, FORMATS};
use crate::{bodies, configured, tagged, tagged_texts, with_array};

const CHAT: &str = "/v1/chat/completions";

/// One configuration, in Envoy and in a rehearsal.
struct Both<'m> {
    upstream: Upstream,
    gateway: Gateway,
    proxy: Proxy<'m>,
    /// Requests that Envoy let go on.
    forwarded: usize,
}

impl<'m> Both<'m> {
    fn start(module: &'m Module, mut plugin: Value) -> Self {
        // As shipped: both must be told, since the gateways of this suite place documents freely unless told.
        plugin["ordering"]["rank"] = json!({"place": "last"});
        let upstream = Upstream::start().unwrap();
        let setup = Setup {
            configuration: plugin.to_string().into_bytes(),
            ..Setup::default()
        };
        Self {
            gateway: configured(&upstream, plugin),
            proxy: Proxy::start(module, setup).unwrap(),
            upstream,
            forwarded: 0,
        }
    }

    fn post(&mut self, path: &str, body: &str) {
        let request = Request::post(path, body.as_bytes().to_vec());
        self.same(&request);
    }

    /// A request whose headers and body both get; that the same becomes of it.
    fn same(&mut self, request: &Request) {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let header = |name: &str| {
            let mut headers = request.headers.iter();
            headers.find(|(known, _)| known == name.as_bytes()).unwrap()
        };
        let path = text(&header(":path").1);
        let raw = match request.piece_bytes {
            Some(size) => {
                assert_eq!(path, CHAT);
                let trailers: Vec<_> = (request.trailers.iter())
                    .map(|(name, value)| format!("{}: {}", text(name), text(value)))
                    .collect();
                let trailers: Vec<&str> = trailers.iter().map(String::as_str).collect();
                post_chunked(
                    &["content-type: application/json"],
                    &request.body,
                    size,
                    &trailers,
                )
            }
            None => {
                let mut raw = format!("POST {path} HTTP/1.1\r\nhost: gateway\r\n").into_bytes();
                for (name, value) in request.headers.iter().filter(|(name, _)| name[0] != b':') {
                    raw.extend(format!("{}: {}\r\n", text(name), text(value)).bytes());
                }
                raw.extend(b"\r\n");
                raw.extend(&request.body);
                raw
            }
        };
        let response = exchange(self.gateway.address(), &raw).unwrap();
        let outcome = self.proxy.play(request).unwrap();
        self.agree(&response, &outcome);
    }

    fn agree(&mut self, response: &Response, outcome: &Outcome) {
        assert_eq!(outcome.fault, None);
        let of_both = |name: &str| {
            let foretold = outcome.response_header(name);
            let foretold = foretold.map(|value| String::from_utf8_lossy(value).into_owned());
            (response.header(name).map(str::to_owned), foretold)
        };
        let (real, foretold) = of_both("x-foreword");
        assert_eq!(real, foretold);
        let status = response.status.to_string();
        assert_eq!(outcome.response_header(":status"), Some(status.as_bytes()));
        let received = self.upstream.received();
        match &outcome.forwarded {
            Some(forwarded) => {
                self.forwarded += 1;
                assert_eq!(received.len(), self.forwarded, "{}", response.report());
                let last = received.last().unwrap();
                assert!(last.body == forwarded.body, "{}", response.report());
                let mut headers = forwarded.headers.iter();
                let path = headers.find(|(name, _)| name == b"x-foreword-path");
                let path = path.map(|(_, path)| String::from_utf8_lossy(path).into_owned());
                assert_eq!(last.header("x-foreword-path"), path.as_deref());
            }
            None => {
                assert_eq!(received.len(), self.forwarded);
                assert!(outcome.local.is_some());
                assert!(response.body == outcome.response_body);
            }
        }
    }
}

#[test]
fn a_rehearsal_foretells_what_envoy_sends_for_every_body_of_the_suite() {
    let module = Module::read(&filter_module().unwrap(), Limits::default()).unwrap();

    let mut both = Both::start(&module, json!({}));
    for ids in [["a", "b", "c"], ["c", "a", "b"], ["x", "c", "b"]] {
        both.post(CHAT, &tagged(&ids));
        both.post(CHAT, &with_array(&ids));
    }
    both.post(CHAT, &bodies::two_megabytes_without_documents());
    let long = |ids: &[&'static str]| {
        let text = |id: &&'static str| (*id, format!("{id} {}", "0123456789".repeat(60_000)));
        tagged_texts(&ids.iter().map(text).collect::<Vec<_>>())
    };
    both.post(CHAT, &long(&["l", "m", "n"]));
    both.post(CHAT, &long(&["n", "m", "l"]));
    for (headers, body, _) in bodies::unreadable(&tagged(&["a", "b"])) {
        let mut request = Request::post(CHAT, body);
        request.headers.retain(|(name, _)| name != b"content-type");
        for line in headers {
            let (name, value) = line.split_once(": ").unwrap();
            request.add(name, value);
        }
        both.same(&request);
    }
    for size in [1, 7, 100, 1_000_000] {
        let mut request = Request::post(CHAT, tagged(&["c", "b", "a"]).into());
        request
            .headers
            .retain(|(name, _)| name != b"content-length");
        request.piece_bytes = Some(size);
        both.same(&request);
        request.trailers = vec![(b"x-check".to_vec(), b"1".to_vec())];
        both.same(&request);
    }

    let mut both = Both::start(&module, formats::plugin());
    for (_, path, body) in FORMATS {
        for order in [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
            both.post(path, &body(order).to_string());
        }
    }

    let plugin = json!({"on_failure": "refuse", "max_body_bytes": 400});
    let mut both = Both::start(&module, plugin);
    for body in [
        "{",
        "",
        r#"{"messages": []}"#,
        &tagged(&["a", "b"]),
        &"x".repeat(401),
    ] {
        both.post(CHAT, body);
        both.post("/v1/messages", body);
    }
}
