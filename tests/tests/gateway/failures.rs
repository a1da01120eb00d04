//! Tests of upstreams and clients that fail: a clear answer, and the next request is served normally.

use std::net::TcpListener;

use foreword_tests::http::{Client, post, post_head};
use foreword_tests::{Gateway, GatewayOptions, Upstream, until};

use crate::{gateway, send, tagged};

#[test]
fn a_dead_upstream_is_a_503_in_openais_shape() {
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let gateway = Gateway::start(&GatewayOptions::placing_freely(dead)).unwrap();
    for _ in 0..3 {
        let response = send(&gateway, &tagged(&["a", "b"]));
        assert_eq!(response.status, 503);
        assert!(
            response.report().starts_with("unchanged;"),
            "{}",
            response.report()
        );
        let error = &response.json().unwrap()["error"];
        assert_eq!(error["code"], "engine_unavailable");
        assert_eq!(error["type"], "server_error");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("connection failure"),
            "{error}"
        );
    }
}

#[test]
fn an_upstream_that_hangs_up_or_talks_nonsense_is_a_5xx_and_costs_no_other_request() {
    let upstream = Upstream::scripted(|request, reply| {
        let text = request.text();
        if text.contains("hang up") {
            Ok(())
        } else if text.contains("nonsense") {
            reply.raw(b"SSH-2.0-nonsense\r\n\r\n")
        } else {
            reply.json(200, "{}")
        }
    })
    .unwrap();
    let gateway = gateway(&upstream);
    for (id, status) in [("hang up", 503), ("nonsense", 502), ("hang up", 503)] {
        let response = send(&gateway, &tagged(&["a", id]));
        assert_eq!(response.status, status, "{id}");
        assert_eq!(response.json().unwrap()["error"]["type"], "server_error");
        assert_eq!(send(&gateway, &tagged(&["b"])).status, 200);
    }
}

#[test]
fn an_error_of_the_upstream_is_passed_on_as_it_is() {
    let error = r#"{"error": {"message": "no such model", "type": "invalid_request_error"}}"#;
    let upstream = Upstream::scripted(move |_, reply| reply.json(404, error)).unwrap();
    let gateway = gateway(&upstream);
    let response = send(&gateway, &tagged(&["a", "b"]));
    assert_eq!(response.status, 404);
    assert_eq!(response.body, error.as_bytes());
}

#[test]
fn a_client_that_leaves_in_mid_body_reaches_nobody() {
    let upstream = Upstream::start().unwrap();
    let gateway = gateway(&upstream);
    let body = tagged(&["a", "b"]);
    let mut head = post_head(&["content-type: application/json"]);
    head.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes());
    let mut client = Client::connect(gateway.address()).unwrap();
    client.send(&head).unwrap();
    client.send(&body.as_bytes()[..body.len() / 2]).unwrap();
    until("the request is there", || {
        gateway.stat("http.clients.downstream_rq_active").unwrap() == Some(1)
    });
    drop(client);
    until("the request is gone", || {
        gateway.stat("http.clients.downstream_rq_active").unwrap() == Some(0)
    });

    assert!(upstream.received().is_empty());
    // The tree learned nothing from the incomplete request.
    assert!(
        send(&gateway, &tagged(&["b", "a"]))
            .report()
            .contains("; matched=0;")
    );
    // It was not counted either.
    gateway.await_requests(1);
}

#[test]
fn a_connection_that_closes_after_a_response_is_replaced() {
    let upstream = Upstream::scripted(|_, reply| {
        reply.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
    })
    .unwrap();
    let gateway = gateway(&upstream);
    let mut client = Client::connect(gateway.address()).unwrap();
    for _ in 0..20 {
        client.send(&post(tagged(&["a", "b"]).as_bytes())).unwrap();
        assert_eq!(client.response().unwrap().status, 200);
    }
}
