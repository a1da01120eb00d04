//! The filter as an external processor where that differs from the other shells: the process may die while gateways go
//! on, and several gateways may share it. Everything else is the gateway suite's, with `FOREWORD_SHELL=ext-proc`.

mod picker;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use foreword_tests::http::{Client, Response, exchange, post};
use foreword_tests::{Gateway, GatewayOptions, Shell, Upstream, under_traffic, until};
use serde_json::json;

fn options(upstream: &Upstream, shell: Shell) -> GatewayOptions {
    GatewayOptions {
        shell,
        ..GatewayOptions::placing_freely(upstream.address())
    }
}

fn chat(ids: &[&str]) -> String {
    let documents = ids
        .iter()
        .map(|id| json!({"id": id, "text": format!("text of {id}")}));
    json!({
        "model": "m",
        "messages": [{"role": "user", "content": "Why?"}],
        "documents": documents.collect::<Vec<_>>(),
    })
    .to_string()
}

fn send(gateway: &Gateway, body: &str) -> Response {
    send_to(gateway.address(), body)
}

fn send_to(address: SocketAddr, body: &str) -> Response {
    exchange(address, &post(body.as_bytes())).unwrap()
}

#[test]
fn a_processor_that_is_killed_in_mid_traffic_costs_no_request() {
    let upstream = Upstream::forgetful().unwrap();
    let gateway = Gateway::start(&options(&upstream, Shell::ExtProc)).unwrap();
    let ext_proc = gateway.ext_proc().unwrap();
    let body = |sender: u32, number: u32| chat(&[&sender.to_string(), &number.to_string(), "c"]);
    // Each request that is not answered with 200 fails the test.
    under_traffic(gateway.address(), 4, body, |go_on| {
        for _ in 0..3 {
            go_on(200);
            ext_proc.kill();
            go_on(200);
            ext_proc.revive().unwrap();
            until("requests are ordered again", || {
                send(&gateway, &chat(&["a", "b"]))
                    .report()
                    .contains("documents=2")
            });
        }
    });
    let failed = gateway.stat("http.clients.downstream_rq_5xx").unwrap();
    assert_eq!(failed, Some(0));
}

