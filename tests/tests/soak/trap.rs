//! A test of a trap, which should never happen: it is counted, and the worker continues to serve.
//!
//! The filter has no way to trap, so the test gives it bounds that its VM does not have: chats' pinned documents may
//! take more memory than the VM has, until an allocation fails.

use std::time::{Duration, Instant};

use foreword_tests::http::{Client, exchange, post};
use foreword_tests::{Gateway, GatewayOptions, Shell, Upstream, pause};
use serde_json::json;

/// Time limit; nothing correct takes this long.
const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn a_trap_is_counted_and_the_next_requests_are_served() {
    if Shell::chosen() == Shell::Dynamic {
        println!("skipped: a dynamic module has no VM of its own to run out of memory");
        return;
    }
    let upstream = Upstream::forgetful().unwrap();
    let options = GatewayOptions {
        plugin: Some(json!({"ordering": {"conversation": {
            "pin": true, "max_bytes": 1_u64 << 40, "max_pinned_tokens": u32::MAX,
        }}})),
        ..GatewayOptions::placing_freely(upstream.address())
    };
    let gateway = Gateway::start(&options).unwrap();
    let begun = Instant::now();
    let text = "0123456789".repeat(380_000);
    let mut chats = 0;
    let mut client = Client::connect(gateway.address()).unwrap();
    loop {
        assert!(
            begun.elapsed() < LIMIT,
            "no trap after {chats} pinned chats"
        );
        chats += 1;
        let body = json!({
            "messages": [{"role": "user", "content": format!("Why {chats}?")}],
            "documents": [{"id": "a", "text": text}],
        });
        // The trapping request is answered with an empty 503, or its connection is closed.
        let sent = client.send(&post(body.to_string().as_bytes()));
        let answered = sent.and_then(|()| client.response());
        if !answered.is_ok_and(|response| response.status == 200) {
            break;
        }
    }
    // Envoy may answer before it writes its log.
    while gateway.failures().unwrap() == 0 {
        assert!(
            begun.elapsed() < LIMIT,
            "request {chats} failed, and not by a trap"
        );
        pause();
    }
    assert_eq!(gateway.failures().unwrap(), 1);
    assert!(chats > 50, "a VM held only {chats} chats of 4 MB");

    // During the backoff (1 s) Envoy answers 503; then there is a new VM.
    let small = json!({
        "messages": [{"role": "user", "content": "<doc>a</doc><doc>b</doc> Why?"}],
    });
    let request = post(small.to_string().as_bytes());
    loop {
        assert!(begun.elapsed() < LIMIT, "not served again");
        if let Ok(response) = exchange(gateway.address(), &request)
            && response.status == 200
        {
            assert!(
                response.report().contains("documents=2"),
                "{}",
                response.report()
            );
            break;
        }
        pause();
    }
    for _ in 0..20 {
        assert_eq!(exchange(gateway.address(), &request).unwrap().status, 200);
    }
    assert_eq!(
        gateway.stat("wasm.foreword.vm_reload_success").unwrap(),
        Some(1)
    );
    assert_eq!(gateway.failures().unwrap(), 1);
    println!(
        "trapped after {chats} chats of 4 MB, served again {:.1?} later",
        begun.elapsed()
    );
}
