//! Tests of `foreword evaluate` as a user runs it: against endpoints that follow a script, and through real Envoy.

mod arms;
mod choices;
mod datasets;
mod faults;
mod gateway;
mod likelihood;
mod resume;
mod scores;
mod tls;

use foreword_tests::{Received, Reply, Upstream, artifacts};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;
use tempfile::TempDir;

static BINARY: LazyLock<PathBuf> = LazyLock::new(|| artifacts::host_binary("dev").unwrap());

/// A folder with questions, and the run's own folder in it.
struct Evaluation {
    folder: TempDir,
    data: &'static str,
    /// Whether right answers are scored, which most scripts do not answer.
    is_scored: bool,
    /// Whether every document may stand anywhere, by the configuration in `free.json`.
    places_freely: bool,
}

impl Evaluation {
    fn of(lines: &[Value]) -> Self {
        let lines: Vec<_> = lines.iter().map(Value::to_string).collect();
        Self::of_file("data.jsonl", &lines.join("\n"))
    }

    fn of_file(data: &'static str, text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join(data), text).unwrap();
        Self {
            folder,
            data,
            is_scored: false,
            places_freely: false,
        }
    }

    fn scored(self) -> Self {
        Self {
            is_scored: true,
            ..self
        }
    }

    fn placing_freely(self) -> Self {
        let free = json!({"rank": {"place": "free"}}).to_string();
        std::fs::write(self.folder.path().join("free.json"), free).unwrap();
        Self {
            places_freely: true,
            ..self
        }
    }

    fn command(&self, endpoint: SocketAddr, arguments: &[&str]) -> Command {
        self.command_to(&format!("http://{endpoint}"), arguments)
    }

    fn command_to(&self, endpoint: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&*BINARY);
        command
            .args(["evaluate", "--model", "m", "--data", self.data])
            .args(["--out", "run", "--endpoint", endpoint])
            .args(arguments)
            // The waits between attempts are not under test.
            .args(["--backoff-ms", "0"])
            .args((!self.is_scored).then_some("--no-logprob"))
            .args(if self.places_freely {
                &["--ordering", "free.json"][..]
            } else {
                &[]
            })
            .current_dir(self.folder.path());
        for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, upstream: &Upstream, arguments: &[&str]) -> Output {
        self.command(upstream.address(), arguments)
            .output()
            .unwrap()
    }

    /// Runs the command, which must succeed, and returns its figures.
    #[track_caller]
    fn figures(&self, upstream: &Upstream, arguments: &[&str]) -> Value {
        figures_of(&self.run(upstream, &[arguments, &["--json"]].concat()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    /// Returns the recorded answers, as they were written.
    fn records(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("answers.jsonl")).unwrap();
        let lines = text.lines().skip(1);
        lines
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|record| record["is_failed"] != true)
            .collect()
    }
}

/// Returns what a run with `--json` printed.
#[track_caller]
fn figures_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", error_of(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a question about the thing with this number, whose document is at `rank` of three; many questions share the
/// others.
fn question(number: usize, rank: usize) -> Value {
    let mut documents = vec![
        json!({"id": format!("s{}", number % 2), "text": format!("Shared words number {}.", number % 2)}),
        json!({"id": "t", "text": "Words that stand everywhere."}),
    ];
    let text = format!("The code of thing {number} is X{number}.");
    documents.insert(rank, json!({"id": format!("d{number}"), "text": text}));
    json!({
        "id": format!("q{number}"),
        "question": format!("What is the code of thing {number}?"),
        "documents": documents,
        "answers": [format!("X{number}")],
    })
}

/// Returns the last message of a request.
fn asked(request: &Received) -> String {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let last = body["messages"].as_array().unwrap().last().unwrap();
    last["content"].as_str().unwrap().to_owned()
}

/// Returns the answer of a model that reads only the first document.
fn first_document(request: &Received) -> String {
    let asked = asked(request);
    let first = asked.split("</document>").next().unwrap();
    let code = first.split_once(" is ").map(|(_, code)| code);
    code.map_or("nothing", |code| code.trim()).to_owned()
}

/// Streams an answer in two pieces, with usage.
fn answer(reply: &mut Reply<'_>, text: &str) -> anyhow::Result<()> {
    let middle = text.len() / 2;
    reply.begin_events()?;
    for piece in [&text[..middle], &text[middle..]] {
        reply.event(&json!({"choices": [{"delta": {"content": piece}}]}).to_string())?;
    }
    reply.event(&json!({"choices": [{"delta": {}, "finish_reason": "stop"}]}).to_string())?;
    let usage = json!({"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 30}});
    reply.event(&json!({"choices": [], "usage": usage}).to_string())?;
    reply.event("[DONE]")?;
    reply.end_events()
}

/// Starts an endpoint whose model reads only the first document.
fn reader() -> Upstream {
    Upstream::scripted(|request, reply| answer(reply, &first_document(request))).unwrap()
}

fn arm<'f>(figures: &'f Value, name: &str) -> &'f Value {
    let arms = figures["arms"].as_array().unwrap();
    arms.iter().find(|arm| arm["name"] == name).unwrap()
}
