//! `foreword batch` as a user runs it, against endpoints that follow a script.

use foreword_tests::{Received, Reply, Upstream, artifacts};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock, Mutex};
use tempfile::TempDir;

static BINARY: LazyLock<PathBuf> = LazyLock::new(|| artifacts::host_binary("dev").unwrap());

/// A folder with a batch in it.
struct Folder(TempDir);

impl Folder {
    fn of(lines: &[String]) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("batch.jsonl"), lines.concat()).unwrap();
        Self(folder)
    }

    fn command(&self, upstream: &Upstream, arguments: &[&str]) -> Command {
        let mut command = Command::new(&*BINARY);
        command
            .args(["batch", "batch.jsonl", "--out", "out.jsonl", "--json"])
            .args(["--endpoint", &format!("http://{}", upstream.address())])
            // The waits between attempts are not under test.
            .args(["--backoff-ms", "0"])
            .args(arguments)
            .current_dir(self.0.path());
        for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, upstream: &Upstream, arguments: &[&str]) -> Output {
        self.command(upstream, arguments).output().unwrap()
    }

    /// Runs it, which must end with this code, and returns the summary.
    #[track_caller]
    fn summary(&self, upstream: &Upstream, arguments: &[&str], code: i32) -> Value {
        let output = self.run(upstream, arguments);
        assert_eq!(output.status.code(), Some(code), "{}", error_of(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The lines of the output by their ids, each of which it has once.
    fn answers(&self) -> HashMap<String, Value> {
        let text = std::fs::read_to_string(self.file("out.jsonl")).unwrap();
        let mut answers = HashMap::new();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let id = line["custom_id"].as_str().unwrap().to_owned();
            assert!(answers.insert(id, line).is_none());
        }
        answers
    }
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn line(id: &str, body: &Value) -> String {
    let line =
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body});
    format!("{line}\n")
}

/// A question about documents, with its number in it.
fn question(number: usize, documents: &[usize]) -> String {
    let documents: Vec<Value> = documents
        .iter()
        .map(|document| json!({"id": format!("d{document}"), "text": format!("text of {document}.")}))
        .collect();
    let messages = json!([{"role": "user", "content": format!("question {number}?")}]);
    let body = json!({"model": "m", "messages": messages, "documents": documents});
    line(&format!("q{number}"), &body)
}

/// Returns the number of the question that a request asks.
fn asked(request: &Received) -> usize {
    let text = request.text();
    let (_, rest) = text.rsplit_once("question ").unwrap();
    rest.split_once('?').unwrap().0.parse().unwrap()
}

/// Returns the documents of a request, in their order.
fn documents(request: &Received) -> Vec<usize> {
    let text = request.text();
    let pieces = text.split("text of ").skip(1);
    let numbers = pieces.map(|piece| piece.split_once('.').unwrap().0.parse());
    numbers.map(Result::unwrap).collect()
}

const ANSWER: &str = r#"{"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}}"#;

fn answering() -> Upstream {
    Upstream::scripted(|_, reply| reply.json(200, ANSWER)).unwrap()
}

/// Answers with a head of its own.
fn with_head(reply: &mut Reply<'_>, head: &str, body: &str) -> anyhow::Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    reply.raw(head.as_bytes())
}

fn interleaved() -> Vec<String> {
    // Three groups in turn; within a group two documents are shared, at any rank.
    (0..18)
        .map(|number| {
            let group = number % 3 * 10;
            match number % 2 {
                0 => question(number, &[100 + number, group, group + 1]),
                _ => question(number, &[group + 1, 100 + number, group]),
            }
        })
        .collect()
}

