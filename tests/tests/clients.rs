//! RAG frameworks through real Envoy, streaming and not: LangChain, LlamaIndex, Haystack, litellm and the SDKs of OpenAI,
//! Anthropic and Cohere (`tests/python/frameworks.py`), and the Vercel AI SDK (`tests/node`). Behind the gateway is the host with
//! SmolLM2-135M-Instruct, and one with random weights whose template knows tools. Each client must read what the gateway answers
//! to the same request without a framework. Cohere is recorded. `cargo xtask setup` installs the clients; without them the tests say that they are skipped.

use anyhow::Result;
use foreword_tests::artifacts::{repository, smollm2};
use foreword_tests::{Gateway, GatewayOptions, Host, Paths, Received, Reply, Upstream};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Output};

/// Two gateways, each with its engine.
struct House {
    smollm2: Gateway,
    tools: Gateway,
    _hosts: [Host; 2],
}

impl House {
    fn start() -> Result<Self> {
        let root = repository();
        let arguments = ["--name", "m", "--kv-tokens", "16384", "--store"];
        let smollm2 = Host::start(&smollm2()?, &arguments)?;
        let tools = root.join("host/engine/fixtures/qwen2");
        let tools = Host::start(&tools, &["--name", "m"])?;
        Ok(Self {
            smollm2: Gateway::start(&GatewayOptions::placing_freely(smollm2.address()))?,
            tools: Gateway::start(&GatewayOptions::placing_freely(tools.address()))?,
            _hosts: [smollm2, tools],
        })
    }

    fn addresses(&self) -> [String; 2] {
        [&self.smollm2, &self.tools].map(|gateway| format!("http://{}", gateway.address()))
    }
}

/// Runs a client to its end; it reaches nothing but this machine.
fn run(mut command: Command) -> Output {
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    for name in proxies {
        let nowhere = "http://127.0.0.1:9";
        command.env(name, nowhere).env(name.to_lowercase(), nowhere);
    }
    command
        .env("NO_PROXY", "127.0.0.1")
        .env("no_proxy", "127.0.0.1");
    command.output().unwrap()
}

/// Asserts that a client ended well and made so many checks.
fn assert_checked(output: &Output, checks: u32) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let last = format!("{checks} checks");
    assert!(text.trim_end().ends_with(&last), "{text}\n{errors}");
}

/// A command that runs clients of `frameworks.py`, with modules of these folders.
fn frameworks(house: &House, cohere: &str, folders: &[PathBuf], clients: &[&str]) -> Command {
    let root = repository();
    let mut command = Command::new("python3");
    command
        .arg(root.join("tests/python/frameworks.py"))
        .args(house.addresses())
        .arg(cohere)
        .arg(root.join("examples/handbook"))
        .args(clients)
        .env("PYTHONPATH", std::env::join_paths(folders).unwrap())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HAYSTACK_TELEMETRY_ENABLED", "False")
        .env("LANGSMITH_TRACING", "false")
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    command
}

/// The folders of tools, or the reason why there is nothing to test.
fn tools<const N: usize>(packages: [(&str, &str); N], how: &str) -> Option<[PathBuf; N]> {
    let tools = repository().join(".tools");
    for (folder, package) in packages {
        if !tools.join(folder).join(package).is_dir() {
            eprintln!("SKIPPED: {package} is not in .tools/{folder}; run `{how}`");
            return None;
        }
    }
    Some(packages.map(|(folder, _)| tools.join(folder)))
}

#[test]
fn frameworks_read_every_answer_through_the_gateway() {
    let packages = [("frameworks", "langchain_openai"), ("clients", "anthropic")];
    let Some(folders) = tools(packages, "cargo xtask setup") else {
        return;
    };
    let house = House::start().unwrap();
    let cohere = recorded_cohere();
    let cohere_gateway = Gateway::start(&GatewayOptions {
        paths: Paths::All,
        plugin: Some(json!({
            "routes": ["/v2/chat"],
            "ordering": {"documents": {"field": "reorder"}},
        })),
        ..GatewayOptions::placing_freely(cohere.address())
    });
    let cohere_gateway = cohere_gateway.unwrap();
    let address = format!("http://{}", cohere_gateway.address());
    let clients = [
        "sdk_openai",
        "sdk_anthropic",
        "langchain",
        "llama_index",
        "haystack",
        "cohere",
    ];
    assert_checked(&run(frameworks(&house, &address, &folders, &clients)), 31);

    // The client sent the documents the other way round, and Cohere got them as before.
    let received = cohere.received();
    let [first, second] = received.as_slice() else {
        panic!("{} requests", received.len());
    };
    let documents = |body: &[u8]| -> Value {
        let body: Value = serde_json::from_slice(body).unwrap();
        body["documents"].clone()
    };
    assert_eq!(documents(&first.body), documents(&second.body));
    assert_eq!(documents(&first.body).as_array().map(Vec::len), Some(4));
    assert_eq!(house.smollm2.failures().unwrap(), 0);
}

