//! Tests the binary: its arguments, its output, its exit codes.

use crate::support::client::{Reply, begin, get, post};
use crate::support::process::Process;
use serde_json::{Value, json};
use std::process::{Command, Output};

fn foreword(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foreword"))
        .args(arguments)
        .output()
        .expect("the binary runs")
}

#[track_caller]
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = foreword(arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(error.contains(word), "{word} is missing in {error}");
    }
}

#[test]
fn the_version_is_told() {
    let output = foreword(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("foreword {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn bad_arguments_exit_with_2() {
    refused(&["serve"], 2, &["--model"]);
    refused(
        &["serve", "--model", "x", "--page-tokens", "17"],
        2,
        &["--page-tokens", "17", "multiple of 16"],
    );
    refused(
        &["serve", "--model", "x", "--max-running", "0"],
        2,
        &["--max-running", "1..=4096"],
    );
    refused(
        &[
            "serve",
            "--model",
            "x",
            "--kv-tokens",
            "16",
            "--page-tokens",
            "32",
        ],
        2,
        &["--kv-tokens 16 is less than one page: --page-tokens is 32"],
    );
    for endpoint in [
        "127.0.0.1:5557",
        "tcp://*:5557",
        "tcp://engine",
        "tcp://engine:0",
        "ipc:///tmp/events",
    ] {
        refused(
            &["kv-bridge", "--model", "x", "--events", endpoint],
            2,
            &["--events", endpoint, "tcp://HOST:PORT"],
        );
    }
}

#[test]
fn a_folder_without_a_checkpoint_exits_with_1_and_the_chain_of_causes() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    refused(
        &["serve", "--model", path, "--listen", "127.0.0.1:0"],
        1,
        &["cannot load the model in", path, "config.json"],
    );
    refused(
        &[
            "kv-bridge",
            "--model",
            path,
            "--events",
            "tcp://127.0.0.1:1",
        ],
        1,
        &[
            "cannot read the model's text files in",
            path,
            "tokenizer.json",
        ],
    );
}

#[test]
fn a_chat_template_that_is_not_there_is_named() {
    let model = crate::support::process::CHECKPOINT;
    let events = "tcp://127.0.0.1:1";
    for begun in [&["serve"][..], &["kv-bridge", "--events", events]] {
        let given = ["--model", model, "--chat-template", "no/such/template"];
        let anywhere = [
            "--listen",
            "127.0.0.1:0",
            "--internal-listen",
            "127.0.0.1:0",
        ];
        refused(
            &[begun, &given, &anywhere].concat(),
            1,
            &["no/such/template: there is no such file"],
        );
    }
}

#[test]
fn a_taken_address_exits_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    refused(
        &["serve", "--model", "x", "--listen", &address],
        1,
        &["cannot listen on", &address],
    );
}

#[test]
fn a_missing_file_of_keys_exits_with_1() {
    refused(
        &[
            "serve",
            "--model",
            "x",
            "--listen",
            "127.0.0.1:0",
            "--api-key-file",
            "no/such/file",
        ],
        1,
        &["cannot read the API keys in no/such/file"],
    );
}

async fn stream(process: &Process, tokens: u32) -> Reply {
    let body = json!({"prompt": "The", "max_tokens": tokens, "ignore_eos": true, "stream": true});
    let mut reply = begin(process.address, "/v1/completions", &body).await;
    reply.event().await.expect("it has begun");
    reply
}

