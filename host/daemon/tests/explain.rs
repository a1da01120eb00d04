//! Tests the program `foreword explain`.

use serde_json::{Value, json};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A folder with a log in it.
struct Log(TempDir);

impl Log {
    fn new(requests: &[Value]) -> Self {
        let log = Self(TempDir::new().unwrap());
        let lines: Vec<String> = requests.iter().map(Value::to_string).collect();
        std::fs::write(log.0.path().join("log.jsonl"), lines.join("\n")).unwrap();
        log
    }

    fn explain(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_foreword"))
            .args(["explain", "log.jsonl"])
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }

    #[track_caller]
    fn told(&self, arguments: &[&str]) -> String {
        let output = self.explain(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}");
        String::from_utf8(output.stdout).unwrap()
    }
}

const SECRET: &str = "Kellermeister";

/// A request, optionally with reordered tools or a clock in the system text.
fn request(nth: usize, tools_turned: usize, clock: &str) -> Value {
    let text = |what: &str| format!("The {what} of {SECRET} is told at some length. ").repeat(12);
    let mut tools: Vec<Value> = ["alpha", "beta", "gamma"]
        .iter()
        .map(|name| {
            let function = json!({"name": name, "description": text(name), "parameters": {}});
            json!({"type": "function", "function": function})
        })
        .collect();
    tools.rotate_left(tools_turned);
    let system = format!("You are Ada.\nCurrent time: {clock}\n{}", text("rule"));
    let documents = format!("<doc id=\"a\">{}</doc>\nQuestion {nth}?", text("document"));
    json!({"model": "m", "tools": tools, "messages": [
        {"role": "system", "content": system},
        {"role": "user", "content": documents},
    ]})
}

/// The second request keeps the head of the first, the third reorders the tools, and the others change the time.
fn log() -> Log {
    Log::new(&[
        request(0, 0, "12:00:00"),
        request(1, 0, "12:00:00"),
        request(2, 1, "12:00:00"),
        request(3, 0, "12:00:07"),
        request(4, 0, "12:00:19"),
    ])
}

#[test]
fn every_request_has_its_cause_and_every_cause_what_mends_it() {
    let told: Value = serde_json::from_str(&log().told(&["--json"])).unwrap();
    let diagnoses = told["diagnoses"].as_array().unwrap();
    let causes: Vec<&str> = diagnoses
        .iter()
        .map(|diagnosis| diagnosis["cause"].as_str().unwrap())
        .collect();
    assert_eq!(
        causes,
        [
            "first-seen",
            "none",
            "tool-order",
            "volatile-value",
            "volatile-value"
        ]
    );
    let clock = &diagnoses[3];
    assert_eq!(
        (&clock["segment"], &clock["volatile"], &clock["line"]),
        (&json!("system"), &json!("date-time"), &json!(4))
    );
    assert!(clock["lost_tokens"].as_u64() > Some(0));
    assert_eq!(told["requests"], 5);
    let rows = told["causes"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let of_cause = diagnoses
            .iter()
            .filter(|diagnosis| diagnosis["cause"] == row["cause"]);
        let lost: u64 = of_cause
            .map(|diagnosis| diagnosis["lost_tokens"].as_u64().unwrap())
            .sum();
        assert_eq!(row["tokens"], lost, "{row}");
        // The line is a configuration, and replaying the log with only it costs less.
        let line = format!("{{{}}}", row["configuration"].as_str().unwrap());
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["ordering"]["head"]["mode"], "apply");
        assert!(row["saved_tokens"].as_u64() > Some(0), "{row}");
    }
}

#[test]
fn the_table_and_the_page_say_the_same_and_no_word_of_a_request() {
    let log = log();
    let table = log.told(&["--report", "report.html"]);
    let page = std::fs::read_to_string(log.0.path().join("report.html")).unwrap();
    for text in [&table, &page] {
        assert!(text.contains("tool-order"), "{text}");
        assert!(text.contains("volatile-value (date-time)"), "{text}");
        assert!(!text.contains(SECRET), "{text}");
    }
    assert!(
        table.contains(r#""tools": {"order": true, "schemas": true}"#),
        "{table}"
    );
    assert!(table.contains("it would save"), "{table}");
    assert!(page.contains("<svg"), "the plot of tokens by cause");
    // The page loads nothing from elsewhere.
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"));
    let quick = log.told(&["--no-gain"]);
    assert!(!quick.contains("it would save"), "{quick}");
}

#[test]
fn what_is_no_request_is_told() {
    let log = Log::new(&[json!({"neither": 1})]);
    let output = log.explain(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty() || !String::from_utf8_lossy(&output.stdout).contains("cause"));
    let strict = log.explain(&["--strict"]);
    assert_eq!(strict.status.code(), Some(1));
}
