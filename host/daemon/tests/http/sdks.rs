//! Tests the server with the official SDKs of OpenAI and Anthropic (`tests/python/sdks.py`), streaming and not. `cargo
//! xtask setup` installs them; without them the test is skipped, with a message.

use crate::support::clients::OfficialClients;
use crate::support::{Options, TestServer};
use crate::tools::HERMES;
use foreword_server::keys::ApiKeys;
use foreword_server::transcripts::Bounds;
use std::time::Duration;

#[tokio::test]
async fn official_sdks_read_every_answer() {
    let Some(clients) = OfficialClients::installed(&["openai", "anthropic"]) else {
        return;
    };
    let house = TestServer::with(Options {
        template: Some(HERMES),
        keys: Some(ApiKeys::of([b"sk-test".as_slice()])),
        store: Some(Bounds {
            responses: 100,
            bytes: 1 << 20,
            time: Duration::from_secs(600),
        }),
        ..Options::default()
    })
    .await;
    let text = clients.run("sdks.py", house.address()).await;
    assert!(text.trim_end().ends_with("22 checks"), "{text}");
}

/// Recorded streams of the real servers (`tests/recorded`) and this server's, read by the SDKs' own parsers.
#[tokio::test]
async fn streams_are_those_that_the_real_servers_sent() {
    let Some(clients) = OfficialClients::installed(&["openai", "anthropic"]) else {
        return;
    };
    let house = TestServer::with(Options {
        template: Some(HERMES),
        keys: Some(ApiKeys::of([b"sk-test".as_slice()])),
        ..Options::default()
    })
    .await;
    let text = clients.run("recorded.py", house.address()).await;
    assert!(text.trim_end().ends_with(" checks"), "{text}");
}
