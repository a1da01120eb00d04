//! Tests of streamed answers: server-sent events pass one by one, unchanged.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use foreword_tests::http::{Client, post, post_with};
use foreword_tests::{Gateway, Shell, Upstream};

use crate::{gateway, tagged};

/// Time limit that ends a test whose other side has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns a client that has sent a chat through a gateway.
fn asked(upstream: &Upstream) -> (Gateway, Client) {
    let gateway = gateway(upstream);
    let mut client = Client::connect(gateway.address()).unwrap();
    client.send(&post(tagged(&["a", "b"]).as_bytes())).unwrap();
    (gateway, client)
}

#[test]
fn an_event_reaches_the_client_before_the_upstream_sends_the_next() {
    let (seen, go_on) = channel::<()>();
    let go_on = Mutex::new(go_on);
    let upstream = Upstream::scripted(move |_, reply| {
        reply.begin_events()?;
        for number in 0..3 {
            reply.event(&format!("{{\"n\": {number}}}"))?;
            // The next event is sent only once the client has received this one.
            go_on.lock().unwrap().recv_timeout(LIMIT)?;
        }
        reply.event("[DONE]")?;
        reply.end_events()
    })
    .unwrap();
    let (_gateway, mut client) = asked(&upstream);
    let head = client.head().unwrap();
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert!(head.report().starts_with("unchanged;"), "{}", head.report());
    for number in 0..3 {
        let event = client.piece(&head).unwrap().unwrap();
        assert_eq!(event, format!("data: {{\"n\": {number}}}\n\n").as_bytes());
        seen.send(()).unwrap();
    }
    assert_eq!(client.piece(&head).unwrap().unwrap(), b"data: [DONE]\n\n");
    assert_eq!(client.piece(&head).unwrap(), None);
}

#[test]
fn a_long_answer_passes_to_the_byte() {
    let events = 2_000;
    let upstream = Upstream::scripted(move |_, reply| {
        reply.begin_events()?;
        for number in 0..events {
            reply.event(&format!("{number} {}", "x".repeat(number % 997)))?;
        }
        reply.end_events()
    })
    .unwrap();
    let (_gateway, mut client) = asked(&upstream);
    let expected: String = (0..events)
        .map(|n| format!("data: {n} {}\n\n", "x".repeat(n % 997)))
        .collect();
    assert_eq!(
        String::from_utf8(client.response().unwrap().body).unwrap(),
        expected
    );
}

#[test]
fn a_stream_that_breaks_off_breaks_off_for_the_client_too() {
    let upstream = Upstream::scripted(|_, reply| {
        reply.begin_events()?;
        reply.event("one")?;
        // The script ends within the stream, so the connection closes.
        Ok(())
    })
    .unwrap();
    let (_gateway, mut client) = asked(&upstream);
    let head = client.head().unwrap();
    if Shell::chosen().is_ext_proc() && head.status >= 500 {
        println!("an external processor: it broke off before the processor had let its head pass");
        return;
    }
    let piece = client.piece(&head);
    if Shell::chosen().is_ext_proc() && piece.is_err() {
        println!("an external processor: it broke off before the processor had let its event pass");
        return;
    }
    assert_eq!(piece.unwrap().unwrap(), b"data: one\n\n");
    assert!(client.is_closed(), "the stream must not look complete");
}

#[test]
fn a_client_that_leaves_during_the_answer_ends_it_upstream() {
    let (ended, has_ended) = channel();
    let ended = Mutex::new(ended);
    let upstream = Upstream::scripted(move |_, reply| {
        reply.begin_events()?;
        // Until the gateway closes the connection.
        while reply.event(&"x".repeat(1_000)).is_ok() {}
        ended.lock().unwrap().send(())?;
        Ok(())
    })
    .unwrap();
    let (_gateway, mut client) = asked(&upstream);
    let head = client.head().unwrap();
    client.piece(&head).unwrap().unwrap();
    drop(client);
    has_ended.recv_timeout(LIMIT).unwrap();
}

/// What OpenAI's and Anthropic's servers sent (`tests/recorded`), and how many tokens their prompts had.
const RECORDED: [(&[u8], u64); 4] = [
    (include_bytes!("../../recorded/responses-text.sse"), 100),
    (include_bytes!("../../recorded/responses-call.sse"), 53),
    (include_bytes!("../../recorded/messages-text.sse"), 639),
    (include_bytes!("../../recorded/messages-call.sse"), 567),
];

#[test]
fn recorded_streams_pass_to_the_byte_in_any_pieces_and_are_counted() {
    const PIECES: [usize; 4] = [1, 13, 1_000, 1 << 20];
    let upstream = Upstream::scripted(|request, reply| {
        let asked = request.header("x-recorded").unwrap_or_default();
        let (name, piece) = asked.split_once(' ').unwrap_or_default();
        let (stream, _) = RECORDED[name.parse::<usize>()?];
        reply.begin_events()?;
        for piece in stream.chunks(piece.parse()?) {
            reply.piece(piece)?;
        }
        reply.end_events()
    })
    .unwrap();
    let gateway = gateway(&upstream);
    let mut counted = 0;
    for (at, (stream, tokens)) in RECORDED.into_iter().enumerate() {
        for piece in PIECES {
            let header = format!("x-recorded: {at} {piece}");
            let headers = ["content-type: application/json", &*header];
            let mut client = Client::connect(gateway.address()).unwrap();
            let body = tagged(&["a", "b"]);
            client.send(&post_with(&headers, body.as_bytes())).unwrap();
            let body = client.response().unwrap().body;
            assert_eq!(
                String::from_utf8(body).unwrap(),
                str::from_utf8(stream).unwrap()
            );
            counted += tokens;
            gateway.await_metric("foreword_engine_prompt_tokens_total", counted);
        }
    }
}
