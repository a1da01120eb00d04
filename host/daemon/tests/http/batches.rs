//! Tests `/v1/files` and `/v1/batches`: life cycle, owners, limits, restarts.

use crate::support::client::{self, Response};
use crate::support::clients::OfficialClients;
use crate::support::process::Process;
use crate::support::{MODEL, Options, TestServer, until};
use foreword_ordering::RawConfig;
use foreword_server::batches::{Bounds, Config};
use foreword_server::keys::ApiKeys;
use foreword_simulation::BatchOrder;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) fn config(folder: &Path) -> Config {
    Config {
        folder: folder.join("batches"),
        bounds: Bounds {
            files: 20,
            bytes: 1 << 20,
            requests: 50,
            batches: 4,
            time: Duration::from_secs(3_600),
        },
        concurrency: 2,
        order: BatchOrder::Plan,
        ordering: RawConfig::default(),
    }
}

async fn server(folder: &Path) -> TestServer {
    with(Options {
        batches: Some(config(folder)),
        ..Options::default()
    })
    .await
}

async fn with(options: Options) -> TestServer {
    TestServer::with(options).await
}

/// Sends a request with its own headers and body.
async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Response {
    let mut connection = client::connect(address).await;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    // A server that refuses may close the connection before it has read everything.
    let _ = connection
        .write_all(&[head.as_bytes(), body].concat())
        .await;
    client::read_head(tokio::io::BufReader::new(connection))
        .await
        .read()
        .await
}

fn key(key: &str) -> String {
    format!("authorization: Bearer {key}\r\n")
}

async fn get(address: SocketAddr, path: &str, headers: &str) -> Response {
    send(address, "GET", path, headers, b"").await
}

fn form(purpose: &str, content: &str) -> String {
    format!(
        "--XX\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\n{purpose}\r\n--XX\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\
         content-type: application/octet-stream\r\n\r\n{content}\r\n--XX--\r\n"
    )
}

async fn upload(address: SocketAddr, headers: &str, form: &str) -> Response {
    let headers = format!("content-type: multipart/form-data; boundary=XX\r\n{headers}");
    send(address, "POST", "/v1/files", &headers, form.as_bytes()).await
}

async fn create(address: SocketAddr, headers: &str, file: &str) -> Response {
    let headers = format!("content-type: application/json\r\n{headers}");
    let body = json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"job": "night"}});
    send(
        address,
        "POST",
        "/v1/batches",
        &headers,
        body.to_string().as_bytes(),
    )
    .await
}

fn line(id: usize, content: &str) -> String {
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": content}]});
    let line = json!({"custom_id": format!("q{id}"), "method": "POST", "url": "/v1/chat/completions", "body": body});
    format!("{line}\n")
}

fn lines(count: usize) -> String {
    (0..count)
        .map(|id| line(id, &format!("say(answer {id})")))
        .collect()
}

/// Creates a batch of these lines.
async fn begin(address: SocketAddr, headers: &str, lines: &str) -> String {
    let file = upload(address, headers, &form("batch", lines)).await;
    assert_eq!(file.status, 200, "{}", file.text());
    let batch = create(address, headers, file.json()["id"].as_str().unwrap()).await;
    assert_eq!(batch.status, 200, "{}", batch.text());
    assert_eq!(batch.json()["status"], "validating");
    batch.json()["id"].as_str().unwrap().to_owned()
}

