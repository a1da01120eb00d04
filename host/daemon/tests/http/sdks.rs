//! The official SDKs of OpenAI and Anthropic against the server (`tests/python/sdks.py`), streaming and not. They are
//! installed by `cargo xtask setup`; without them the test says that it is skipped.

use crate::support::{MODEL, Options, TestServer};
use crate::tools::HERMES;
use foreword_server::keys::ApiKeys;
use foreword_server::transcripts::Bounds;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

#[tokio::test]
async fn official_sdks_read_every_answer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let modules = root.join(".tools/clients");
    if !modules.join("openai").is_dir() || !modules.join("anthropic").is_dir() {
        eprintln!(
            "SKIPPED: openai and anthropic are not in .tools/clients; run `cargo xtask setup`"
        );
        return;
    }
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
    let output = Command::new("python3")
        .arg(root.join("tests/python/sdks.py"))
        .arg(format!("http://{}", house.address()))
        .arg(MODEL)
        .env("PYTHONPATH", modules)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "127.0.0.1")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(120), output);
    let output = output
        .await
        .expect("an end within two minutes")
        .expect("python3 starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.trim_end().ends_with("22 checks"), "{text}");
}
