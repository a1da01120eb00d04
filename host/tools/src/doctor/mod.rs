//! `foreword doctor`: examines a running engine and its gateway, and reports what prevents reuse of prefixes.
//!
//! ```text
//!   /v1/models ─▶ survey: each API twice ─▶ salts ─▶ events ─▶ rendering, tools ─▶ gateway ─▶ --allow-reset: residency
//!                     │                       │         │             │               │                │
//!                     └───────────────────────┴── observations: the requests and responses ────────────┘
//!                                                          ▼
//!                                   checks: functions from observations to a finding each
//! ```
//!
//! Some requests serve several checks: the prompt that shows whether anything is cached is sent again with salts, and
//! beginnings of this prompt show the shortest length that is reused. Prompts are random words, so none of them is
//! cached before. The engine's token counts are taken as true; its events and the gateway's reports are compared with
//! them.

mod api;
mod client;
mod events;
mod feed;
mod finding;
mod gateway;
mod metrics;
mod prompt;
mod rendering;
mod residency;
mod salts;
mod survey;
mod zmq;

pub use finding::{Examination, Finding, Status};

use crate::options::{api_key, seconds};
use anyhow::{Context, Result, bail, ensure};
use api::CHAT;
use client::{Client, refusal};
use events::Source;
use foreword_report::files;
use foreword_report::words::rounded;
use metrics::Metrics;
use prompt::{Documents, Words};
use residency::Cleared;
use serde_json::{Value, json};
use std::time::{Duration, Instant, SystemTime};
use survey::{Engine, Route, Survey};

const HELP: &str = "What it sends: some 43 requests with 12,000 prompt tokens to the engine, and 16 with 8,000 more through a gateway; where no prompt of
400 tokens is reused, up to 50,000 prompt tokens; never more than 160 requests. Prompts are random words, and answers have one to
three tokens. Nothing is changed, except by --allow-reset.