#[tokio::test]
async fn a_real_model_answers_alike_cold_and_warm_and_the_log_holds_no_text() {
    let mut process = Process::serve(&[]);
    let question = "Where is the xylophone kept?";
    let body = json!({
        "model": "qwen2",
        "messages": [{"role": "user", "content": question}],
        "documents": [{"id": "a", "title": "Cellar", "text": "Behind the zeppelin."}],
        "temperature": 0,
        "ignore_eos": true,
        "max_tokens": 24,
    });
    let ask = async || {
        post(process.address, "/v1/chat/completions", &body)
            .await
            .json()
    };
    let (cold, warm) = (ask().await, ask().await);
    let cached =
        |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(
        (cached(&cold), cold["usage"]["completion_tokens"].as_u64()),
        (Some(0), Some(24))
    );
    assert_eq!(
        cached(&warm),
        warm["usage"]["prompt_tokens"]
            .as_u64()
            .map(|tokens| tokens - 1)
    );
    assert_eq!(warm["choices"], cold["choices"]);

    process.signal("INT");
    assert_eq!(process.exit().await.code(), Some(0));
    let (rest, log) = process.output();
    assert_eq!(rest, "", "two lines on standard output");
    assert!(
        log.lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{log}"
    );
    let answer = cold["choices"][0]["message"]["content"].as_str().unwrap();
    for text in ["xylophone", "zeppelin", "Cellar", answer] {
        assert!(!log.contains(text), "{text:?} is in the log:\n{log}");
    }
}

#[tokio::test]
async fn a_signal_lets_a_stream_finish() {
    let mut process = Process::serve(&[]);
    let stream = stream(&process, 500).await;
    process.signal("TERM");
    let events = stream.events().await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    assert_eq!(process.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let mut process = Process::serve(&[]);
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(stream(&process, 8000).await);
    }
    process.signal("TERM");
    while get(process.internal, "/readyz").await.status == 200 {}
    process.signal("TERM");
    assert_eq!(process.exit().await.code(), Some(128 + 15));
}

#[tokio::test]
async fn a_restarted_server_answers_alike_from_its_disk_tier() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("kv");
    let arguments = [
        "--kv-host-tokens",
        "2048",
        "--kv-disk",
        file.to_str().unwrap(),
        "--kv-disk-mib",
        "64",
        "--kv-profile-s",
        "0",
    ];
    let body = json!({
        "prompt": "The cellar holds a zeppelin, and the attic holds what nobody has looked for in years. ".repeat(4),
        "temperature": 0,
        "ignore_eos": true,
        "max_tokens": 16,
    });
    let ask = async |process: &Process| {
        let answer = post(process.address, "/v1/completions", &body).await.json();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        (cached.unwrap(), answer["choices"].clone())
    };
    let mut first = Process::serve(&arguments);
    let (cached, expected) = ask(&first).await;
    assert_eq!(cached, 0);
    first.signal("TERM");
    assert_eq!(first.exit().await.code(), Some(0));
    // After a graceful stop, and after a kill.
    for _ in 0..2 {
        let mut process = Process::serve(&arguments);
        let (cached, answer) = ask(&process).await;
        assert!(cached >= 16, "{cached} tokens came from disk");
        assert_eq!(answer, expected);
        process.signal("KILL");
        process.exit().await;
    }
    // No file contains text.
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(8).any(|window| window == b"zeppelin"));
    }
}

/// Returns the number of cached tokens of `prompt`.
async fn cached(process: &Process, prompt: &str) -> u64 {
    let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 1});
    let answer = post(process.address, "/v1/completions", &body).await.json();
    let usage = &answer["usage"]["prompt_tokens_details"];
    usage["cached_tokens"].as_u64().expect("a count")
}

#[tokio::test]
async fn what_a_token_costs_decides_what_the_default_policy_keeps() {
    let folder = tempfile::TempDir::new().unwrap();
    let cache = folder.path().join("foreword/costs");
    let arguments = ["--kv-tokens", "768", "--kv-profile-s", "0"];
    // The first start measures the cost and stores it, without an argument for that.
    let mut process = Process::serve_with_cache(folder.path(), &arguments);
    process.signal("TERM");
    process.exit().await;
    assert!(process.output().1.contains("cost profile measured"));
    let file = std::fs::read_dir(&cache).unwrap().next().unwrap().unwrap();
    let measured: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    let (short, long) = (
        "One short prompt that is asked for twice. ".repeat(5),
        "A long one. ".repeat(120),
    );
    let mut kept = Vec::new();
    // Each token has the same cost; then one of the long prompt costs eight times as much as one of the short prompt.
    for seconds in [[1, 64, 512], [1, 64, 4_096]] {
        let mut profile = measured.clone();
        profile["profile"] = json!({"cached": [0], "new": [1, 64, 512], "seconds": seconds});
        std::fs::write(file.path(), profile.to_string()).unwrap();
        let mut process = Process::serve_with_cache(folder.path(), &arguments);
        assert_eq!(cached(&process, &short).await, 0);
        assert!(cached(&process, &short).await >= 48);
        cached(&process, &long).await;
        cached(&process, &"What pushes something out. ".repeat(80)).await;
        kept.push(cached(&process, &short).await);
        process.signal("TERM");
        process.exit().await;
        assert!(process.output().1.contains("cost profile loaded"));
    }
    assert!(kept[0] >= 48 && kept[1] == 0, "{kept:?}");
}