#[test]
fn requests_that_share_documents_follow_each_other_and_begin_with_them() {
    let upstream = answering();
    let folder = Folder::of(&interleaved());
    let free = r#"{"rank": {"place": "free"}}"#;
    std::fs::write(folder.file("free.json"), free).unwrap();
    let arguments = ["--concurrency", "1", "--ordering", "free.json"];
    let summary = folder.summary(&upstream, &arguments, 0);
    let sent: Vec<Vec<usize>> = upstream.received().iter().map(documents).collect();
    let groups: Vec<usize> = sent.iter().map(|documents| documents[0] / 10).collect();
    assert!(groups.chunk_by(|a, b| a == b).count() == 3, "{groups:?}");
    for of_one in sent.chunk_by(|a, b| a[0] / 10 == b[0] / 10) {
        let group = of_one[0][0] / 10 * 10;
        assert_eq!(of_one[0][0] + of_one[0][1], 2 * group + 1);
        for documents in of_one {
            assert_eq!(documents[..2], of_one[0][..2]);
            assert!(documents[2] >= 100);
        }
    }
    assert_eq!(summary["served"], 18);
    assert_eq!(
        (&summary["prompt_tokens"], &summary["cached_tokens"]),
        (&json!(180), &json!(72))
    );
    assert_eq!(summary["completion_tokens"], 36);

    let answers = folder.answers();
    assert_eq!(answers.len(), 18);
    let answer = &answers["q7"];
    assert_eq!(answer["response"]["status_code"], 200);
    assert_eq!(answer["response"]["body"]["usage"]["prompt_tokens"], 10);
    assert!(answer["id"].is_string() && answer["error"].is_null());
}

#[test]
fn the_files_order_is_kept_on_request_and_its_documents_too() {
    let upstream = answering();
    let folder = Folder::of(&interleaved());
    std::fs::write(folder.file("ordering.json"), r#"{"policy": "retrieval"}"#).unwrap();
    let ordering = ["--ordering", "ordering.json", "--concurrency", "1"];
    folder.summary(
        &upstream,
        &[&["--order", "input"], &ordering[..]].concat(),
        0,
    );
    let sent: Vec<_> = upstream
        .received()
        .iter()
        .map(|sent| (asked(sent), documents(sent)))
        .collect();
    for (at, (number, documents)) in sent.iter().enumerate() {
        let group = at % 3 * 10;
        let expected = match at % 2 {
            0 => [100 + at, group, group + 1],
            _ => [group + 1, 100 + at, group],
        };
        assert_eq!((*number, documents.as_slice()), (at, &expected[..]));
    }
    // A plan changes what this policy keeps.
    let refused = folder.run(&upstream, &ordering);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        error_of(&refused).contains("policy \"retrieval\""),
        "{}",
        error_of(&refused)
    );
}

