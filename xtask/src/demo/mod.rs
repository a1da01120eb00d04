//! `cargo xtask demo`: asks a small language model the handbook's questions through Envoy, in three orders, and shows
//! what ordering saves and whether answers stay as good.
//!
//! ```text
//!                      ┌─▶ Envoy + filter, documents in retrieval order ─┐
//! foreword evaluate ───┼─▶ Envoy + filter, ordered freely ───────────────┼─▶ foreword serve (SmolLM2-135M-Instruct)
//!                      └─▶ Envoy + filter, as shipped ───────────────────┘
//! ```
//!
//! Every question is asked in all three orders, one after another and in varying sequence, so that other load on the
//! machine affects all of them. The orders share the engine but no KV state (`cache_salt`). Figures and report are
//! those of `foreword evaluate`.

mod interrupt;
mod questions;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use foreword_tests::{Gateway, GatewayOptions, Host};
use serde_json::{Map, Value, json};

use self::interrupt::Interrupt;
use self::questions::Question;
use crate::build::{self, Built};
use crate::setup;
use crate::workspace::{Workspace, empty_folder};

/// Options of `cargo xtask demo`.
#[derive(Args, Clone)]
pub(crate) struct Options {
    /// End after the questions instead of staying up for requests by hand
    #[arg(long)]
    once: bool,
    /// Print one JSON object instead of a table
    #[arg(long, requires = "once")]
    json: bool,
    /// Questions to ask in each order, of the handbook's 263
    #[arg(long, value_name = "N", default_value_t = DEFAULT_QUESTIONS)]
    requests: usize,
    /// Retrieved documents per question
    #[arg(long, value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=10))]
    top_k: u8,
    /// Size of the host's KV cache in tokens
    #[arg(long, value_name = "N", default_value_t = DEFAULT_KV_TOKENS)]
    kv_tokens: u32,
    /// Another model than SmolLM2: a Hugging Face checkpoint's folder, or a GGUF file
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Cargo profile of the host; `dev` optimises only the engine, and is built sooner
    #[arg(long, default_value = "dev")]
    profile: String,
}

/// Default number of questions; asking them takes three minutes on two cores.
const DEFAULT_QUESTIONS: usize = 12;

/// Number of questions of the check, enough for a measurable reuse.
const CHECKED_QUESTIONS: usize = 8;

/// Default size of the KV cache, enough for the prompts of all questions in each order.
const DEFAULT_KV_TOKENS: u32 = 65_536;

/// Most tokens of an answer; the handbook's are short.
const MAX_TOKENS: &str = "24";

/// Least gain of ordering as shipped, as a multiple of the reuse in retrieval order.
const LEAST_GAIN: f64 = 1.5;

/// The orders, as arms of `foreword evaluate`: retrieval order is its baseline, the others are gateways.
const ORDERS: [&str; 3] = ["retrieval", "free", "shipped"];

