//! Tests the program `foreword replay`.

use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder with a log in it.
struct Log {
    folder: TempDir,
}

impl Log {
    fn new(lines: &[&str]) -> Self {
        let log = Self {
            folder: TempDir::new().unwrap(),
        };
        log.add("log.jsonl", lines);
        log
    }

    fn add(&self, name: &str, lines: &[&str]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, lines.join("\n")).unwrap();
        path
    }

    fn replay(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_foreword"))
            .arg("replay")
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .unwrap()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        let output =
            self.replay(&[&["--json", "--no-report", "--rank", "free"], arguments].concat());
        assert!(output.status.success(), "{}", error_of(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn error_of(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn reuse(json: &Value, policy: &str) -> f64 {
    let policies = json["policies"].as_array().unwrap();
    let found = policies.iter().find(|found| found["name"] == policy);
    found.unwrap()["reuse"].as_f64().unwrap()
}

/// Ten tokens per document, 90 in all. In the retriever's order the third request finds `a b` (20 tokens) and the
/// second nothing; the exact match finds `a b` for both (40), and no request shares more with any one earlier request.
const RANKINGS: [&str; 3] = [
    r#"{"query_id":"q1","docs":["a","b","c"],"tokens":10}"#,
    r#"{"query_id":"q2","docs":["b","a","d"],"tokens":[10,10,10]}"#,
    r#"{"query_id":3,"docs":["a","b","e"],"tokens":10}"#,
];

#[test]
fn a_batch_is_planned_as_a_whole() {
    // In the log's order, the first request of each pair shares nothing with the one before it. Planned together, `x`
    // begins both of its requests and `y` both of the others: 20 tokens of 80.
    let log = Log::new(&[
        r#"{"query_id":1,"docs":["a","x"],"tokens":10}"#,
        r#"{"query_id":2,"docs":["b","y"],"tokens":10}"#,
        r#"{"query_id":3,"docs":["c","x"],"tokens":10}"#,
        r#"{"query_id":4,"docs":["d","y"],"tokens":10}"#,
    ]);
    let json = log.json(&["log.jsonl", "--policies", "longest", "--batch", "4"]);
    assert!((reuse(&json, "batch") - 0.25).abs() < 1e-6);
    assert!(reuse(&json, "longest") < 1e-6);
    let alone = log.json(&["log.jsonl", "--policies", "longest", "--batch", "1"]);
    assert!(reuse(&alone, "batch") < 1e-6);
    let refused = log.replay(&["log.jsonl", "--batch", "0"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn reuse_is_what_one_computes_by_hand() {
    let log = Log::new(&RANKINGS);
    let json = log.json(&["log.jsonl"]);
    assert_eq!(json["trace"], "log.jsonl");
    assert_eq!(
        (&json["requests"], &json["documents"]),
        (&json!(3), &json!(5))
    );
    assert_eq!(json["policies"].as_array().unwrap().len(), 8);
    let is = |value: f64, share: f64| assert!((value - share).abs() < 1e-6, "{value} {share}");
    is(reuse(&json, "retrieval"), 20.0 / 90.0);
    is(reuse(&json, "longest"), 40.0 / 90.0);
    is(reuse(&json, "sorted"), 40.0 / 90.0);
    is(json["upper_bound"].as_f64().unwrap(), 40.0 / 90.0);
    for policy in json["policies"].as_array().unwrap() {
        assert!(policy["mean_us"].as_f64().unwrap() > 0.0);
    }
    // Pages of 16 tokens cut 20 to 16.
    let json = log.json(&["log.jsonl", "--page-tokens", "16"]);
    is(reuse(&json, "longest"), 32.0 / 90.0);
    // The capacity of one prompt: the second request's `d` has evicted `c`, and the rest is still found.
    let json = log.json(&["log.jsonl", "--cache-tokens", "30"]);
    is(reuse(&json, "longest"), 40.0 / 90.0);
    // Less than one prompt's capacity.
    let json = log.json(&["log.jsonl", "--cache-tokens", "10"]);
    is(reuse(&json, "longest"), 20.0 / 90.0);
}

#[test]
fn chat_bodies_are_read_beside_rankings_and_files_make_one_trace() {
    let body = |question: &str, first: &str, second: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"{question}"}}],"documents":[{{"id":"{first}","text":"the text of {first}"}},{{"id":"{second}","text":"the text of {second}"}}]}}"#
        )
    };
    let log = Log::new(&[&body("Why?", "x", "y"), RANKINGS[0]]);
    log.add("more.jsonl", &[&body("How?", "y", "x"), RANKINGS[1]]);
    let json = log.json(&["log.jsonl", "more.jsonl", "--policies", "longest,retrieval"]);
    assert_eq!(json["trace"], "log.jsonl, more.jsonl");
    assert_eq!(json["requests"], 4);
    let policies = json["policies"].as_array().unwrap();
    assert_eq!(policies[0]["name"], "longest");
    // Both documents of the second body, and 20 tokens of the second ranking.
    let tokens = policies[0]["document_tokens"].as_u64().unwrap() - 60;
    assert_eq!(policies[0]["reused_tokens"], tokens / 2 + 20);
    assert_eq!(policies[1]["reused_tokens"], 0);
}

