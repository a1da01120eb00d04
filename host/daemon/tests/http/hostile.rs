//! Tests clients that occupy resources without using them: heads and bodies that do not arrive, answers that are not
//! read. Each loses its own connection, and other clients are served. Outcomes are counted; time-outs are short, and
//! waited for.

use crate::chat::say;
use crate::streaming::streaming;
use crate::support::client::{begin, connect, get, post, read_head};
use crate::support::process::Process;
use crate::support::{Options, TestServer, until};
use foreword_server::connections::Bounds;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

const PATH: &str = "/v1/chat/completions";
/// The number in the issue that requested these limits.
const HALF_HEADS: usize = 250;
const HALF_BODIES: usize = 264;

fn bounded(connections: Bounds) -> Options {
    Options {
        connections,
        ..Options::default()
    }
}

async fn half_head(house: &TestServer) -> TcpStream {
    let mut connection = connect(house.address()).await;
    let sent = format!("POST {PATH} HTTP/1.1\r\nhost: test\r\nx-half: ");
    connection.write_all(sent.as_bytes()).await.unwrap();
    connection
}

/// Sends `sent` bytes of a body that announces `announced`.
async fn half_body(house: &TestServer, announced: usize, sent: usize) -> TcpStream {
    let mut connection = connect(house.address()).await;
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {announced}\r\n\r\n"
    );
    let body = vec![b' '; sent];
    // The connection may have been closed meanwhile.
    let _ = connection
        .write_all(&[head.as_bytes(), &body].concat())
        .await;
    connection
}

/// Returns what the server sent before it closed the connection.
async fn closed(mut connection: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    // A reset is a close as well.
    let _ = connection.read_to_end(&mut said).await;
    said
}

fn count(house: &TestServer, cause: &'static str) -> u64 {
    let counts = &house.app().metrics.connections;
    counts.closed_for("public", cause)
}

