//! Tests of web pages of other origins: only those that cors.yaml names may use the gateway.

use foreword_tests::http::{Response, exchange};
use foreword_tests::{Gateway, GatewayOptions, Upstream};

use crate::{gateway, tagged};

const PAGE: &str = "http://127.0.0.1:4321";

fn for_pages(upstream: &Upstream) -> Gateway {
    let options = GatewayOptions {
        pages: Some(r"http://127\.0\.0\.1:\d+".into()),
        ..GatewayOptions::placing_freely(upstream.address())
    };
    Gateway::start(&options).unwrap()
}

/// Sends the preflight request of a browser before it lets a page of `origin` send JSON.
fn preflight(gateway: &Gateway, origin: &str) -> Response {
    let request = format!(
        "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\norigin: {origin}\r\n\
         access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n\r\n"
    );
    exchange(gateway.address(), request.as_bytes()).unwrap()
}

fn ask(gateway: &Gateway, origin: &str) -> Response {
    let body = tagged(&["a", "b"]);
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\norigin: {origin}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    exchange(gateway.address(), request.as_bytes()).unwrap()
}

#[test]
fn a_named_page_may_ask_and_read_what_was_done() {
    let upstream = Upstream::start().unwrap();
    let gateway = for_pages(&upstream);
    let answer = preflight(&gateway, PAGE);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE));
    let allowed = answer.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("content-type"), "{allowed}");
    assert!(upstream.received().is_empty(), "a preflight is Envoy's own");

    let answer = ask(&gateway, PAGE);
    assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE));
    let exposed = answer.header("access-control-expose-headers");
    assert_eq!(exposed, Some("x-foreword"));
    assert!(answer.header("x-foreword").is_some());
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn other_pages_are_told_nothing() {
    let upstream = Upstream::start().unwrap();
    let named = for_pages(&upstream);
    let closed = gateway(&upstream);
    for (gateway, origin) in [
        (&named, "http://evil.example"),
        (&named, "http://127.0.0.1:4321.evil.example"),
        (&closed, PAGE),
    ] {
        for answer in [preflight(gateway, origin), ask(gateway, origin)] {
            assert_eq!(
                answer.header("access-control-allow-origin"),
                None,
                "{origin}"
            );
        }
    }
}
