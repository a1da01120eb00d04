//! Tests the program's output, files and exit codes.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with a module, another one, and a log.
struct Folder(tempfile::TempDir);

/// A module that replaces bodies longer than `limit` bytes with `{}`, and traps at bodies longer than twice that. It
/// refuses a configuration that begins with `!`.
fn wat(limit: usize) -> String {
    format!(
        r#"(module
            (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
            (import "env" "proxy_get_buffer_bytes"
                (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
            (import "env" "proxy_set_buffer_bytes"
                (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 16) "no exclamations")
            (data (i32.const 48) "{{}}")
            (func (export "proxy_abi_version_0_2_1"))
            (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 4096))
            (func (export "proxy_on_configure") (param i32 i32) (result i32)
                (drop (call $get_buffer (i32.const 7) (i32.const 0) (i32.const 1) (i32.const 100) (i32.const 104)))
                (if (i32.eq (i32.load8_u (i32.load (i32.const 100))) (i32.const 33)) (then
                    (drop (call $log (i32.const 4) (i32.const 16) (i32.const 15)))
                    (return (i32.const 0))))
                (i32.const 1))
            (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
                (if (i32.gt_u (local.get 1) (i32.const {})) (then unreachable))
                (if (i32.gt_u (local.get 1) (i32.const {limit})) (then
                    (drop (call $set_buffer (i32.const 0) (i32.const 0) (local.get 1) (i32.const 48) (i32.const 2)))))
                (i32.const 0)))"#,
        2 * limit
    )
}

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (name, limit) in [("new.wasm", 100), ("old.wasm", 120)] {
            folder.write(name, &wat::parse_str(wat(limit)).unwrap());
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// A log of bodies of these lengths, with words that must never be printed.
    fn log(&self, lengths: &[usize]) {
        let line = |length: &usize| {
            let frame = r#"{"messages":[{"role":"user","content":"secret"}]}"#.len();
            let filling = "x".repeat(length - frame);
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"secret{filling}\"}}]}}\n")
        };
        let lines: String = lengths.iter().map(line).collect();
        self.write("log.jsonl", lines.as_bytes());
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let output = Command::new(env!("CARGO_BIN_EXE_foreword-rehearse"))
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .unwrap();
        for printed in [&output.stdout, &output.stderr] {
            assert!(!String::from_utf8_lossy(printed).contains("secret"));
        }
        output
    }

    fn json(&self, arguments: &[&str]) -> (Option<i32>, Value) {
        let output = self.run(&[arguments, &["--json"]].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let value = serde_json::from_slice(&output.stdout);
        (
            output.status.code(),
            value.unwrap_or_else(|error| panic!("{error}: {told}")),
        )
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn json_tells_what_changed_what_it_cost_and_what_trapped_where() {
    let folder = Folder::new();
    folder.log(&[80, 110, 90, 201, 130]);
    let (code, value) = folder.json(&["new.wasm", "log.jsonl", "--workers", "2"]);
    assert_eq!(code, Some(3));
    assert_eq!(value["requests"], 5);
    assert_eq!(value["changed"], 2);
    assert_eq!(value["traps"], 1);
    assert_eq!(value["faults"][0]["line"], 4);
    assert_eq!(value["faults"][0]["callback"], "proxy_on_request_body");
    assert_eq!(value["faults"][0]["kind"], "trap");
    assert_eq!(value["memory_peak_bytes"], 65_536);
    assert!(value["fuel"]["p50"].as_u64().unwrap() <= value["fuel"]["p99"].as_u64().unwrap());
    assert_eq!(value["calls"]["p50"], 0);
    assert_eq!(value["calls"]["by_name"]["proxy_set_buffer_bytes"], 2);
    assert_eq!(value["different"], Value::Null);
}

#[test]
fn against_another_build_each_request_that_differs_is_named() {
    let folder = Folder::new();
    folder.log(&[80, 110, 150, 201]);
    let arguments = ["new.wasm", "log.jsonl", "--against", "old.wasm"];
    let (code, value) = folder.json(&arguments);
    assert_eq!(code, Some(3));
    assert_eq!(value["different"], 2);
    let lines = value["differences"].as_array().unwrap();
    assert_eq!(
        (&lines[0]["line"], &lines[0]["what"][0]),
        (&2.into(), &"body".into())
    );
    assert_eq!(
        (&lines[1]["line"], &lines[1]["what"][0]),
        (&4.into(), &"fault".into())
    );
    assert_eq!(value["against"]["traps"], 0);

    let (code, value) = folder.json(&["old.wasm", "log.jsonl", "--against", "old.wasm"]);
    assert_eq!((code, &value["different"]), (Some(0), &0.into()));
    assert_eq!(value["fuel"], value["against"]["fuel"]);

    let table = text(&folder.run(&arguments).stdout);
    assert!(
        table.starts_with("4 requests: 2 changed, 0 answered by the module, 1 traps\n"),
        "{table}"
    );
    assert!(
        table.contains("against old.wasm: 2 of 4 requests differ"),
        "{table}"
    );
    assert!(
        table.contains("line 4: proxy_on_request_body: wasm trap"),
        "{table}"
    );
}

#[test]
fn the_page_holds_the_same_and_nothing_from_outside() {
    let folder = Folder::new();
    folder.log(&[80, 110, 201]);
    let arguments = [
        "new.wasm",
        "log.jsonl",
        "--against",
        "old.wasm",
        "--report",
        "page.html",
    ];
    assert_eq!(folder.run(&arguments).status.code(), Some(3));
    let page = fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(!page.contains("secret") && !page.contains("{{") && !page.contains("src="));
    for words in [
        "Against old.wasm",
        "2 of 3 requests differ",
        "line 3: proxy_on_request_body",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_refused_configuration_is_told_and_the_second_one_is_the_others() {
    let folder = Folder::new();
    folder.log(&[80]);
    folder.write("good", b"{}");
    folder.write("bad", b"!");
    let refused = folder.run(&["new.wasm", "log.jsonl", "--config", "bad"]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    let told = text(&refused.stderr);
    assert!(
        told.contains("refused its configuration: no exclamations"),
        "{told}"
    );

    let both = [
        "--config",
        "good",
        "--against",
        "old.wasm",
        "--config",
        "bad",
    ];
    let refused = folder.run(&[&["new.wasm", "log.jsonl"], &both[..]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let told = text(&refused.stderr);
    assert!(
        told.contains("against old.wasm") && told.contains("no exclamations"),
        "{told}"
    );
}

#[test]
fn bad_arguments_and_logs_are_told_by_their_names() {
    let folder = Folder::new();
    folder.log(&[80]);
    folder.write("rankings.jsonl", b"{\"docs\":[\"a\"]}\n\nno secret JSON\n");
    folder.write("text.wasm", b"no module");
    let told = |arguments: &[&str]| {
        let output = folder.run(arguments);
        (output.status.code(), text(&output.stderr))
    };
    for (arguments, code, words) in [
        (
            &["new.wasm", "rankings.jsonl"][..],
            2,
            "no line of rankings.jsonl",
        ),
        (
            &["new.wasm", "rankings.jsonl"],
            2,
            "rankings.jsonl:3: not a JSON object",
        ),
        (
            &["new.wasm", "rankings.jsonl"],
            2,
            "1 of 2 lines are rankings",
        ),
        (
            &["new.wasm", "rankings.jsonl", "--strict"],
            1,
            "rankings.jsonl:3:",
        ),
        (&["new.wasm", "absent.jsonl"], 1, "cannot read absent.jsonl"),
        (
            &["absent.wasm", "log.jsonl"],
            1,
            "absent.wasm: cannot read it",
        ),
        (
            &["text.wasm", "log.jsonl"],
            1,
            "text.wasm: it is no WebAssembly module",
        ),
        (
            &["new.wasm", "log.jsonl", "--config", "a", "--config", "b"],
            2,
            "absent",
        ),
        (
            &["new.wasm", "log.jsonl", "--answer", "cluster"],
            2,
            "there is no `=`",
        ),
        (
            &["new.wasm", "log.jsonl", "--env", "FOREWORD_ABSENT"],
            2,
            "FOREWORD_ABSENT",
        ),
        (&["new.wasm"], 2, "LOG"),
    ] {
        let (exit, told) = told(arguments);
        assert_eq!(exit, Some(code), "{arguments:?}: {told}");
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
}

#[test]
fn what_a_line_says_of_tenant_path_and_usage_reaches_the_module() {
    // Responds with the header and the path, and leaves the engine's response unchanged.
    let echo = r#"(module
        (import "env" "proxy_get_header_map_value"
            (func $get (param i32 i32 i32 i32 i32) (result i32)))
        (import "env" "proxy_set_buffer_bytes"
            (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 16) "x-tenant:path")
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 4096))
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (if (i32.ne (call $get (i32.const 0) (i32.const 16) (i32.const 8) (i32.const 100) (i32.const 104)) (i32.const 0))
                (then (return (i32.const 0))))
            (if (i32.ne (i32.load (i32.const 104)) (i32.const 4)) (then unreachable))
            (if (i32.ne (call $get (i32.const 0) (i32.const 24) (i32.const 5) (i32.const 100) (i32.const 104)) (i32.const 0))
                (then unreachable))
            (if (i32.ne (i32.load (i32.const 104)) (i32.const 12)) (then unreachable))
            (i32.const 0))
        (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32)
            (if (i32.lt_u (local.get 1) (i32.const 40)) (then unreachable))
            (i32.const 0)))"#;
    let folder = Folder::new();
    folder.write("echo.wasm", &wat::parse_str(echo).unwrap());
    folder.write("config", br#"{"tenant": {"header": "X-Tenant"}}"#);
    let line = r#"{"request":{"messages":[]},"tenant":"acme","path":"/v1/messages","prompt_tokens":9,"cached_tokens":4}"#;
    folder.write("log.jsonl", line.as_bytes());
    let (code, value) = folder.json(&["echo.wasm", "log.jsonl", "--config", "config"]);
    assert_eq!((code, &value["traps"]), (Some(0), &0.into()), "{value}");
    // Without them it traps, so the variables did reach it.
    let (code, _) = folder.json(&[
        "echo.wasm",
        "log.jsonl",
        "--tenant-header",
        "x-tenant",
        "--header",
        ":path:/v1",
    ]);
    assert_eq!(code, Some(3));
    assert!(Path::new(&folder.path("config")).is_file());
}