async fn is_answered(house: &TestServer) {
    let answer = post(house.address(), PATH, &say("still here")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(get(house.internal(), "/readyz").await.status, 200);
}

#[tokio::test]
async fn half_sent_heads_cost_each_other_their_connections_and_nobody_else_his() {
    let house = TestServer::with(bounded(Bounds {
        connections: 64,
        ..Bounds::default()
    }))
    .await;
    // One client is being answered meanwhile.
    house.steps.hold(1);
    let mut running = begin(house.address(), PATH, &streaming("to the end")).await;
    running.event().await.expect("it runs");
    let mut half = Vec::new();
    for _ in 0..HALF_HEADS {
        half.push(half_head(&house).await);
    }
    house.steps.release();
    is_answered(&house).await;
    assert_eq!(running.events().await.last().unwrap(), "[DONE]");
    assert!(house.app().connections.connections() <= 64);
    // One place was the running request's; later requests closed at most two connections more.
    let gone = (HALF_HEADS - 63) as u64;
    until("they went for each other", || {
        count(&house, "crowded") >= gone
    })
    .await;
    assert!(count(&house, "crowded") <= gone + 2);
}

#[tokio::test]
async fn announced_bodies_take_no_place_of_a_request() {
    let house = TestServer::with(Options {
        max_waiting: 1,
        max_running: 1,
        connections: Bounds {
            window: Duration::from_millis(500),
            ..Bounds::default()
        },
        ..Options::default()
    })
    .await;
    let mut half = Vec::new();
    for _ in 0..HALF_BODIES {
        half.push(half_body(&house, 1 << 20, 1).await);
    }
    assert_eq!(house.app().gate.inside(), 0);
    is_answered(&house).await;
    // Each connection is told why it is closed.
    for connection in half {
        let said = String::from_utf8(closed(connection).await).unwrap();
        assert!(said.starts_with("HTTP/1.1 408"), "{said}");
        assert!(said.contains("less than 1024 bytes per second"), "{said}");
    }
    is_answered(&house).await;
}

#[tokio::test]
async fn a_head_that_does_not_end_and_a_connection_that_nobody_uses_are_closed() {
    let house = TestServer::with(bounded(Bounds {
        head_time: Duration::from_millis(200),
        idle_time: Duration::from_millis(400),
        ..Bounds::default()
    }))
    .await;
    let silent = connect(house.address()).await;
    let half = half_head(&house).await;
    let (response, kept) = {
        let reply = begin(house.address(), PATH, &say("x")).await;
        reply.read_on().await
    };
    assert_eq!(response.status, 200);
    for connection in [silent, half, kept.into_inner()] {
        assert_eq!(closed(connection).await, b"");
    }
    assert_eq!(
        (count(&house, "head_time"), count(&house, "idle_time")),
        (2, 1)
    );
}

#[tokio::test]
async fn half_sent_bodies_share_a_memory() {
    let limit = 4 << 20;
    let house = TestServer::with(bounded(Bounds {
        body_bytes: limit,
        ..Bounds::default()
    }))
    .await;
    let mut half = Vec::new();
    for _ in 0..40 {
        half.push(half_body(&house, 1 << 20, 900 << 10).await);
        assert!(house.app().connections.arriving_bytes() <= limit);
    }
    until("the oldest went", || count(&house, "body_memory") >= 35).await;
    // A body of the same size that arrives is served.
    let mut body = say("received");
    body["documents"] = json!([{"id": "d", "text": "", "attachment": "x".repeat(2 << 20)}]);
    let answer = post(house.address(), PATH, &body).await;
    assert_eq!(answer.status, 200);
    drop(half);
    until("nothing is held", || {
        house.app().connections.arriving_bytes() == 0
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_closed() {
    let house = TestServer::with(bounded(Bounds {
        rate: 1 << 20,
        window: Duration::from_millis(300),
        ..Bounds::default()
    }))
    .await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut connection = socket.connect(house.address()).await.unwrap();
    // More responses than fit into the buffers of both sides, and none is read.
    let asked = b"GET /v1/models HTTP/1.1\r\nhost: test\r\n\r\n".repeat(1000);
    while connection.write_all(&asked).await.is_ok() {}
    assert_eq!(count(&house, "slow_reader"), 1);
    is_answered(&house).await;
}

#[tokio::test]
async fn places_that_nobody_gives_back_make_a_server_unready() {
    let house = TestServer::with(Options {
        max_waiting: 1,
        max_running: 1,
        ..Options::default()
    })
    .await;
    house.steps.hold(0);
    let running = begin(house.address(), PATH, &streaming("first")).await;
    // Until it runs, it occupies the place where the second one is to wait.
    until("the first runs", || house.stats().running == 1).await;
    let waiting = begin(house.address(), PATH, &streaming("second")).await;
    until("both are inside", || house.app().gate.inside() == 2).await;
    assert_eq!(get(house.internal(), "/readyz").await.status, 200);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    let ready = get(house.internal(), "/readyz").await;
    assert_eq!(
        (ready.status, ready.json()),
        (
            503,
            json!({"status": "exhausted", "exhausted": ["requests"]})
        )
    );
    assert_eq!(get(house.internal(), "/healthz").await.status, 200);
    house.steps.release();
    for reply in [running, waiting] {
        assert_eq!(reply.events().await.last().unwrap(), "[DONE]");
    }
    assert_eq!(get(house.internal(), "/readyz").await.status, 200);
}

#[tokio::test]
async fn a_process_that_may_open_few_files_answers_among_half_sent_heads() {
    let process = Process::serve_with_files(160, &[]);
    let mut half = Vec::new();
    for _ in 0..HALF_HEADS {
        let mut connection = connect(process.address).await;
        connection
            .write_all(b"GET /v1/models HTTP/1.1\r\nx-half: ")
            .await
            .unwrap();
        half.push(connection);
    }
    // A connection closed for another gives its file back before one more is accepted.
    let metrics = String::from_utf8(get(process.internal, "/metrics").await.body).unwrap();
    assert!(!metrics.contains("accept_failures_total{"), "{metrics}");
    for address in [process.address, process.internal] {
        let path = if address == process.address {
            "/v1/models"
        } else {
            "/readyz"
        };
        let mut connection = BufReader::new(connect(address).await);
        let asked = format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n");
        connection.write_all(asked.as_bytes()).await.unwrap();
        assert_eq!(read_head(connection).await.status, 200);
    }
}