#[test]
fn litellm_reads_every_answer_through_the_gateway() {
    const HOW: &str = "python3 -m pip install --no-deps --no-compile --target .tools/litellm --requirement tests/python/litellm.txt";
    let packages = [("litellm", "litellm"), ("frameworks", "openai")];
    let Some(folders) = tools(packages, HOW) else {
        return;
    };
    let house = House::start().unwrap();
    assert_checked(&run(frameworks(&house, "", &folders, &["litellm"])), 4);
    assert_eq!(house.smollm2.failures().unwrap(), 0);
}

#[test]
fn the_vercel_ai_sdk_reads_every_answer_through_the_gateway() {
    let folder = repository().join("tests/node");
    if !folder.join("node_modules/ai").is_dir() {
        eprintln!("SKIPPED: the AI SDK is not in tests/node/node_modules; run `cargo xtask setup`");
        return;
    }
    let house = House::start().unwrap();
    let mut command = Command::new("node");
    command
        .arg(folder.join("ai-sdk.mjs"))
        .args(house.addresses())
        .arg(repository().join("examples/handbook"));
    assert_checked(&run(command), 12);
    assert_eq!(house.smollm2.failures().unwrap(), 0);
}

/// Answers as Cohere's second API did, whatever it is asked.
fn recorded_cohere() -> Upstream {
    let answer = |received: &Received, reply: &mut Reply<'_>| {
        let body: Value = serde_json::from_slice(&received.body)?;
        if body["stream"] != true {
            return reply.json(200, COHERE_ANSWER);
        }
        reply.begin_events()?;
        for event in COHERE_EVENTS {
            reply.event(event)?;
        }
        reply.end_events()
    };
    Upstream::scripted(answer).unwrap()
}

const COHERE_ANSWER: &str = r#"{"id":"c14c80c3-18eb-4519-9460-6c92edd8cfb4","finish_reason":"COMPLETE","message":{"role":"assistant","content":[{"type":"text","text":"The Selsby office."}],"citations":[{"start":4,"end":17,"text":"Selsby office","sources":[{"type":"document","id":"selsby-office","document":{"id":"selsby-office","title":"Selsby office","snippet":"The Selsby office closes at 16:15."}}],"type":"TEXT_CONTENT"}]},"usage":{"billed_units":{"input_tokens":170,"output_tokens":5},"tokens":{"input_tokens":904,"output_tokens":31}}}"#;

const COHERE_EVENTS: [&str; 9] = [
    r#"{"id":"29f14a5a-11de-4cae-9800-25e4747408ea","type":"message-start","delta":{"message":{"role":"assistant","content":[],"tool_plan":"","tool_calls":[],"citations":[]}}}"#,
    r#"{"type":"content-start","index":0,"delta":{"message":{"content":{"type":"text","text":""}}}}"#,
    r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":"The"}}}}"#,
    r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":" Selsby"}}}}"#,
    r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":" office."}}}}"#,
    r#"{"type":"citation-start","index":0,"delta":{"message":{"citations":{"start":4,"end":17,"text":"Selsby office","sources":[{"type":"document","id":"selsby-office","document":{"id":"selsby-office","title":"Selsby office","snippet":"The Selsby office closes at 16:15."}}],"type":"TEXT_CONTENT"}}}}"#,
    r#"{"type":"citation-end","index":0}"#,
    r#"{"type":"content-end","index":0}"#,
    r#"{"type":"message-end","delta":{"finish_reason":"COMPLETE","usage":{"billed_units":{"input_tokens":170,"output_tokens":5},"tokens":{"input_tokens":904,"output_tokens":31}}}}"#,
];