docs/doctor.md leads from a symptom to a finding, and has every check.
JSON: {\"url\", \"model\", \"requests\", \"prompt_tokens\", \"seconds\", \"findings\": [{\"check\", \"status\", \"detail\", \"remedy\"}]};
status: ok, warn, fail or skipped.

Exit codes: 0 no check failed, 1 the engine does not answer, 2 bad arguments, 3 a check failed.";

/// The command-line options of `foreword doctor`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Options {
    /// The engine: http://localhost:8000, say, or the same with https
    #[arg(value_name = "URL")]
    url: String,
    /// URL of the gateway in front of the engine
    #[arg(long, value_name = "URL")]
    gateway: Option<String>,
    /// The model to ask [default: the first of /v1/models]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// The engine's KV events over ZeroMQ, tcp://HOST:PORT [default: the feed of `foreword serve` or
    /// `foreword kv-bridge`, if there is one]
    #[arg(long, value_name = "ENDPOINT")]
    events: Option<String>,
    /// Server of the engine's metrics and foreword's KV feed [default: URL, or else the same host at URL's port + 1000,
    /// which then gets no API key]
    #[arg(long, value_name = "URL")]
    internal: Option<String>,
    /// The gateway's metrics: Envoy's http://HOST:9901/stats/prometheus, or /metrics of `foreword ext-proc`; it gets
    /// no API key
    #[arg(long, value_name = "URL", requires = "gateway")]
    gateway_metrics: Option<String>,
    /// Empty the engine's cache at the end, to see who notices: every prompt is then computed once more
    #[arg(long)]
    allow_reset: bool,
    /// Seconds that one request may take
    #[arg(long = "timeout-s", value_name = "SECONDS", default_value = "30", value_parser = seconds(3_600))]
    timeout: Duration,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Examines the engine and the gateway, and prints the findings to standard output.
///
/// # Errors
/// Returns an error if the engine does not respond, or the output cannot be written.
pub fn run(options: &Options) -> Result<Examination> {
    let examination = examine(options)?;
    let to_json = || json!(examination).to_string();
    files::show(options.json, to_json, || examination.to_table())?;
    Ok(examination)
}

fn examine(options: &Options) -> Result<Examination> {
    let key = api_key("--api-key-env", options.api_key_env.as_ref())?;
    let root_of = |url: &str| crate::client::root(url).map_err(anyhow::Error::msg);
    let root = root_of(&options.url)?;
    let gateway_root = options.gateway.as_deref().map(root_of).transpose()?;
    let internal = match &options.internal {
        Some(url) => vec![root_of(url)?],
        None => std::iter::once(root.clone())
            .chain(a_thousand_above(&root))
            .collect(),
    };
    let at = |path: &str| -> Vec<String> {
        let internal = internal.iter();
        internal.map(|root| format!("{root}{path}")).collect()
    };
    // A port that is only guessed, and Envoy's admin interface, get no key.
    let named = [Some(&root), gateway_root.as_ref()];
    let named = named.into_iter().flatten();
    let named = match options.internal {
        Some(_) => named.chain(&internal).cloned().collect(),
        None => named.cloned().collect(),
    };
    let client = &Client::new(key, named, options.timeout);
    let start = Instant::now();
    let (model, max_tokens) = model(client, &root, options.model.as_deref())?;
    let engine = &Engine {
        client,
        root: &root,
        model: &model,
        max_tokens,
    };
    let words = &mut Words::new();

    let source = Source::find(client, options.events.as_deref(), &at("/v1/kv/events"));
    let chat = CHAT.body(&model, &words.text(16));
    let rendered = rendering::render(engine, &chat);
    let survey = Survey::take(engine, words);
    let scraped = Metrics::scrape(client, &at("/metrics"));
    let salted = survey.routes.iter().map(|route| salts::ask(engine, route));
    let salted: Vec<_> = salted.collect();
    let routes: Vec<_> = survey.routes.iter().zip(salted).collect();
    // Without any reuse, the prompt's length does not matter.
    let reusing = survey.reusing().map(|(route, _)| route);
    let length = reusing.map_or(400, |route| route.text.split(' ').count() as u64);
    let served = survey.routes.iter().find(|route| route.pair.is_ok());
    let api = served.map_or(CHAT, |route| route.api);
    let observed = source.observe(engine, gateway_root.as_deref(), api, words, length);
    let is_reported = survey.route(CHAT).and_then(Route::warm).is_some();
    let tools = rendering::ask_tools(engine, words, is_reported);
    let renderings = rendered.and_then(|first| Ok([first, rendering::render(engine, &chat)?]));

    let caching = survey::caching(&survey, &scraped);
    let status = caching.status;
    let mut findings = vec![
        caching.named("caching"),
        survey::least_reusable(&survey, &scraped).named("least-reusable"),
    ];
    for route in &survey.routes {
        let check = format!("cached-tokens/{}", route.api.name);
        findings.push(survey::cached_tokens(route, &survey, status).named(check));
    }
    let kept = routes.iter().filter(|(route, salted)| {
        salts::honoured(route, salted.as_ref(), &[]).status == Status::Ok
    });
    let kept: Vec<&str> = kept.map(|(route, _)| route.api.path).collect();
    for (route, salted) in &routes {
        let check = format!("salts/{}", route.api.name);
        findings.push(salts::honoured(route, salted.as_ref(), &kept).named(check));
    }
    let arriving = events::arrive(&observed, status);
    // If no events arrived before, their absence after a clear means nothing.
    let source = Some(&source).filter(|_| arriving.status == Status::Ok);
    findings.extend([
        rendering::template_date(&renderings, SystemTime::now()).named("template-date"),
        rendering::tool_order(&tools, survey.least()).named("tool-order"),
        arriving.named("events"),
        events::agree(&observed).named("events-agree"),
    ]);

    let documents = &Documents::new(
        words,
        survey
            .least()
            .unwrap_or_default()
            .clamp(100, length.max(100)),
    );
    let mut believer = None;
    if let Some(root) = gateway_root.as_deref() {
        let answer = client.get(&format!("{root}/v1/models"));
        findings.push(gateway::reachable(&answer).named("gateway"));
        if answer.is_ok() {
            let is_salted = kept.contains(&CHAT.path);
            let seen = gateway::ask(engine, root, words, documents, is_salted);
            let scraped = Metrics::scrape(client, options.gateway_metrics.as_slice());
            findings.extend([
                gateway::forwards(&seen).named("gateway-forwards"),
                gateway::streams(&seen, is_reported).named("gateway-streams"),
                gateway::orders(&seen, is_reported).named("gateway-orders"),
                gateway::agree(&seen).named("gateway-agree"),
                gateway::salts(&seen).named("gateway-salts"),
                metrics::decisions(&scraped).named("gateway-decisions"),
            ]);
            believer = Some((root, documents));
        }
    }
    let roots = [&internal[..], std::slice::from_ref(&root)].concat();
    let cleared = match options.allow_reset {
        true => residency::clear(engine, &roots, reusing, source, believer),
        false => Cleared::NotAllowed,
    };
    findings.push(residency::believed(&cleared).named("residency"));
    let (requests, prompt_tokens) = client.spent();
    Ok(Examination {
        url: root.clone(),
        model: model.clone(),
        requests,
        prompt_tokens,
        seconds: rounded(start.elapsed().as_secs_f64(), 1e3),
        findings,
    })
}

/// Returns the name of the model to examine (`wanted`, or else the first that the engine lists), and its context length
/// in tokens (`max_model_len`) if the engine states it.
///
/// # Errors
/// Returns an error if the engine does not respond, refuses the API key, or lists no model although none is wanted.
fn model(client: &Client, root: &str, wanted: Option<&str>) -> Result<(String, Option<u64>)> {
    let url = format!("{root}/v1/models");
    let answer = client.get(&url);
    let Ok(reply) = &answer else {
        bail!("the engine does not answer: {}", refusal(&url, &answer));
    };
    ensure!(
        !matches!(reply.status, 401 | 403),
        "{url}: {}; --api-key-env names the key's variable",
        reply.words()
    );
    let listed = reply.json();
    let models = listed["data"].as_array().map_or(&[][..], Vec::as_slice);
    let named = |model: &&Value| wanted.is_none_or(|wanted| model["id"] == wanted);
    let found = models.iter().find(named);
    let max_tokens = found.and_then(|model| model["max_model_len"].as_u64());
    let name = wanted.or_else(|| found?["id"].as_str());
    let name = name.with_context(|| {
        let words = reply.words();
        format!("{url} lists no model: {words}; name one with --model, or the engine's own URL")
    })?;
    Ok((name.to_owned(), max_tokens))
}

/// Returns the default URL of the internal listener of a `foreword serve` at `root`: the same host at the port + 1000.
/// `None` if `root` has no port.
fn a_thousand_above(root: &str) -> Option<String> {
    let (start, port) = root.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    Some(format!("{start}:{}", port.checked_add(1000)?))
}
