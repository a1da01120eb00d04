//! Tests stopping: which requests finish, which are refused, which are aborted.

use crate::chat::say;
use crate::streaming::{forever, streaming};
use crate::support::client::{begin, get, post};
use crate::support::{Options, TestServer, internal, until};
use foreword_server::gate::Phase;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

const PATH: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_stopping_server_finishes_what_runs_and_refuses_the_rest() {
    let TestServer { server, steps } = TestServer::open().await;
    let (address, app) = (server.address(), Arc::clone(server.app()));
    let internal = internal(&server);
    steps.hold(1);
    let mut running = begin(address, PATH, &streaming("to the end")).await;
    running.event().await.expect("it runs");

    let stopping = tokio::spawn(server.stop());
    app.gate.reached(Phase::Stopping).await;
    let ready = get(internal, "/readyz").await;
    assert_eq!(
        (ready.status, ready.json()),
        (503, json!({"status": "stopping"}))
    );
    assert_eq!(get(internal, "/healthz").await.status, 200);
    let refused = post(address, PATH, &say("x")).await;
    refused.error(503, "stopping", None);
    assert_eq!(refused.header("connection"), Some("close"));
    assert!(!stopping.is_finished());

    steps.release();
    let events = running.events().await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    stopping.await.unwrap();
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn a_whole_answer_is_finished_too() {
    let TestServer { server, steps } = TestServer::open().await;
    let (address, app) = (server.address(), Arc::clone(server.app()));
    steps.hold(1);
    let answer = tokio::spawn(async move { post(address, PATH, &say("whole")).await });
    until("it is inside", || app.gate.inside() == 1).await;
    let stopping = tokio::spawn(server.stop());
    app.gate.reached(Phase::Stopping).await;
    steps.release();
    assert_eq!(
        answer.await.unwrap().json()["choices"][0]["message"]["content"],
        "whole"
    );
    stopping.await.unwrap();
}

#[tokio::test]
async fn who_is_not_done_when_the_grace_is_over_is_told_so() {
    let TestServer { server, steps } = TestServer::with(Options {
        grace: Duration::ZERO,
        ..Options::default()
    })
    .await;
    let address = server.address();
    steps.hold(1);
    let mut running = begin(address, PATH, &forever()).await;
    running.event().await.expect("it runs");
    let stopping = tokio::spawn(server.stop());
    let events = running.events().await;
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "stopping", "{last}");
    steps.release();
    stopping.await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_does_not_hold_a_stop_up() {
    let TestServer { server, .. } = TestServer::open().await;
    let address = server.address();
    let _silent = TcpStream::connect(address).await.unwrap();
    let kept_alive = begin(address, PATH, &say("x")).await.read_on().await;
    // The grace period is ten minutes.
    let stopped = tokio::time::timeout(Duration::from_secs(60), server.stop()).await;
    assert!(stopped.is_ok(), "idle connections held the stop up");
    drop(kept_alive);
}

#[tokio::test]
async fn a_server_whose_engine_has_ended_is_no_longer_ready() {
    let house = TestServer::open().await;
    let app = Arc::clone(house.app());
    tokio::task::spawn_blocking(move || app.model.get().unwrap().engine().shutdown())
        .await
        .unwrap();
    post(house.address(), PATH, &say("x"))
        .await
        .error(503, "stopping", None);
    assert_eq!(get(house.internal(), "/readyz").await.status, 503);
}
