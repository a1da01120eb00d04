//! Tests the program `foreword index`: it converts a log to an `ordering` that `replay` and `check-config` accept.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

fn foreword(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foreword"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A chat with these retrieved documents.
fn chat(documents: &[&str]) -> String {
    let listed: Vec<Value> = documents
        .iter()
        .map(
            |id| json!({"id": id, "text": format!("The text of document {id}, a few words long.")}),
        )
        .collect();
    json!({"model": "m", "messages": [{"role": "user", "content": "Why?"}], "documents": listed})
        .to_string()
}

#[test]
fn a_log_makes_an_ordering_by_which_later_requests_open_alike() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let earlier = [
        &["b", "a", "x"][..],
        &["a", "y", "b"],
        &["b", "a", "z"],
        &["c"],
    ]
    .map(chat);
    std::fs::write(path.join("earlier.jsonl"), earlier.join("\n")).unwrap();
    let figures = json_of(&foreword(
        path,
        &["index", "earlier.jsonl", "--out", "ordering.json", "--json"],
    ));
    let expected = json!({
        "requests": 4, "contexts": 4, "documents": 6, "sharing_contexts": 3,
        "shared_documents": 0.6, "contexts_by_path_length": [1, 3],
    });
    assert_eq!(figures, expected);
    let text = std::fs::read_to_string(path.join("ordering.json")).unwrap();
    assert!(!text.contains("The text"), "it holds no text");
    let ordering: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(ordering["policy"], "context-index");
    assert_eq!(
        ordering["policy_options"]["history"]
            .as_array()
            .unwrap()
            .len(),
        4
    );

    // Both requests have a and b, but without the index neither shares a prefix with what was sent before it.
    let later = [&["q", "a", "b"][..], &["b", "r", "a"]].map(chat);
    std::fs::write(path.join("later.jsonl"), later.join("\n")).unwrap();
    let replay = |more: &[&str]| {
        let arguments = [
            "replay",
            "later.jsonl",
            "--json",
            "--no-report",
            "--rank",
            "free",
            "--policies",
            "context-index",
        ];
        json_of(&foreword(path, &[&arguments, more].concat()))
    };
    let (without, with) = (replay(&[]), replay(&["--ordering", "ordering.json"]));
    assert_eq!(without["policies"][0]["reuse"], 0.0);
    assert!(
        with["policies"][0]["reuse"].as_f64().unwrap() > 0.3,
        "{with}"
    );

    std::fs::write(
        path.join("plugin.json"),
        json!({"ordering": ordering}).to_string(),
    )
    .unwrap();
    let checked = foreword(path, &["check-config", "plugin.json"]);
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stdout)
    );
}

#[test]
fn only_as_many_contexts_are_kept_as_asked_for_and_rankings_are_told() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let log = "{\"query_id\": 1, \"docs\": [\"a\", \"b\"]}\n{\"query_id\": 2, \"docs\": [\"c\"]}\n";
    std::fs::write(path.join("log.jsonl"), log).unwrap();
    let output = foreword(
        path,
        &["index", "log.jsonl", "--out", "o.json", "--contexts", "1"],
    );
    assert!(output.status.success());
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(
        words.contains("2 of 2 requests name their documents without their texts"),
        "{words}"
    );
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("distinct contexts kept           1, of 1 documents"),
        "{table}"
    );
}

#[test]
fn an_empty_log_and_a_bad_line_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    std::fs::write(path.join("log.jsonl"), "nonsense\n").unwrap();
    let output = foreword(path, &["index", "log.jsonl", "--out", "o.json"]);
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(
        words.contains(
            "the log is empty: no line of log.jsonl has documents (1 lines read, 1 of them bad)"
        ),
        "{words}"
    );
    let strict = foreword(path, &["index", "log.jsonl", "--out", "o.json", "--strict"]);
    assert_eq!(strict.status.code(), Some(1));
    let many = foreword(
        path,
        &[
            "index",
            "log.jsonl",
            "--out",
            "o.json",
            "--contexts",
            "5000",
        ],
    );
    assert_eq!(many.status.code(), Some(2));
    assert!(!path.join("o.json").exists());
}