#[test]
fn a_disk_tier_without_host_memory_is_refused() {
    refused(
        &["serve", "--model", "x", "--kv-disk", "kv"],
        2,
        &["--kv-disk needs --kv-host-tokens of at least one page, 16, not 0"],
    );
    refused(
        &["serve", "--model", "x", "--kv-policy", "fifo"],
        2,
        &["fifo", "lru, lfu, gdsf, pgdsf, pgdsf-paper"],
    );
}

#[test]
fn arguments_of_the_cache_that_exclude_each_other_are_refused() {
    let serve = ["serve", "--model", "x"];
    for (arguments, words) in [
        (
            &["--kv-tokens", "4096", "--kv-cache-memory-bytes", "1GiB"][..],
            &["--kv-tokens", "--kv-cache-memory-bytes"][..],
        ),
        (
            &["--kv-host-tokens", "64", "--kv-host-memory-bytes", "1GiB"],
            &["--kv-host-tokens", "--kv-host-memory-bytes"],
        ),
        (
            &["--no-enable-prefix-caching", "--kv-host-tokens", "64"],
            &["--no-enable-prefix-caching", "--kv-host-tokens"],
        ),
        (&["--kv-disk-replicas", "1GiB"], &["required", "--kv-disk"]),
        (
            &["--kv-cache-memory-bytes", "1G"],
            &["--kv-cache-memory-bytes", "1G", "GB", "GiB"],
        ),
        (
            &["--kv-cached-documents", "0"],
            &["--kv-cached-documents", "1..=65536"],
        ),
    ] {
        refused(&[&serve[..], arguments].concat(), 2, words);
    }
    let sizes = |arguments: &[&str], words: &[&str]| {
        let model = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--device",
            "cpu",
            "--model",
        ];
        let model = [&model[..], &[crate::support::process::CHECKPOINT]].concat();
        refused(&[&model, arguments].concat(), 1, words);
    };
    sizes(
        &["--kv-cache-memory-bytes", "1KiB"],
        &["1024 bytes have no room for a page", "16 tokens take"],
    );
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("kv");
    sizes(
        &[
            "--kv-host-memory-bytes",
            "1KiB",
            "--kv-disk",
            file.to_str().unwrap(),
        ],
        &["the disk tier needs host memory of at least one page"],
    );
}