/// Waits until a batch has ended, and returns it.
async fn ended(address: SocketAddr, headers: &str, id: &str) -> Value {
    loop {
        let batch = get(address, &format!("/v1/batches/{id}"), headers)
            .await
            .json();
        if ["completed", "failed", "expired", "cancelled"]
            .iter()
            .any(|end| batch["status"] == *end)
        {
            return batch;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Returns the lines of an output file, by id.
async fn answers(address: SocketAddr, headers: &str, file: &Value) -> Vec<(String, Value)> {
    let path = format!("/v1/files/{}/content", file.as_str().unwrap());
    let content = get(address, &path, headers).await;
    assert_eq!(content.status, 200);
    let mut answers: Vec<(String, Value)> = (content.text().lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .map(|line: Value| (line["custom_id"].as_str().unwrap().to_owned(), line))
        .collect();
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    answers
}

#[tokio::test]
async fn a_batch_is_asked_and_its_answers_and_refusals_become_files() {
    let folder = TempDir::new().unwrap();
    let house = server(folder.path()).await;
    let address = house.address();
    let wrong = json!({"custom_id": "w", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "other", "messages": []}});
    let id = begin(address, "", &format!("{}{wrong}\n", lines(9))).await;
    let batch = ended(address, "", &id).await;
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(
        batch["request_counts"],
        json!({"total": 10, "completed": 9, "failed": 1})
    );
    assert_eq!(batch["metadata"], json!({"job": "night"}));
    for at in ["in_progress_at", "finalizing_at", "completed_at"] {
        assert!(batch[at].is_u64(), "{batch}");
    }
    assert!(batch["usage"]["input_tokens"].as_u64().unwrap() > 0);
    let output = answers(address, "", &batch["output_file_id"]).await;
    assert_eq!(output.len(), 9);
    for (at, (id, line)) in output.iter().enumerate() {
        assert_eq!(*id, format!("q{at}"));
        let said = &line["response"]["body"]["choices"][0]["message"]["content"];
        assert_eq!(*said, format!("answer {at}"));
    }
    let errors = answers(address, "", &batch["error_file_id"]).await;
    assert_eq!(errors[0].1["response"]["status_code"], 400);

    // Files are listed latest first, and can be deleted now.
    let files = get(address, "/v1/files?purpose=batch_output&limit=1", "")
        .await
        .json();
    assert_eq!(
        (files["data"].as_array().unwrap().len(), &files["has_more"]),
        (1, &json!(true))
    );
    let input = batch["input_file_id"].as_str().unwrap();
    let path = format!("/v1/files/{input}");
    assert_eq!(get(address, &path, "").await.json()["filename"], "in.jsonl");
    let removed = send(address, "DELETE", &path, "", b"").await;
    assert_eq!(
        removed.json(),
        json!({"id": input, "object": "file", "deleted": true})
    );
    get(address, &path, "")
        .await
        .error(404, "file_not_found", None);
    let listed = get(address, "/v1/batches", "").await.json();
    assert_eq!(listed["data"][0]["id"], id);
    house.idle().await;
}

#[tokio::test]
async fn a_file_that_is_no_batch_fails_with_its_lines_named() {
    let folder = TempDir::new().unwrap();
    let house = server(folder.path()).await;
    let address = house.address();
    let other = line(3, "x").replace("/v1/chat/completions", "/v1/completions");
    let text = format!("{}{{}}\n{}{other}", line(1, "x"), line(1, "x"));
    let id = begin(address, "", &text).await;
    let batch = ended(address, "", &id).await;
    assert_eq!(
        (&batch["status"], &batch["output_file_id"]),
        (&json!("failed"), &Value::Null)
    );
    let errors = batch["errors"]["data"].as_array().unwrap();
    let found: Vec<_> = errors
        .iter()
        .map(|error| error["line"].as_u64().unwrap())
        .collect();
    assert_eq!(found, [2, 4, 3]);
    assert!(
        errors[2]["message"]
            .as_str()
            .unwrap()
            .contains("that of line 1 too"),
        "{batch}"
    );
    let id = begin(address, "", "\n").await;
    let batch = ended(address, "", &id).await;
    assert_eq!(batch["errors"]["data"][0]["code"], "empty_file");
    let id = begin(address, "", &lines(51)).await;
    let batch = ended(address, "", &id).await;
    let message = batch["errors"]["data"][0]["message"].as_str().unwrap();
    assert!(message.contains("more than 50 requests"), "{batch}");
}

#[tokio::test]
async fn nobody_finds_what_is_anothers() {
    let folder = TempDir::new().unwrap();
    let house = with(Options {
        batches: Some(config(folder.path())),
        keys: Some(ApiKeys::of([b"one".as_slice(), b"two"])),
        ..Options::default()
    })
    .await;
    let address = house.address();
    let (one, two) = (key("one"), key("two"));
    let id = begin(address, &one, &lines(2)).await;
    let batch = ended(address, &one, &id).await;
    assert_eq!(batch["status"], "completed");
    let file = batch["input_file_id"].as_str().unwrap();
    let output = batch["output_file_id"].as_str().unwrap();
    for path in [
        format!("/v1/files/{file}"),
        format!("/v1/files/{file}/content"),
        format!("/v1/files/{output}/content"),
    ] {
        get(address, &path, &two)
            .await
            .error(404, "file_not_found", None);
        assert_eq!(get(address, &path, "").await.status, 401);
        assert_eq!(get(address, &path, &one).await.status, 200);
    }
    let path = format!("/v1/batches/{id}");
    get(address, &path, &two)
        .await
        .error(404, "batch_not_found", None);
    let cancel = send(address, "POST", &format!("{path}/cancel"), &two, b"").await;
    cancel.error(404, "batch_not_found", None);
    let removed = send(address, "DELETE", &format!("/v1/files/{file}"), &two, b"").await;
    removed.error(404, "file_not_found", None);
    create(address, &two, file)
        .await
        .error(404, "file_not_found", Some("input_file_id"));
    for list in ["/v1/files", "/v1/batches"] {
        assert_eq!(get(address, list, &two).await.json()["data"], json!([]));
    }
}

#[tokio::test]
async fn a_batch_waits_while_a_request_waits_and_ends_when_it_is_cancelled() {
    let folder = TempDir::new().unwrap();
    let house = with(Options {
        batches: Some(config(folder.path())),
        max_running: 1,
        ..Options::default()
    })
    .await;
    let address = house.address();
    house.steps.hold(0);
    // One request runs and one waits, until the steps are released.
    let chat = json!({"messages": [{"role": "user", "content": "say(live)"}]});
    let live: Vec<_> = (0..2)
        .map(|_| {
            let chat = chat.clone();
            tokio::spawn(async move { client::post(address, "/v1/chat/completions", &chat).await })
        })
        .collect();
    until("one waits", || house.stats().waiting == 1).await;
    let id = begin(address, "", &lines(5)).await;
    let path = format!("/v1/batches/{id}");
    loop {
        let batch = get(address, &path, "").await.json();
        if batch["status"] == "in_progress" {
            assert_eq!(batch["request_counts"]["completed"], 0);
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(house.stats().waiting, 1);
    let cancelled = send(address, "POST", &format!("{path}/cancel"), "", b"").await;
    assert_eq!(cancelled.json()["status"], "cancelling");
    let batch = ended(address, "", &id).await;
    assert_eq!(
        (&batch["status"], &batch["request_counts"]["completed"]),
        (&json!("cancelled"), &json!(0))
    );
    assert_eq!(house.stats().waiting, 1);
    house.steps.release();
    for live in live {
        assert_eq!(live.await.unwrap().status, 200);
    }
    let again = send(address, "POST", &format!("{path}/cancel"), "", b"").await;
    again.error(400, "invalid_value", Some("batch_id"));
}

#[tokio::test]
async fn a_batch_goes_on_after_a_restart_and_asks_nothing_twice() {
    let folder = TempDir::new().unwrap();
    let house = with(Options {
        batches: Some(Config {
            concurrency: 1,
            ..config(folder.path())
        }),
        ..Options::default()
    })
    .await;
    let id = begin(house.address(), "", &lines(30)).await;
    let path = format!("/v1/batches/{id}");
    let before = until_completed(house.address(), &path, 3).await;
    house.server.stop().await;
    let house = server(folder.path()).await;
    let batch = ended(house.address(), "", &id).await;
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(
        batch["request_counts"],
        json!({"total": 30, "completed": 30, "failed": 0})
    );
    let output = answers(house.address(), "", &batch["output_file_id"]).await;
    assert_eq!(output.len(), 30);
    // Requests answered before the restart count.
    assert!(house.stats().finished <= 30 - before);
}

/// Returns the value of a metric with these labels.
async fn metric(house: &TestServer, name: &str) -> u64 {
    let metrics = client::get(house.internal(), "/metrics").await;
    let text = metrics.text();
    let told = text.lines().find_map(|line| line.strip_prefix(name));
    let told = told.unwrap_or_else(|| panic!("no {name} in {text}"));
    told.trim().parse().unwrap()
}

#[tokio::test]
async fn the_metrics_count_batches_by_status_and_their_requests_by_outcome() {
    let folder = TempDir::new().unwrap();
    let house = with(Options {
        batches: Some(config(folder.path())),
        max_running: 1,
        ..Options::default()
    })
    .await;
    let address = house.address();
    // All counters exist from the start, so that their rate can be computed.
    for name in [
        "batches{status=\"in_progress\"}",
        "batches_ended_total{status=\"expired\"}",
        "batch_requests_total{outcome=\"served\"}",
        "batch_requests_waiting",
        "batch_bytes",
    ] {
        assert_eq!(metric(&house, &format!("foreword_{name}")).await, 0);
    }
    // One request runs and one waits, so that the batch waits too, until the steps are released.
    house.steps.hold(0);
    let chat = json!({"messages": [{"role": "user", "content": "say(live)"}]});
    let live = [chat.clone(), chat].map(|chat| {
        tokio::spawn(async move { client::post(address, "/v1/chat/completions", &chat).await })
    });
    until("one waits", || house.stats().waiting == 1).await;
    let wrong = json!({"custom_id": "w", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "other", "messages": []}});
    let text = format!("{}{wrong}\n", lines(4));
    let id = begin(address, "", &text).await;
    while metric(&house, "foreword_batches{status=\"in_progress\"}").await == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(metric(&house, "foreword_batch_requests_waiting").await, 5);
    assert_eq!(
        metric(&house, "foreword_batch_bytes").await,
        text.len() as u64
    );
    house.steps.release();
    for live in live {
        assert_eq!(live.await.unwrap().status, 200);
    }
    assert_eq!(ended(address, "", &id).await["status"], "completed");
    let wrong = begin(address, "", "{}\n").await;
    assert_eq!(ended(address, "", &wrong).await["status"], "failed");
    for (name, value) in [
        ("batches{status=\"in_progress\"}", 0),
        ("batches{status=\"completed\"}", 1),
        ("batches{status=\"failed\"}", 1),
        ("batches_ended_total{status=\"completed\"}", 1),
        ("batches_ended_total{status=\"failed\"}", 1),
        ("batch_requests_total{outcome=\"served\"}", 4),
        ("batch_requests_total{outcome=\"failed\"}", 1),
        ("batch_requests_waiting", 0),
    ] {
        let name = format!("foreword_{name}");
        assert_eq!(metric(&house, &name).await, value, "{name}");
    }
    let answers = metric(&house, "foreword_batch_bytes").await - text.len() as u64 - 3;
    assert!(answers > 500, "{answers}");
}

#[tokio::test]
async fn a_batch_whose_time_runs_out_keeps_what_was_answered() {
    let folder = TempDir::new().unwrap();
    let mut config = config(folder.path());
    config.concurrency = 1;
    config.bounds.bytes = 4 << 20;
    let house = with(Options {
        batches: Some(config),
        ..Options::default()
    })
    .await;
    // More than a MiB, after which it is asked for the first time, as the file is read, whether the batch has ended.
    let long: String = lines(40)
        .lines()
        .map(|line| format!("{line}{}\n", " ".repeat(30_000)))
        .collect();
    let id = begin(house.address(), "", &long).await;
    let path = format!("/v1/batches/{id}");
    until_completed(house.address(), &path, 2).await;
    house.server.stop().await;
    let answers_file = folder.path().join(format!("batches/{id}.output"));
    let mut torn = std::fs::read(&answers_file).unwrap();
    torn.extend_from_slice(b"{\"id\": \"half");
    std::fs::write(&answers_file, torn).unwrap();

    let record = folder.path().join(format!("batches/{id}.json"));
    let mut kept: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    assert_eq!(kept["status"], "in_progress");
    kept["expires_at"] = json!(1);
    std::fs::write(&record, kept.to_string()).unwrap();
    let house = server(folder.path()).await;
    let batch = ended(house.address(), "", &id).await;
    assert_eq!(batch["status"], "expired");
    let completed = batch["request_counts"]["completed"].as_u64().unwrap();
    assert!((2..40).contains(&completed));
    let output = answers(house.address(), "", &batch["output_file_id"]).await;
    assert_eq!(output.len() as u64, completed);
    assert_eq!(house.stats().finished, 0);
}

/// Waits until at least `least` requests of a batch are answered; returns their number.
async fn until_completed(address: SocketAddr, path: &str, least: u64) -> u64 {
    loop {
        let batch = get(address, path, "").await.json();
        let completed = batch["request_counts"]["completed"].as_u64().unwrap();
        if completed >= least {
            return completed;
        }
    }
}

#[tokio::test]
async fn a_server_that_is_killed_goes_on_with_its_batches_and_mends_a_line_that_was_cut_short() {
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("batches");
    let arguments = [
        "--batch-dir",
        place.to_str().unwrap(),
        "--batch-concurrency",
        "2",
    ];
    let mut first = Process::serve(&arguments);
    let lines: String = (0..60)
        .map(|id| {
            let body = json!({"messages": [{"role": "user", "content": format!("{id}")}], "max_tokens": 8});
            let line = json!({"custom_id": id.to_string(), "method": "POST", "url": "/v1/chat/completions", "body": body});
            format!("{line}\n")
        })
        .collect();
    let id = begin(first.address, "", &lines).await;
    let path = format!("/v1/batches/{id}");
    until_completed(first.address, &path, 3).await;
    first.signal("KILL");
    first.exit().await;
    let output = place.join(format!("{id}.output"));
    let mut text = std::fs::read_to_string(&output).unwrap();
    text.truncate(text.rfind('\n').unwrap() + 1);
    let kept = text.lines().count();
    let whole = text.clone();
    text.push_str("{\"id\": \"half");
    std::fs::write(&output, text).unwrap();

    let second = Process::serve(&arguments);
    let batch = ended(second.address, "", &id).await;
    assert_eq!(
        batch["request_counts"],
        json!({"total": 60, "completed": 60, "failed": 0}),
        "{batch}"
    );
    let file = batch["output_file_id"].as_str().unwrap();
    let content = get(second.address, &format!("/v1/files/{file}/content"), "").await;
    assert!(kept >= 3 && content.text().starts_with(&whole));
    let answers = answers(second.address, "", &batch["output_file_id"]).await;
    let mut ids: Vec<usize> = answers.iter().map(|(id, _)| id.parse().unwrap()).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..60));
}

#[tokio::test]
async fn a_server_that_ended_while_it_made_files_of_the_answers_does_the_rest() {
    let folder = TempDir::new().unwrap();
    let house = server(folder.path()).await;
    let id = begin(house.address(), "", &lines(3)).await;
    let batch = ended(house.address(), "", &id).await;
    house.server.stop().await;

    // The state between the writes of the file's record and of the file.
    let place = folder.path().join("batches");
    let file = batch["output_file_id"].as_str().unwrap();
    let answers_file = place.join(format!("{file}.jsonl"));
    std::fs::rename(&answers_file, place.join(format!("{id}.output"))).unwrap();
    let record = place.join(format!("{id}.json"));
    let mut kept: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    kept["status"] = json!("finalizing");
    std::fs::write(&record, kept.to_string()).unwrap();

    let house = server(folder.path()).await;
    let again = ended(house.address(), "", &id).await;
    assert_eq!(
        (&again["status"], &again["output_file_id"]),
        (&json!("completed"), &json!(file))
    );
    assert_eq!(
        answers(house.address(), "", &again["output_file_id"])
            .await
            .len(),
        3
    );
    assert_eq!(house.stats().finished, 0);
}

#[tokio::test]
async fn bad_requests_are_refused_with_the_value_and_the_limit() {
    let folder = TempDir::new().unwrap();
    let house = server(folder.path()).await;
    let address = house.address();
    let refused =
        |purpose: &'static str| async move { upload(address, "", &form(purpose, "x")).await };
    let error = refused("fine-tune")
        .await
        .error(400, "invalid_value", Some("purpose"));
    assert_eq!(error, "purpose must be `batch`, got `fine-tune`");
    let no_file =
        "--XX\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--XX--\r\n";
    upload(address, "", no_file)
        .await
        .error(400, "invalid_value", Some("file"));
    upload(address, "", "--XX\r\ngarbage")
        .await
        .error(400, "invalid_value", None);
    let json = send(
        address,
        "POST",
        "/v1/files",
        "content-type: application/json\r\n",
        b"{}",
    )
    .await;
    json.error(400, "invalid_value", None);
    // Larger than the folder's limit.
    let full = upload(address, "", &form("batch", &"x".repeat(1 << 20 | 1))).await;
    assert!(
        full.error(413, "storage_full", None)
            .contains("1048576 bytes")
    );
    assert_eq!(
        get(address, "/v1/files", "").await.json()["data"],
        json!([])
    );

    let file = upload(address, "", &form("batch", &lines(1))).await.json();
    let file = file["id"].as_str().unwrap();
    for (field, value) in [
        ("endpoint", json!("/v1/messages")),
        ("completion_window", json!("7d")),
        ("metadata", json!({"a": 1})),
        ("colour", json!("red")),
    ] {
        let mut body = json!({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"});
        body[field] = value;
        let answer = client::post(address, "/v1/batches", &body).await;
        answer.error(400, "invalid_value", Some(field));
    }
    get(address, "/v1/batches?limit=101", "")
        .await
        .error(400, "invalid_value", Some("limit"));
    get(address, "/v1/files?order=up", "")
        .await
        .error(400, "invalid_value", Some("order"));
    get(address, "/v1/files?after=x", "")
        .await
        .error(400, "invalid_value", Some("after"));
    get(address, "/v1/files/..%2Flock/content", "")
        .await
        .error(404, "file_not_found", None);
    // The refused uploads left nothing: there are only the lock, and one file with its record.
    let left = std::fs::read_dir(folder.path().join("batches"))
        .unwrap()
        .count();
    assert_eq!(left, 3);
}

#[tokio::test]
async fn a_forms_heads_are_bounded_and_its_file_is_not_held() {
    let folder = TempDir::new().unwrap();
    let mut config = config(folder.path());
    config.bounds.bytes = 16 << 20;
    let house = with(Options {
        batches: Some(config),
        ..Options::default()
    })
    .await;
    let address = house.address();
    let long = "x".repeat(4 << 20);
    let heads = [
        // Before the first part, in its head, and between parts.
        long.clone(),
        format!("--XX\r\ncontent-disposition: form-data; name=\"{long}"),
        "--XX\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n".repeat(40_000),
    ];
    for form in heads {
        let refused = upload(address, "", &form).await;
        let message = refused.error(400, "invalid_value", None);
        assert!(message.contains("more than 1048576 bytes"), "{message}");
    }
    // The client hears why, although it has more to send.
    let unknown =
        "--XX\r\ncontent-disposition: form-data; name=\"colour\"\r\n\r\nred\r\n".to_owned();
    let refused = upload(
        address,
        "",
        &(unknown + &form("batch", &"x".repeat(12 << 20))),
    )
    .await;
    let message = refused.error(400, "invalid_value", Some("colour"));
    assert_eq!(message, "colour is not known for a file");
    // A file four times that size is processed as it arrives, with its line breaks.
    let lines = "x\r\n".repeat((4 << 20) / 3);
    let kept = upload(address, "", &form("batch", &lines)).await.json();
    assert_eq!(kept["bytes"], lines.len());
}

#[tokio::test]
async fn a_line_has_no_more_bytes_than_a_body() {
    let folder = TempDir::new().unwrap();
    let house = with(Options {
        batches: Some(config(folder.path())),
        max_body_bytes: 1_000,
        ..Options::default()
    })
    .await;
    let address = house.address();
    let long = line(1, &format!("say({})", "x".repeat(1_000)));
    let batch = begin(address, "", &[line(0, "say(yes)"), long].concat()).await;
    let batch = ended(address, "", &batch).await;
    assert_eq!(batch["status"], "failed");
    let error = &batch["errors"]["data"][0];
    assert_eq!(error["line"], 2);
    assert_eq!(
        error["message"],
        "line 2: the line has more than 1000 bytes"
    );
    assert_eq!(batch["finalizing_at"], Value::Null);
}

#[tokio::test]
async fn an_upload_that_is_broken_off_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let house = server(folder.path()).await;
    let whole = form("batch", &"x".repeat(100_000));
    let mut connection = client::connect(house.address()).await;
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary=XX\r\ncontent-length: {}\r\n\r\n",
        whole.len()
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    connection
        .write_all(&whole.as_bytes()[..90_000])
        .await
        .unwrap();
    let left = || {
        std::fs::read_dir(folder.path().join("batches"))
            .unwrap()
            .count()
    };
    until("it is being written", || left() == 2).await;
    drop(connection);
    until("it is removed", || left() == 1).await;
}

#[tokio::test]
async fn a_form_comes_in_pieces_of_any_length_and_with_a_boundary_of_seventy_bytes_at_most() {
    let folder = TempDir::new().unwrap();
    let house = server(folder.path()).await;
    for (length, status) in [(70, 200), (71, 400)] {
        let boundary = "X".repeat(length);
        let form = form("batch", &lines(2)).replace("--XX", &format!("--{boundary}"));
        let mut connection = client::connect(house.address()).await;
        let head = format!(
            "POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: multipart/form-data; boundary={boundary}\r\n\
             transfer-encoding: chunked\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        let mut pieces = String::new();
        for byte in form.chars() {
            pieces.push_str(&format!("1\r\n{byte}\r\n"));
        }
        pieces.push_str("0\r\n\r\n");
        connection.write_all(pieces.as_bytes()).await.unwrap();
        let mut line = [0; 12];
        connection.read_exact(&mut line).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&line), format!("HTTP/1.1 {status}"));
    }
}

#[tokio::test]
async fn a_server_without_a_folder_takes_none_and_says_how() {
    let house = TestServer::open().await;
    for path in ["/v1/files", "/v1/batches", "/v1/files/x/content"] {
        let error = get(house.address(), path, "")
            .await
            .error(400, "invalid_value", None);
        assert!(error.contains("--batch-dir"), "{error}");
    }
    let error = upload(house.address(), "", &form("batch", "x")).await;
    assert!(
        error
            .error(400, "invalid_value", None)
            .contains("--batch-dir")
    );
}

#[tokio::test]
async fn the_official_client_runs_a_batch() {
    let Some(clients) = OfficialClients::installed(&["openai"]) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let house = with(Options {
        batches: Some(config(folder.path())),
        keys: Some(ApiKeys::of([b"sk-test".as_slice(), b"sk-other"])),
        ..Options::default()
    })
    .await;
    let text = clients.run("batches.py", house.address()).await;
    assert!(text.trim_end().ends_with("21 checks"), "{text}");
}