#[test]
fn after_a_kill_nothing_is_asked_again_that_the_output_answers() {
    for (killed_at, torn) in [(1, ""), (8, "{\"id\": \"half"), (30, "")] {
        let (reached, wait) = channel();
        let (release, killed) = channel::<()>();
        let ends = Mutex::new((reached, killed));
        let count = AtomicU64::new(0);
        let upstream = Upstream::scripted(move |_, reply| {
            if count.fetch_add(1, Ordering::Relaxed) + 1 == killed_at {
                let ends = ends.lock().unwrap();
                ends.0.send(())?;
                // Blocks until the test has continued.
                let _ = ends.1.recv();
                return Ok(());
            }
            reply.json(200, ANSWER)
        })
        .unwrap();
        let lines: Vec<String> = (0..40)
            .map(|number| question(number, &[number % 4, number]))
            .collect();
        let folder = Folder::of(&lines);
        let mut first = folder
            .command(&upstream, &["--concurrency", "3"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait.recv().unwrap();
        first.kill().unwrap();
        first.wait().unwrap();
        release.send(()).unwrap();

        let out = folder.file("out.jsonl");
        let mut text = std::fs::read_to_string(&out).unwrap();
        let kept: Vec<String> = text.lines().map(str::to_owned).collect();
        let before = upstream.received().len();
        text.push_str(torn);
        std::fs::write(&out, text).unwrap();

        let summary = folder.summary(&upstream, &["--concurrency", "3"], 0);
        assert_eq!(summary["answered_before"], kept.len());
        assert_eq!(summary["served"], 40);
        let answered: Vec<String> = kept
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["custom_id"].to_string())
            .collect();
        let sent: Vec<String> = upstream.received()[before..]
            .iter()
            .map(|sent| format!("\"q{}\"", asked(sent)))
            .collect();
        // The upstream may read the last requests of the killed process late.
        assert!(sent.len() < 40 - kept.len() + 3, "{}", sent.len());
        let again: BTreeSet<&String> = sent.iter().collect();
        assert_eq!(again.len(), 40 - kept.len());
        assert!(again.iter().all(|id| !answered.contains(id)));
        let text = std::fs::read_to_string(&out).unwrap();
        assert!(kept.iter().eq(text.lines().take(kept.len())));
        assert_eq!(folder.answers().len(), 40);

        // And a finished batch asks nothing.
        let sent = upstream.received().len();
        assert_eq!(folder.summary(&upstream, &[], 0)["answered_before"], 40);
        assert_eq!(upstream.received().len(), sent);
    }
}

#[test]
fn what_may_pass_is_asked_again_and_a_refusal_is_an_answer() {
    let attempts: Arc<Mutex<HashMap<usize, u32>>> = Arc::default();
    let counted = Arc::clone(&attempts);
    let upstream = Upstream::scripted(move |request, reply| {
        let number = asked(request);
        let attempt = {
            let mut attempts = counted.lock().unwrap();
            let attempt = attempts.entry(number).or_default();
            *attempt += 1;
            *attempt
        };
        match (number, attempt) {
            (0, 1) => with_head(reply, "429 Slow\r\nretry-after: 0", "{}"),
            (1, 1) => with_head(
                reply,
                "503 No\r\nretry-after: Mon, 01 Jan 2024 00:00:00 GMT",
                "{}",
            ),
            (2, 1) => Ok(()),
            (3, 1) => with_head(reply, "200 OK", "<html>"),
            (4, 1 | 2) => reply.json(500, "{}"),
            (5, _) => reply.json(400, r#"{"error": {"message": "too long"}}"#),
            (6, _) => reply.json(404, r#"{"error": {"message": "no such model"}}"#),
            (7, _) => reply.json(500, r#"{"error": {"message": "always"}}"#),
            _ => reply.json(200, ANSWER),
        }
    })
    .unwrap();
    let lines: Vec<String> = (0..12).map(|number| question(number, &[number])).collect();
    let folder = Folder::of(&lines);
    let arguments = ["--retries", "2", "--concurrency", "2"];
    let summary = folder.summary(&upstream, &arguments, 3);
    assert_eq!(
        (&summary["served"], &summary["failed"]),
        (&json!(9), &json!(3))
    );
    assert_eq!(summary["repeated"], 8);
    let status = |id: &str| folder.answers()[id]["response"]["status_code"].clone();
    assert_eq!(
        [status("q4"), status("q5"), status("q6"), status("q7")],
        [200, 400, 404, 500]
    );
    assert_eq!(
        folder.answers()["q5"]["response"]["body"]["error"]["message"],
        "too long"
    );

    // What was not served is asked again on request alone.
    let sent = upstream.received().len();
    folder.summary(&upstream, &arguments, 3);
    assert_eq!(upstream.received().len(), sent);
    *attempts.lock().unwrap() = HashMap::new();
    let again = folder.summary(
        &upstream,
        &[&arguments[..], &["--retry-failed"]].concat(),
        3,
    );
    assert_eq!(
        (&again["answered_before"], &again["failed"]),
        (&json!(9), &json!(3))
    );
    assert_eq!(upstream.received().len(), sent + 5);
    assert_eq!(folder.answers().len(), 12);
}

#[test]
fn a_batch_can_end_though_many_of_its_requests_always_fail() {
    let upstream =
        Upstream::scripted(
            |request, reply| match request.text().contains("question 1") {
                true => reply.json(500, r#"{"error": {"message": "always"}}"#),
                false => reply.json(200, ANSWER),
            },
        )
        .unwrap();
    let lines: Vec<String> = (0..20).map(|number| question(number, &[number])).collect();
    let folder = Folder::of(&lines);
    let stopped = folder.run(&upstream, &["--retries", "0"]);
    assert_eq!(stopped.status.code(), Some(1));
    assert!(error_of(&stopped).contains("--keep-going"));
    let summary = folder.summary(&upstream, &["--retries", "0", "--keep-going"], 3);
    assert_eq!(
        (&summary["served"], &summary["failed"]),
        (&json!(9), &json!(11))
    );
    assert_eq!(folder.answers().len(), 20);
}

#[test]
fn an_endpoint_that_is_gone_or_refuses_the_key_ends_the_run_and_marks_nothing_as_failed() {
    for (status, words) in [
        (500, "3 requests in a row"),
        (401, "answered 401"),
        (302, "answered 302"),
    ] {
        let upstream =
            Upstream::scripted(move |_, reply| reply.json(status, "{\"no\": 1}")).unwrap();
        let lines: Vec<String> = (0..9).map(|number| question(number, &[number])).collect();
        let folder = Folder::of(&lines);
        let output = folder.run(&upstream, &["--retries", "1"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(error_of(&output).contains(words), "{}", error_of(&output));
        assert_eq!(folder.answers().len(), 0);

        let well = answering();
        assert_eq!(folder.summary(&well, &[], 0)["served"], 9);
    }
}

#[test]
fn every_wrong_line_is_named_before_anything_is_asked() {
    let upstream = answering();
    let lines = [
        question(1, &[1]),
        "{\"custom_id\": 7}\n".into(),
        "\n".into(),
        question(2, &[]),
        question(1, &[]),
    ];
    let folder = Folder::of(&lines);
    let output = folder.run(&upstream, &[]);
    assert_eq!(output.status.code(), Some(2));
    let error = error_of(&output);
    for words in [
        "batch.jsonl: line 2: `custom_id` must be a string",
        "batch.jsonl: line 5: `custom_id` is that of line 1 too",
        "2 lines are wrong; nothing was asked",
    ] {
        assert!(error.contains(words), "{error}");
    }
    assert!(upstream.received().is_empty() && !folder.file("out.jsonl").exists());
    let whole = Folder::of(&[question(1, &[1])]);
    assert_eq!(whole.summary(&upstream, &["--check"], 0)["requests"], 1);
    assert!(upstream.received().is_empty());
}

#[test]
fn an_output_that_is_the_input_or_anothers_is_left_alone() {
    let upstream = answering();
    let folder = Folder::of(&[question(1, &[1])]);
    let input = std::fs::read(folder.file("batch.jsonl")).unwrap();
    let same = folder.run(&upstream, &["--out", "batch.jsonl"]);
    assert!(!same.status.success());
    std::fs::hard_link(folder.file("batch.jsonl"), folder.file("out.jsonl")).unwrap();
    let output = folder.run(&upstream, &[]);
    assert!(
        error_of(&output).contains("is the input"),
        "{}",
        error_of(&output)
    );
    assert_eq!(std::fs::read(folder.file("batch.jsonl")).unwrap(), input);
    std::fs::remove_file(folder.file("out.jsonl")).unwrap();

    std::fs::write(folder.file("out.jsonl"), "{\"custom_id\": \"other\"}\n").unwrap();
    let output = folder.run(&upstream, &[]);
    assert_eq!(output.status.code(), Some(1));
    let error = error_of(&output);
    assert!(
        error.contains("line 1: no request of the batch") && error.contains("choose another --out"),
        "{error}"
    );
    assert!(upstream.received().is_empty());
}

#[test]
fn routes_bodies_and_keys_arrive_as_they_are_meant() {
    let upstream = answering();
    let lines = [
        "{\"custom_id\":\"e\",\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{\"input\": [1.0e3, \"\\u00e9\"]}}\n".to_owned(),
        "{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\": \"x\"}}".to_owned(),
    ];
    let folder = Folder::of(&lines);
    let endpoint = format!("http://{}/v1/", upstream.address());
    let mut command = folder.command(&upstream, &["--concurrency", "1", "--rate", "1000"]);
    let output = command
        .args(["--api-key-env", "THE_KEY"])
        .env("THE_KEY", "secret")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", error_of(&output));
    let received = upstream.received();
    let routes: Vec<&str> = received.iter().map(|sent| sent.line.as_str()).collect();
    assert_eq!(
        routes,
        [
            "POST /v1/embeddings HTTP/1.1",
            "POST /v1/completions HTTP/1.1"
        ]
    );
    assert_eq!(received[0].text(), r#"{"input": [1.0e3, "\u00e9"]}"#);
    assert_eq!(received[0].header("authorization"), Some("Bearer secret"));
    let again = Folder::of(&lines);
    let output = again
        .command(&upstream, &[])
        .args(["--endpoint", &endpoint])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "an argument given twice");
}