#[test]
fn without_failure_mode_allow_nothing_passes_that_nobody_has_read() {
    let upstream = Upstream::start().unwrap();
    let gateway = Gateway::start(&GatewayOptions {
        plugin: Some(json!({"on_failure": "refuse"})),
        edits: vec![(
            "failure_mode_allow: true\n",
            "failure_mode_allow: false\n".to_owned(),
        )],
        ..options(&upstream, Shell::ExtProc)
    })
    .unwrap();
    assert_eq!(send(&gateway, &chat(&["a"])).status, 200);
    gateway.ext_proc().unwrap().kill();
    for _ in 0..5 {
        let response = send(&gateway, &chat(&["a"]));
        assert!(response.status >= 500, "{}", response.status);
        assert_eq!(response.json().unwrap()["error"]["type"], "server_error");
    }
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn two_gateways_on_one_processor_share_what_they_know() {
    let upstream = Upstream::start().unwrap();
    let one = Gateway::start(&options(&upstream, Shell::ExtProc)).unwrap();
    let other = GatewayOptions {
        ext_proc: one.ext_proc().cloned(),
        concurrency: 2,
        ..options(&upstream, Shell::ExtProcDuplex)
    };
    let other = Gateway::start(&other).unwrap();
    send(&one, &chat(&["a", "b", "c"]));
    for _ in 0..8 {
        let response = send(&other, &chat(&["c", "b", "a"]));
        let report = response.report();
        assert!(report.contains("matched=3"), "{report}");
    }
    let requests = |gateway: &Gateway| gateway.metric("foreword_requests_total").unwrap();
    assert_eq!((requests(&one), requests(&other)), (Some(9), Some(9)));
}

/// What `ext-proc.yaml` and the README say of streaming both ways: Envoy keeps no copy of a body, so a request that has
/// one cannot go on without the processor.
#[test]
fn streamed_both_ways_a_request_with_a_body_needs_the_processor() {
    let upstream = Upstream::start().unwrap();
    let gateway = Gateway::start(&options(&upstream, Shell::ExtProcDuplex)).unwrap();
    let ext_proc = Arc::clone(gateway.ext_proc().unwrap());
    let (lost, served) = (AtomicU32::new(0), AtomicU32::new(0));
    let address = gateway.address();
    let ask = |sender: usize, until_served: u32| {
        let goal = served.load(SeqCst) + until_served;
        while served.load(SeqCst) < goal {
            let body = chat(&[&sender.to_string(), "b"]);
            match send_to(address, &body).status {
                200 => served.fetch_add(1, SeqCst),
                500..600 => lost.fetch_add(1, SeqCst),
                status => panic!("{status}"),
            };
        }
    };
    thread::scope(|scope| {
        let senders = [0, 1, 2, 3].map(|sender| {
            let ask = &ask;
            scope.spawn(move || ask(sender, 200))
        });
        until("traffic flows", || served.load(SeqCst) > 50);
        ext_proc.kill();
        ext_proc.revive().unwrap();
        for sender in senders {
            sender.join().unwrap();
        }
    });
    let lost_in_traffic = lost.load(SeqCst);
    let before = upstream.received().len();
    ext_proc.kill();
    let statuses = (0..20).map(|_| send(&gateway, &chat(&["a", "b"])).status);
    let refused = statuses.filter(|status| *status >= 500).count();
    let get = b"GET /v1/models HTTP/1.1\r\nhost: gateway\r\n\r\n";
    let without_body = exchange(gateway.address(), get).unwrap().status;
    println!(
        "killed and started again at once, 4 clients: {lost_in_traffic} of {} requests lost; away: {refused} of 20; GET {without_body}",
        served.load(SeqCst) + lost_in_traffic
    );
    assert_eq!(without_body, 200);
    // No request that Envoy let pass was cut.
    let received = upstream.received();
    let passed = received.len() - before - 1;
    assert_eq!(passed + refused, 20);
    for request in received.iter().filter(|request| !request.body.is_empty()) {
        serde_json::from_slice::<serde_json::Value>(&request.body).unwrap();
    }
    assert!(refused > 0, "the README is wrong");
}

#[test]
fn a_drain_lets_requests_end_and_then_the_process() {
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let upstream = Upstream::scripted(move |_, reply| {
        reply.begin_events()?;
        reply.event("one")?;
        may_go_on.lock().unwrap().recv()?;
        reply.event("two")?;
        reply.end_events()
    })
    .unwrap();
    let gateway = Gateway::start(&options(&upstream, Shell::ExtProc)).unwrap();
    let ext_proc = gateway.ext_proc().unwrap();
    assert_eq!(ext_proc.get("/ready").unwrap().0, 200);
    let mut client = Client::connect(gateway.address()).unwrap();
    client.send(&post(chat(&["a"]).as_bytes())).unwrap();
    let head = client.head().unwrap();
    assert_eq!(client.piece(&head).unwrap().unwrap(), b"data: one\n\n");
    ext_proc.signal("TERM").unwrap();
    until("it is not ready any more", || {
        ext_proc
            .get("/ready")
            .is_ok_and(|(status, _)| status == 503)
    });
    assert_eq!(ext_proc.get("/live").unwrap().0, 200);
    go_on.send(()).unwrap();
    assert_eq!(client.piece(&head).unwrap().unwrap(), b"data: two\n\n");
    assert_eq!(client.piece(&head).unwrap(), None);
    ext_proc.wait().unwrap();
}

#[test]
fn a_refused_configuration_is_named_in_the_log_and_the_old_one_goes_on() {
    let upstream = Upstream::start().unwrap();
    let gateway = Gateway::start(&options(&upstream, Shell::ExtProc)).unwrap();
    send(&gateway, &chat(&["a", "b"]));
    let error = gateway.reload(&json!({"max_body_bytes": 0})).unwrap_err();
    assert!(error.to_string().contains("refuses"), "{error}");
    for words in ["the old configuration goes on", "max_body_bytes: 0"] {
        until(words, || gateway.log().is_ok_and(|log| log.contains(words)));
    }
    let report = |ids: &[&str]| send(&gateway, &chat(ids)).report().to_owned();
    assert!(report(&["b", "a"]).contains("matched=2"));
    // What the old plugin knew the new one has learned.
    gateway
        .reload(&json!({"ordering": {"policy": "longest"}}))
        .unwrap();
    let report = report(&["b", "a"]);
    assert!(
        report.contains("policy=longest") && report.contains("matched=2"),
        "{report}"
    );
}