#[tokio::test]
async fn a_server_without_prefix_caching_computes_every_prompt() {
    let sizes = [
        "--no-enable-prefix-caching",
        "--kv-cache-memory-bytes",
        "16MiB",
    ];
    let process = Process::serve(&sizes);
    let body = json!({"prompt": "a cellar ".repeat(40), "max_tokens": 2});
    for _ in 0..2 {
        let answer = post(process.address, "/v1/completions", &body).await.json();
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
    let metrics = String::from_utf8(get(process.internal, "/metrics").await.body).unwrap();
    assert!(metrics.contains("foreword_pages_cached 0"), "{metrics}");
    assert!(
        metrics.contains("enable_prefix_caching=\"False\""),
        "{metrics}"
    );
    let prefill = json!({"messages": [{"role": "user", "content": "a cellar"}]});
    let refused = post(process.address, "/v1/prefill", &prefill).await;
    assert_eq!(refused.status, 400);
}

#[test]
fn a_device_that_is_not_there_is_named_with_the_reason() {
    refused(
        &["serve", "--model", "x", "--device", "gpu"],
        2,
        &["--device", "auto, cpu or cuda:N"],
    );
    let error = &["--device cuda:99: there is no CUDA"];
    refused(
        &["serve", "--model", "x", "--device", "cuda:99"],
        1,
        if foreword_engine::backend::cuda::unavailable(99)
            .is_some_and(|absent| absent.reason.starts_with("there is no CUDA"))
        {
            error
        } else {
            &["--device cuda:99: "]
        },
    );
}

#[test]
fn a_shape_without_weights_is_measured_in_every_part() {
    let folder = tempfile::TempDir::new().unwrap();
    let config = json!({
        "model_type": "qwen2", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 64, "vocab_size": 256, "max_position_embeddings": 2048,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let report = folder.path().join("report.html");
    let sizes = "--device cpu --random-weights 1 --prompt 64 --context 32 --batches 1,2 --runs 1 --queries 14 --seeds 2 \
                 --arms none,foresight,foresight+hint --arm-kv-tokens 16384 --sweep-queries 4 --overlaps 0.2,0.6 --groups 2 \
                 --ks 3 --pools 4096 --answers 2 --json --report";
    let mut arguments = vec!["measure", "--model", folder.path().to_str().unwrap()];
    arguments.extend(sizes.split_ascii_whitespace());
    arguments.push(report.to_str().unwrap());
    let output = foreword(&arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["prefill"]["tokens"], 64);
    assert_eq!(found["prefill"]["cached"][1]["new_tokens"], 32);
    assert_eq!(found["ceilings"], Value::Null);
    let positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
    assert!(positive(&found["prefill"]["seconds"]), "{found}");
    for (at, batch) in [(0, 1), (1, 2)] {
        assert_eq!(found["decode"][at]["batch"], batch);
        assert!(positive(&found["decode"][at]["tokens_per_s"]), "{found}");
    }
    assert!(
        positive(&found["host_tier"]["question_with_loads_s"]),
        "{found}"
    );
    // Retrieval order is always measured, as the baseline.
    let arms = ["none", "retrieval", "foresight", "foresight+hint"];
    for part in ["all", "steady"] {
        let rows = found["orders"][part].as_array().unwrap();
        let names: Vec<&str> = rows
            .iter()
            .map(|row| row["arm"].as_str().unwrap())
            .collect();
        assert_eq!(names, arms);
        for row in rows {
            assert!(positive(&row["ttft_p95_ms"]["mean"]), "{row}");
            assert!(positive(&row["ttft_mean_ms"]["within"]), "{row}");
        }
        // Work, not time: the saving does not depend on the machine.
        let saved = |at: usize| rows[at]["saved_tokens"].as_f64().unwrap();
        assert!(saved(0) == 0.0 && saved(2) > 1.5 * saved(1), "{rows:?}");
        let hint = rows[3]["hint_tokens"].as_f64().unwrap();
        assert!(hint > 0.0 && hint <= 0.015 * 1_000.0, "{hint}");
    }
    assert_eq!(found["orders"]["all"][0]["requests"], 2 * (14 - 5));
    let sweeps = found["sweeps"].as_array().unwrap();
    let points: Vec<String> = (sweeps.iter())
        .map(|point| {
            format!(
                "{} {}",
                point["name"].as_str().unwrap(),
                point["value"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        points,
        [
            "overlap 0.2",
            "overlap 0.6",
            "at once 2",
            "k 3",
            "trace bursty",
            "trace geospatial",
            "trace uniform",
            "trace disjoint",
            "pool 4,096"
        ]
    );
    assert_eq!(sweeps[8]["kv_tokens"], 4_096);
    let throughput = found["throughput"].as_array().unwrap();
    assert_eq!(throughput.len(), 8);
    assert!(
        throughput
            .iter()
            .all(|row| positive(&row["requests_per_s"]))
    );
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.contains("<svg") && page.contains("foresight+hint"));
}