/// Returns an order's filter configuration.
fn ordering(order: &str) -> Value {
    match order {
        "retrieval" => json!({"policy": "retrieval"}),
        "free" => json!({"rank": {"place": "free"}}),
        _ => json!({}),
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let (built, model) = prepare(workspace, options)?;
    let interrupt = Interrupt::install()?;
    let demo = Demo::start(&built, &model, options)?;
    let figures = demo.evaluate(workspace, &built, options, interrupt)?;
    if options.json {
        println!("{}", promised(&figures)?);
        return Ok(());
    }
    println!("\nreport: {}", report_path(workspace).display());
    if options.once {
        return Ok(());
    }
    println!(
        "\nEnvoy listens at {} until Ctrl-C, and orders as shipped. Ask it one of the questions:\n",
        demo.url("shipped")?
    );
    println!("  {}\n", demo.curl_line(workspace, options)?);
    interrupt.wait();
    Ok(())
}

/// Checks that the demo completes with the promised keys and gain, for `cargo xtask test`, which has built everything.
pub(crate) fn check(workspace: &Workspace, built: &Built) -> Result<()> {
    let options = Options {
        once: true,
        json: true,
        requests: CHECKED_QUESTIONS,
        top_k: 5,
        kv_tokens: DEFAULT_KV_TOKENS,
        model: None,
        profile: "dev".into(),
    };
    let model = setup::smollm2(workspace)?;
    let interrupt = Interrupt::install()?;
    let demo = Demo::start(built, &model, &options)?;
    let figures = promised(&demo.evaluate(workspace, built, &options, interrupt)?)?;
    eprintln!("{figures}");
    for key in PROMISED_KEYS {
        ensure!(
            figures[key].is_number(),
            "the demo's JSON has no number under {key:?}"
        );
    }
    for order in ["retrieval", "free", "ordered"] {
        let nats = &figures[order]["answer_logprob"]["mean"];
        ensure!(
            nats.as_f64().is_some_and(|nats| nats < 0.0),
            "no log-probability of right answers in the order {order}: {nats}"
        );
    }
    let gain = figures["gain"].as_f64().unwrap_or_default();
    ensure!(
        gain >= LEAST_GAIN,
        "as shipped, {gain:.2} times the retrieval order's tokens are reused, less than {LEAST_GAIN}"
    );
    Ok(())
}

/// The top-level keys that `--json` guarantees.
const PROMISED_KEYS: [&str; 14] = [
    "requests",
    "prompt_tokens",
    "retrieval.cached_tokens",
    "ordered.cached_tokens",
    "retrieval.ttft_p50_ms",
    "ordered.ttft_p50_ms",
    "retrieval.exact_match",
    "ordered.exact_match",
    "time.retrieval.ttft_mean_ms",
    "time.retrieval.ttft_p50_ms",
    "time.retrieval.ttft_p95_ms",
    "time.ordered.ttft_mean_ms",
    "time.ordered.ttft_p50_ms",
    "time.ordered.ttft_p95_ms",
];

/// Converts the figures of `foreword evaluate` to the demo's form: top-level keys with dots, for `jq
/// '.["ordered.cached_tokens"]'`, and each order's complete figures under its name. `ordered` is the order as shipped.
fn promised(figures: &Value) -> Result<Value> {
    let arms = figures["arms"].as_array().context("no arms were asked")?;
    let mut all = Map::new();
    for order in ORDERS {
        let arm = arms.iter().find(|arm| arm["name"] == order);
        let arm = arm.with_context(|| format!("the order {order} was not asked"))?;
        let name = if order == "shipped" { "ordered" } else { order };
        let ttft = &arm["ttft_ms"];
        let cached = arm["cached_tokens"].clone();
        all.insert(format!("{name}.cached_tokens"), cached);
        // A fraction; `evaluate` reports percent.
        let exact = arm["exact_match"]["value"].as_f64();
        let exact = exact.map(|percent| percent / 100.0);
        all.insert(format!("{name}.exact_match"), json!(exact));
        all.insert(format!("{name}.ttft_p50_ms"), ttft["median"].clone());
        for (key, member) in [("mean", "mean"), ("p50", "median"), ("p95", "p95")] {
            all.insert(format!("time.{name}.ttft_{key}_ms"), ttft[member].clone());
        }
        if order == "retrieval" {
            all.insert("requests".into(), arm["questions"].clone());
            all.insert("prompt_tokens".into(), arm["prompt_tokens"].clone());
        }
        all.insert(name.into(), arm.clone());
    }
    let cached = |name: &str| all[&format!("{name}.cached_tokens")].as_f64();
    let cached = |name| cached(name).unwrap_or_default();
    let gain = cached("ordered") / cached("retrieval").max(1.0);
    all.insert("gain".into(), json!((1e3 * gain).round() / 1e3));
    Ok(Value::Object(all))
}

/// Sets up and builds, before signals are caught, because cargo handles them itself. Also returns the model's path.
fn prepare(workspace: &Workspace, options: &Options) -> Result<(Built, PathBuf)> {
    setup::for_demo(workspace)?;
    let model = match &options.model {
        Some(path) => {
            fs::canonicalize(path).with_context(|| format!("--model {}", path.display()))?
        }
        None => setup::smollm2(workspace)?,
    };
    let host = || build::host(workspace, &options.profile);
    let (filter, host) = build::filter_beside(workspace, host)?;
    let built = Built {
        filter,
        host,
        workspace: None,
    };
    Ok((built, model))
}

/// The engine, and a gateway in front of it for each order.
struct Demo {
    // Dropped first: a gateway without an engine would only log refused connections.
    gateways: Vec<Gateway>,
    _host: Host,
}

impl Demo {
    fn start(built: &Built, model: &Path, options: &Options) -> Result<Self> {
        let kv_tokens = options.kv_tokens.to_string();
        let host = Host::start_binary(
            &built.host,
            model,
            &["--name", MODEL, "--kv-tokens", &kv_tokens],
        )?;
        let gateway = |order: &str| {
            Gateway::start(&GatewayOptions {
                plugin: Some(json!({ "ordering": ordering(order) })),
                module: Some(built.filter.clone()),
                ..GatewayOptions::new(host.address())
            })
        };
        let gateways = ORDERS.into_iter().map(gateway).collect::<Result<_>>()?;
        Ok(Self {
            gateways,
            _host: host,
        })
    }

    /// Returns the URL of an order's gateway.
    fn url(&self, order: &str) -> Result<String> {
        let mut gateways = ORDERS.iter().zip(&self.gateways);
        let found = gateways.find(|(name, _)| **name == order);
        let (_, gateway) = found.context("no such order")?;
        Ok(format!("http://{}", gateway.address()))
    }

    /// Asks the questions in every order, writes the report, and returns the figures.
    fn evaluate(
        &self,
        workspace: &Workspace,
        built: &Built,
        options: &Options,
        interrupt: &Interrupt,
    ) -> Result<Value> {
        let folder = report_folder(workspace);
        empty_folder(&folder)?;
        let data = folder.join("questions.jsonl");
        let asked = questions::all(workspace, usize::from(options.top_k))?;
        let lines: Vec<String> = asked.iter().map(Question::line).collect();
        fs::write(&data, lines.concat()).with_context(|| format!("writing {}", data.display()))?;
        let mut command = Command::new(&built.host);
        command
            .args(["evaluate", "--model", MODEL, "--arms", "retrieval"])
            .args(["--endpoint", &self.url("retrieval")?])
            .args(["--max-tokens", MAX_TOKENS])
            .args(["--questions", &options.requests.to_string()])
            .arg("--data")
            .arg(&data)
            .arg("--out")
            .arg(&folder);
        for order in &ORDERS[1..] {
            command.args(["--gateway", &format!("{order}={}", self.url(order)?)]);
        }
        if options.json {
            command.stdout(Stdio::null());
        }
        let status = command.status().context("foreword cannot be started")?;
        // A signal from the terminal also ends the children; their failure is then not reported.
        interrupt.check()?;
        ensure!(status.success(), "foreword evaluate: {status}");
        let page = folder.join("report.html");
        // `foreword evaluate` has told the user this page's name, so that page stays.
        fs::copy(&page, report_path(workspace))
            .with_context(|| format!("copying {}", page.display()))?;
        let figures = fs::read(folder.join("figures.json")).context("the figures are missing")?;
        serde_json::from_slice(&figures).context("reading the figures")
    }

    /// Returns a command line for the user to paste: a question with its documents, which are in a file because they
    /// are long.
    fn curl_line(&self, workspace: &Workspace, options: &Options) -> Result<String> {
        let asked = questions::all(workspace, usize::from(options.top_k))?;
        let question = asked.first().context("the handbook has no question")?;
        let file = report_folder(workspace).join("request.json");
        fs::write(&file, question.body(MODEL)?)
            .with_context(|| format!("writing {}", file.display()))?;
        Ok(format!(
            "curl -isN {}/v1/chat/completions -H 'content-type: application/json' -d '@{}'",
            self.url("shipped")?,
            file.display()
        ))
    }
}

/// The model's name in requests.
const MODEL: &str = "demo";

fn report_folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("demo-report")
}

fn report_path(workspace: &Workspace) -> PathBuf {
    report_folder(workspace).join("index.html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promised_members_come_from_the_arms_of_an_evaluation() {
        let arm = |name: &str, cached: u64| {
            json!({
                "name": name, "questions": 3, "prompt_tokens": 900, "cached_tokens": cached,
                "exact_match": {"value": 50.0}, "ttft_ms": {"mean": 3.0, "median": 2.0, "p95": 9.0},
            })
        };
        let arms = [arm("retrieval", 40), arm("free", 200), arm("shipped", 100)];
        let figures = promised(&json!({ "arms": arms })).unwrap();
        for key in PROMISED_KEYS {
            assert!(figures[key].is_number(), "{key}");
        }
        assert_eq!(figures["ordered.cached_tokens"], 100);
        assert_eq!(figures["time.ordered.ttft_p50_ms"], 2.0);
        assert_eq!(figures["retrieval.exact_match"], 0.5);
        assert_eq!(figures["gain"], 2.5);
        assert_eq!(figures["free"]["cached_tokens"], 200);
        assert_eq!(figures["ordered"]["cached_tokens"], 100);
        assert!(promised(&json!({"arms": [arm("retrieval", 1)]})).is_err());
    }
}