#[test]
fn documents_are_those_that_the_gateway_finds() {
    let request = |names: [&str; 2]| {
        let documents =
            names.map(|name| format!("<memo id=\"{name}\">{}</memo>", "text ".repeat(40)));
        let message = json!({"role": "user", "content": format!("{} Why?", documents.concat())});
        json!({"messages": [message]}).to_string()
    };
    let log = Log::new(&[&request(["a", "b"]), &request(["b", "a"])]);
    let ordering = log.add("ordering.json", &[r#"{"documents": {"tags": ["memo"]}}"#]);
    let ordering = ordering.to_str().unwrap();
    let found = log.json(&["log.jsonl", "--ordering", ordering]);
    assert!(
        reuse(&found, "longest") > reuse(&found, "retrieval"),
        "{found}"
    );
    assert_eq!(log.replay(&["log.jsonl"]).status.code(), Some(2));
}

#[test]
fn the_table_and_the_report_name_the_policies() {
    let log = Log::new(&RANKINGS);
    let output = log.replay(&[
        "log.jsonl",
        "--rank",
        "free",
        "--policies",
        "retrieval,longest",
    ]);
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(table.starts_with("3 requests, 5 documents; unbounded cache"));
    assert!(table.contains("longest         44.4 %               40               50"));
    assert!(!table.contains("greedy"));
    let page = std::fs::read_to_string(log.folder.path().join("replay-report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("44.4 %"));
    // Without a terminal, only the report's path is printed.
    assert_eq!(error_of(&output), "report: replay-report.html\n");

    let output = log.replay(&[
        "log.jsonl",
        "--no-report",
        "--policies",
        "random",
        "--seed",
        "4",
    ]);
    assert!(output.status.success() && output.stderr.is_empty());
    let output = log.replay(&["log.jsonl", "--report", "none/page.html"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error_of(&output).contains("cannot write the report none/page.html"));
}

#[test]
fn bad_lines_are_named_and_counted_and_end_a_strict_replay() {
    let mut lines = RANKINGS.to_vec();
    lines.insert(1, r#"{"docs":["secret",{}]}"#);
    lines.insert(2, "");
    lines.insert(3, r#"{"messages":[{"role":"user","content":"secret?"}]}"#);
    lines.insert(4, "secret");
    let log = Log::new(&lines);
    let output = log.replay(&["log.jsonl", "--json", "--no-report"]);
    assert!(output.status.success());
    assert_eq!(
        error_of(&output),
        "skipped: log.jsonl:2: docs[1] is neither a string nor a number\n\
         skipped: log.jsonl:5: not a JSON object: error at column 1\n\
         2 of 6 lines are bad and were skipped\n\
         1 of 6 lines have no documents and do not count\n"
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&json["requests"], &json["skipped"]),
        (&json!(3), &json!(2))
    );

    let output = log.replay(&["log.jsonl", "--strict", "--no-report"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert_eq!(
        error_of(&output),
        "error: log.jsonl:2: docs[1] is neither a string nor a number\n"
    );
}

#[test]
fn an_empty_trace_exits_with_2() {
    for lines in [&[][..], &["", r#"{"docs":[]}"#], &["nonsense"]] {
        let output = Log::new(lines).replay(&["log.jsonl"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        assert!(
            error_of(&output).contains("the trace is empty: no line of log.jsonl has documents")
        );
    }
}

#[test]
fn what_cannot_be_done_is_told_with_its_code() {
    let log = Log::new(&RANKINGS);
    for (arguments, code, words) in [
        (&["gone.jsonl"][..], 1, "cannot read gone.jsonl"),
        (&[], 2, "<FILE>"),
        (
            &["log.jsonl", "--policies", "best"],
            2,
            "it must be one of retrieval, ",
        ),
        (&["log.jsonl", "--page-tokens", "0"], 2, "--page-tokens"),
        (
            &["log.jsonl", "--no-report", "--report", "x"],
            2,
            "--report",
        ),
    ] {
        let output = log.replay(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(error_of(&output).contains(words), "{}", error_of(&output));
    }
}

/// A chat with two documents of some 500 tokens each, in the order of `names`.
fn chat(names: [&str; 2], question: usize) -> String {
    let document = |name: &str| {
        let text = format!("{name} is told here. ").repeat(110);
        format!("<document id=\"{name}\">{text}</document>\n")
    };
    let documents: String = names.iter().map(|name| document(name)).collect();
    json!({"model": "claude-opus-5-5", "system": "Be brief.", "messages": [
        {"role": "user", "content": format!("{documents}What of {question}?")}]})
    .to_string()
}

fn arm(json: &Value, name: &str) -> Value {
    let arms = json["boundary"]["arms"].as_array().unwrap();
    let found = arms.iter().find(|found| found["name"] == name);
    found
        .unwrap_or_else(|| panic!("{arms:?} lack {name}"))
        .clone()
}

#[test]
fn a_cache_with_boundaries_is_priced_by_who_marks() {
    let lines: Vec<String> = (0..40)
        .map(|at| {
            let names = if at % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
            format!(
                r#"{{"time":{},"request":{}}}"#,
                1_000 + at * 5,
                chat(names, at)
            )
        })
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let log = Log::new(&lines);
    let prices =
        r#"{"currency":"EUR","models":[{"name":"opus-5-5","kind":"anthropic","input":10.0}]}"#;
    log.add("prices.json", &[prices]);
    let asked = [
        "--cache-kind",
        "anthropic",
        "--prices",
        "prices.json",
        "log.jsonl",
    ];
    let json = log.json(&asked);
    let boundary = &json["boundary"];
    assert_eq!(boundary["kind"], "anthropic");
    assert_eq!(
        (&boundary["currency"], &boundary["requests"]),
        (&json!("EUR"), &json!(40))
    );
    let plain = arm(&json, "no-caching");
    let tokens = plain["plain_tokens"].as_f64().unwrap();
    let cost = plain["cost"].as_f64().unwrap();
    assert!((cost - tokens * 10.0 / 1e6).abs() < 1e-6, "{plain}");
    assert_eq!(arm(&json, "client")["of_no_caching"], 1.0);
    assert_eq!(arm(&json, "automatic")["of_no_caching"], 1.25);
    assert_eq!(arm(&json, "automatic")["read_tokens"], 0);
    let ours = arm(&json, "foreword");
    assert!(ours["of_no_caching"].as_f64().unwrap() < 0.5, "{ours}");
    assert!(ours["read_tokens"].as_u64() > Some(0) && ours["markers"].as_u64() > Some(0));

    let table = log.replay(&[&["--report", "out.html"][..], &asked].concat());
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("anthropic cache") && table.contains("EUR"),
        "{table}"
    );
    let page = std::fs::read_to_string(log.folder.path().join("out.html")).unwrap();
    assert!(page.contains("the cache kind <code>anthropic</code>"));
    assert!(log.json(&["log.jsonl"])["boundary"].is_null());

    let units = log.json(&["--cache-kind", "units", "--page-tokens", "64", "log.jsonl"]);
    let [client, ours] =
        ["client", "foreword"].map(|name| arm(&units, name)["read_tokens"].as_u64());
    assert!(ours > client, "{ours:?} {client:?}");
    assert_eq!(units["boundary"]["requests"], 40);
}

#[test]
fn a_pipe_is_refused_and_a_byte_order_mark_is_no_part_of_the_first_line() {
    let log = Log::new(&[&chat(["a", "b"], 0)]);
    log.add(
        "marked.jsonl",
        &[&format!("\u{feff}{}", chat(["a", "b"], 0))],
    );
    assert_eq!(log.json(&["marked.jsonl"])["requests"], 1);
    let pipe = log.folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let output = log.replay(&["pipe"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("pipe is a pipe"), "{error}");
}

#[test]
fn a_wrong_cache_or_price_is_named() {
    let log = Log::new(&[&chat(["a", "b"], 0)]);
    log.add(
        "prices.json",
        &[r#"{"currency":"EUR","models":[{"name":"m","kind":"openai","input":-1}]}"#],
    );
    for (arguments, code, words) in [
        (
            &["--cache-kind", "claude"][..],
            2,
            "prefix, anthropic, openai",
        ),
        (&["--cache-kind", "units"], 2, "--page-tokens"),
        (&["--prices", "prices.json"], 2, "--cache-kind"),
        (
            &["--cache-kind", "openai", "--prices", "prices.json"],
            1,
            "prices.json: models[0].input: -1 is not a price above 0",
        ),
        (
            &["--cache-kind", "openai", "--prices", "none.json"],
            1,
            "cannot read the prices in none.json",
        ),
    ] {
        let output = log.replay(&[arguments, &["--no-report", "log.jsonl"]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let error = error_of(&output);
        assert!(error.contains(words), "{error} lacks {words}");
    }
}
