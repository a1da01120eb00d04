//! Tests the limits on bodies, concurrent requests and time.

use crate::chat::say;
use crate::streaming::{forever, streaming};
use crate::support::client::{
    JSON, begin, connect, post, post_bytes, read_head, send, write_request,
};
use crate::support::{Options, TestServer, until};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const PATH: &str = "/v1/chat/completions";

fn bodies_of(max_body_bytes: u64) -> Options {
    Options {
        max_body_bytes,
        ..Options::default()
    }
}

fn answers_within(request_timeout: Duration) -> Options {
    Options {
        request_timeout,
        ..Options::default()
    }
}

/// A connection on which a chat's head was sent with these headers, followed by `rest`.
async fn begun(house: &TestServer, headers: &str, rest: &str) -> BufReader<TcpStream> {
    let mut connection = BufReader::new(connect(house.address()).await);
    let sent = format!(
        "POST {PATH} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n{headers}\r\n\r\n{rest}"
    );
    connection.write_all(sent.as_bytes()).await.unwrap();
    connection
}

#[tokio::test]
async fn a_body_of_two_megabytes_is_served() {
    let house = TestServer::open().await;
    let mut body = say("received");
    // It is read, parsed and checked; the template leaves it out of the prompt, which would otherwise have two million
    // tokens.
    body["documents"] = json!([{"id": "d", "text": "", "attachment": "x".repeat(2 << 20)}]);
    let response = post(house.address(), PATH, &body).await;
    assert_eq!(
        response.json()["choices"][0]["message"]["content"],
        "received"
    );
}

#[tokio::test]
async fn a_body_over_the_limit_gets_its_answer_even_while_it_is_sent() {
    let house = TestServer::with(bodies_of(1000)).await;
    let body = vec![b' '; 4 << 20];
    let response = post_bytes(house.address(), PATH, &body).await;
    let message = response.error(413, "body_too_large", None);
    assert_eq!(
        message,
        "the request's body has 4194304 bytes, more than the limit of 1000 bytes"
    );
}

#[tokio::test]
async fn a_body_without_a_length_is_held_to_the_limit() {
    let house = TestServer::with(bodies_of(1000)).await;
    let chunk = format!("3e9\r\n{}\r\n0\r\n\r\n", " ".repeat(1001));
    let connection = begun(&house, "transfer-encoding: chunked", &chunk).await;
    let message = read_head(connection)
        .await
        .read()
        .await
        .error(413, "body_too_large", None);
    assert_eq!(
        message,
        "the request's body has over 1000 bytes, more than the limit of 1000 bytes"
    );
}

#[tokio::test]
async fn a_client_that_asks_before_sending_is_told_at_once() {
    let house = TestServer::with(bodies_of(1000)).await;
    let headers = "content-length: 1001\r\nexpect: 100-continue";
    let connection = begun(&house, headers, "").await;
    assert_eq!(read_head(connection).await.status, 413);
}

#[tokio::test]
async fn one_request_too_many_is_told_to_come_back() {
    let house = TestServer::with(Options {
        max_waiting: 1,
        max_running: 1,
        ..Options::default()
    })
    .await;
    house.steps.hold(0);
    let running = begin(house.address(), PATH, &streaming("first")).await;
    until("it runs", || house.stats().running == 1).await;
    let waiting = begin(house.address(), PATH, &streaming("second")).await;
    let response = post(house.address(), PATH, &say("third")).await;
    let message = response.error(429, "queue_full", None);
    assert_eq!(
        message,
        "the server is at its limit of 2 requests; try again later"
    );
    assert_eq!(response.header("retry-after"), Some("1"));
    house.steps.release();
    for reply in [running, waiting] {
        assert_eq!(reply.events().await.last().unwrap(), "[DONE]");
    }
    assert_eq!(post(house.address(), PATH, &say("third")).await.status, 200);
}

#[tokio::test]
async fn a_whole_answer_over_its_time_is_a_504() {
    let house = TestServer::with(answers_within(Duration::from_millis(300))).await;
    house.steps.hold(1);
    let mut body = forever();
    body["stream"] = false.into();
    let response = post(house.address(), PATH, &body).await;
    response.error(504, "request_timeout", None);
    house.steps.release();
    house.idle().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_a_408() {
    let house = TestServer::with(answers_within(Duration::from_millis(300))).await;
    let connection = begun(&house, "content-length: 10", "{").await;
    read_head(connection)
        .await
        .read()
        .await
        .error(408, "body_timeout", None);
    assert_eq!(house.app().gate.inside(), 0);
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let house = TestServer::open().await;
    let mut connection = BufReader::new(connect(house.address()).await);
    let good = say("again").to_string();
    for (body, status) in [(good.as_str(), 200), ("{", 400), (good.as_str(), 200)] {
        write_request(&mut connection, "POST", PATH, &JSON, body.as_bytes()).await;
        let (response, rest) = read_head(connection).await.read_on().await;
        assert_eq!(response.status, status);
        connection = rest;
    }
    // A stream's connection can be reused, too.
    write_request(
        &mut connection,
        "POST",
        PATH,
        &JSON,
        streaming("x").to_string().as_bytes(),
    )
    .await;
    let (stream, mut connection) = read_head(connection).await.read_on().await;
    assert!(stream.text().ends_with("data: [DONE]\n\n"));
    write_request(&mut connection, "GET", "/v1/models", &[], b"").await;
    assert_eq!(read_head(connection).await.status, 200);
}

#[tokio::test]
async fn a_refused_post_leaves_its_connection_usable() {
    let house = TestServer::open().await;
    let body = vec![b' '; 1 << 20];
    let reply = send(house.address(), "POST", "/v1/nothing", &JSON, &body).await;
    let (response, mut connection) = reply.read_on().await;
    response.error(404, "unknown_url", None);
    write_request(&mut connection, "GET", "/v1/models", &[], b"").await;
    assert_eq!(read_head(connection).await.status, 200);
}
