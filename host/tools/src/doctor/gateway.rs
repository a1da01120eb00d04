//! The gateway in front of the engine: what it forwards, what it decides, and whether its workers decide alike.
//!
//! ```text
//!   one body ──▶ engine                  prompt, answer and counts must be the same
//!       └──────▶ gateway ──▶ engine
//!   documents a b c d ──▶ gateway        then a d c b, four times, three of them on new connections: each decision
//!                                        must see what the first one sent
//! ```

use super::api::{CHAT, Usage};
use super::client::{Answer, Client, Connection, refusal};
use super::events::chat_of;
use super::finding::{Finding, Status};
use super::prompt::Words;
use super::survey::Engine;
use serde_json::{Value, json};
use std::time::Duration;

/// What came through the gateway.
pub(super) struct Gateway {
    /// The same body, sent to the engine and through the gateway.
    pair: [Result<(Usage, Value), String>; 2],
    stream: Answer,
    /// The same documents, first in one order, then in another.
    pub(super) decisions: Vec<Decision>,
    /// One prompt with two salts of the client's through the gateway, then without any to the engine.
    salted: Option<Result<[Usage; 3], String>>,
}

/// A request with documents: what the gateway did with it, and what the engine reported.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    /// The report header.
    report: Option<String>,
    usage: Result<Usage, String>,
}

impl Gateway {
    /// Returns whether the engine's cached tokens do not pass the gateway.
    fn loses_counts(&self) -> bool {
        let cached = |answer: &Result<(Usage, Value), String>| {
            answer
                .as_ref()
                .is_ok_and(|(usage, _)| usage.cached.is_some())
        };
        cached(&self.pair[0]) && !cached(&self.pair[1])
    }
}

impl Decision {
    /// Returns the value of a field of the report.
    fn field(&self, name: &str) -> Option<u64> {
        let mut fields = self.report.as_deref()?.split("; ");
        let value = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))?;
        value.parse().ok()
    }

    pub(super) fn matched(&self) -> u64 {
        self.field("matched").unwrap_or_default()
    }

    fn outcome(&self) -> &str {
        let report = self.report.as_deref().unwrap_or_default();
        report.split(';').next().unwrap_or_default()
    }
}

/// Documents that are asked about again and again.
pub(super) struct Documents {
    texts: Vec<String>,
    question: String,
}

impl Documents {
    /// Returns four new documents of so many words each.
    pub(super) fn new(words: &mut Words, each: u64) -> Self {
        Self {
            texts: (0..4).map(|_| words.text(each)).collect(),
            question: words.text(8),
        }
    }

    /// Returns the words of each.
    fn words(&self) -> u64 {
        let words = |text: &String| text.split(' ').count() as u64;
        self.texts.first().map_or(0, words)
    }

    /// Asks about the documents in this order, the best first.
    pub(super) fn ask(
        &self,
        client: &Client,
        root: &str,
        model: &str,
        ranks: &[usize],
        connection: Connection,
    ) -> Decision {
        let body = chat_of(model, &self.texts, ranks, &self.question);
        let answer = client.post_with(&format!("{root}{}", CHAT.path), &body, &[], connection);
        let report = answer
            .as_ref()
            .ok()
            .and_then(|reply| reply.header(REPORT_HEADER));
        let report = report.map(str::to_owned);
        let usage = CHAT.told(client, answer).map(|(usage, _)| usage);
        Decision { report, usage }
    }
}

/// Asks the engine and the gateway; `is_salted`: the engine keeps salts apart on the chat route.
pub(super) fn ask(
    engine: &Engine<'_>,
    root: &str,
    words: &mut Words,
    documents: &Documents,
    is_salted: bool,
) -> Gateway {
    let (client, model) = (engine.client, engine.model);
    let url = |root: &str| format!("{root}{}", CHAT.path);
    let post = |root: &str, body: &Value| CHAT.told(client, client.post(&url(root), body));
    let mut body = CHAT.body(model, &words.text(documents.words() * 2));
    for (name, value) in [
        ("max_tokens", json!(MAX_TOKENS)),
        ("temperature", json!(0)),
        ("logprobs", json!(true)),
        (
            "tools",
            json!([{"type": "function", "function": {"name": "ask_tide", "description": words.text(32),
            "parameters": {"type": "object", "properties": {}}}}]),
        ),
    ] {
        body[name] = value;
    }
    let mut direct = post(engine.root, &body);
    if direct.is_err()
        && let Some(fields) = body.as_object_mut()
    {
        // Engines may have tools and log-probabilities switched off.
        fields.retain(|name, _| name != "tools" && name != "logprobs");
        direct = post(engine.root, &body);
    }
    // Once more: vLLM has no field where nothing was cached.
    let direct = direct.and_then(|_| post(engine.root, &body));
    let pair = [direct, post(root, &body)];
    let mut streaming = CHAT.body(model, &words.text(32));
    streaming["max_tokens"] = MAX_TOKENS.into();
    streaming["stream"] = true.into();
    streaming["stream_options"] = json!({"include_usage": true});
    let stream = client.post(&url(root), &streaming);
    let decide =
        |ranks: &[usize], connection| documents.ask(client, root, model, ranks, connection);
    let mut decisions = vec![decide(&[0, 1, 2, 3], Connection::Kept)];
    // Workers tell each other within a tick, 100 ms.
    std::thread::sleep(SETTLE);
    decisions.push(decide(AGAIN, Connection::Kept));
    decisions.extend((0..3).map(|_| decide(AGAIN, Connection::Fresh)));
    let salted = is_salted.then(|| {
        let text = words.text(documents.words() * 2);
        let ask = |root: &str, salt: Option<&str>| {
            let mut body = CHAT.body(model, &text);
            if let Some(salt) = salt {
                body["cache_salt"] = salt.repeat(32).into();
            }
            CHAT.ask(client, root, &body)
        };
        Ok([
            ask(root, Some("c"))?,
            ask(root, Some("d"))?,
            ask(engine.root, None)?,
        ])
    });
    Gateway {
        pair,
        stream,
        decisions,
        salted,
    }
}

/// Whether anything answers at the gateway's address.
pub(super) fn reachable(answer: &Answer) -> Finding {
    match answer {
        Ok(reply) => Finding::ok("gateway", format!("GET /v1/models: {}", reply.status)),
        Err(came) => {
            let remedy = "--gateway with the address of the listener that clients use, and that listener running";
            Finding::new("gateway", Status::Fail, came.clone(), remedy)
        }
    }
}

/// Whether body and answer pass the gateway whole.
pub(super) fn forwards(gateway: &Gateway) -> Finding {
    const CHECK: &str = "gateway-forwards";
    let ((direct, answer), (through, passed)) = match &gateway.pair {
        [Ok(direct), Ok(through)] => (direct, through),
        [Err(came), _] => {
            let detail = format!("POST {} to the engine: {came}", CHAT.path);
            return Finding::new(CHECK, Status::Skipped, detail, "");
        }
        [_, Err(came)] => {
            let detail = format!(
                "POST {} through the gateway: {came}; to the engine: 200",
                CHAT.path
            );
            return Finding::new(CHECK, Status::Fail, detail, ROUTE);
        }
    };
    let has_logprobs = |answer: &Value| {
        answer
            .pointer("/choices/0/logprobs")
            .is_some_and(|value| !value.is_null())
    };
    let completion = |answer: &Value| {
        answer
            .pointer("/usage/completion_tokens")
            .and_then(Value::as_u64)
    };
    let mut lost = Vec::new();
    if direct.prompt.abs_diff(through.prompt) * 50 > direct.prompt {
        lost.push(format!(
            "{} prompt tokens instead of {}: messages or tools",
            through.prompt, direct.prompt
        ));
    }
    if completion(passed) > Some(MAX_TOKENS) && completion(answer) <= Some(MAX_TOKENS) {
        lost.push("more than max_tokens answered: max_tokens".to_owned());
    }
    if has_logprobs(answer) && !has_logprobs(passed) {
        lost.push("no log-probabilities: logprobs".to_owned());
    }
    if gateway.loses_counts() {
        lost.push("no cached_tokens: the answer's usage".to_owned());
    }
    let asked = "one body to the engine and through the gateway";
    if lost.is_empty() {
        return Finding::ok(
            CHECK,
            format!("{asked}: {} prompt tokens both times", through.prompt),
        );
    }
    let detail = format!("{asked}: {} did not pass", lost.join("; "));
    Finding::new(
        CHECK,
        Status::Fail,
        detail,
        "a gateway that passes bodies and answers on byte for byte where it changes nothing",
    )
}

/// Whether a stream passes the gateway, with its counts.
pub(super) fn streams(gateway: &Gateway, is_reported: bool) -> Finding {
    const CHECK: &str = "gateway-streams";
    let Ok(reply) = (gateway.stream.as_ref()).map_err(|_| ()) else {
        return Finding::new(CHECK, Status::Fail, refusal(&gateway.stream), ROUTE);
    };
    let text = String::from_utf8_lossy(&reply.body);
    let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let events: Vec<&str> = events.map(str::trim).collect();
    let has_usage = events
        .iter()
        .any(|event| event.contains("\"prompt_tokens\""));
    let asked = "a streamed chat with stream_options.include_usage";
    let kind = reply.header("content-type").unwrap_or_default();
    if reply.status != 200
        || !kind.starts_with("text/event-stream")
        || events.last() != Some(&"[DONE]")
    {
        let detail = format!("{asked}: {} {kind}, {} events", reply.status, events.len());
        return Finding::new(CHECK, Status::Fail, detail, ROUTE);
    }
    if is_reported && !has_usage {
        let detail = format!("{asked}: {} events, none with usage", events.len());
        let remedy = "vLLM: --enable-force-include-usage; a gateway that passes stream_options and the last event on";
        return Finding::new(CHECK, Status::Warn, detail, remedy);
    }
    Finding::ok(CHECK, format!("{asked}: {} events", events.len()))
}

/// Whether a decision sees what an earlier one sent, and the engine then finds it.
pub(super) fn orders(gateway: &Gateway, is_reported: bool) -> Finding {
    const CHECK: &str = "gateway-orders";
    let [first, second, ..] = &gateway.decisions[..] else {
        return Finding::new(CHECK, Status::Skipped, "not asked", "");
    };
    if let Some(came) = [first, second]
        .iter()
        .find_map(|decision| decision.usage.as_ref().err())
    {
        let detail = format!("a chat with documents: {came}");
        return Finding::new(CHECK, Status::Fail, detail, ROUTE);
    }
    let Some(report) = &second.report else {
        let detail = format!("a chat with documents: the answer has no {REPORT_HEADER} header");
        let remedy =
            "\"report_header\": \"x-foreword\", if Foreword's filter is to run at this gateway";
        return Finding::new(CHECK, Status::Skipped, detail, remedy);
    };
    let detail = format!("four documents, then the same in another order: {report}");
    match second.outcome() {
        "ordered" | "unchanged" | "dry-run" if second.field("documents") == Some(0) => {
            let remedy = "\"ordering\": {\"documents\": …}: the format in which your clients write documents";
            Finding::new(CHECK, Status::Fail, detail, remedy)
        }
        "ordered" | "unchanged" if second.matched() == 0 => {
            Finding::new(CHECK, Status::Fail, detail, BLIND)
        }
        "ordered" | "unchanged" => {
            let Ok(usage) = &second.usage else {
                return Finding::new(CHECK, Status::Skipped, detail, "");
            };
            let counted = format!(
                "{detail}; {} of {} tokens cached",
                usage.shown(),
                usage.prompt
            );
            if is_reported && !gateway.loses_counts() && !usage.is_cached(usage.prompt / 2) {
                return Finding::new(CHECK, Status::Fail, counted, COMPUTED);
            }
            Finding::ok(CHECK, counted)
        }
        "dry-run" => Finding::ok(CHECK, detail),
        _ => {
            let remedy = "gateway-config/envoy/README.md has a line for each reason";
            Finding::new(CHECK, Status::Fail, detail, remedy)
        }
    }
}

/// Whether all of the gateway's workers see what one of them sent.
pub(super) fn agree(gateway: &Gateway) -> Finding {
    const CHECK: &str = "gateway-agree";
    let again = gateway.decisions.get(1..).unwrap_or_default();
    let matched: Vec<String> = again
        .iter()
        .map(|decision| decision.matched().to_string())
        .collect();
    let detail = format!(
        "the same documents again, three times on new connections: matched {}",
        matched.join(", ")
    );
    let seeing = again
        .iter()
        .filter(|decision| decision.matched() > 0)
        .count();
    if seeing == 0 {
        let detail = "no decision saw resident documents";
        return Finding::new(CHECK, Status::Skipped, detail, "");
    }
    if seeing < again.len() {
        let remedy = "\"agreement\" on in every worker and gateway, with one plugin name, vm_id and \"ring\"; engines[].feed where \
                      several gateways stand before an engine";
        return Finding::new(CHECK, Status::Fail, detail, remedy);
    }
    Finding::ok(CHECK, detail)
}

/// Whose salts reach the engine.
pub(super) fn salts(gateway: &Gateway) -> Finding {
    const CHECK: &str = "gateway-salts";
    let Some(salted) = &gateway.salted else {
        let detail = "the engine's own chat route was not found to keep salts apart";
        return Finding::new(CHECK, Status::Skipped, detail, "");
    };
    let [_, other, bare] = match salted {
        Ok(answers) => answers,
        Err(came) => {
            let detail = format!("a chat with the client's cache_salt: {came}");
            return Finding::new(CHECK, Status::Skipped, detail, "");
        }
    };
    let asked = "one prompt with two salts of the client's, then to the engine without";
    let detail = format!(
        "{asked}: cached {}, {} of {}",
        other.shown(),
        bare.shown(),
        bare.prompt
    );
    if bare.is_cached(bare.prompt) {
        let remedy = "\"salt\": {\"key_env\": \"FOREWORD_SALT_KEY\"} with \"tenant\", or a gateway that passes cache_salt on";
        return Finding::new(
            CHECK,
            Status::Fail,
            format!("{detail}: no salt reaches the engine"),
            remedy,
        );
    }
    let whose = match other.is_cached(other.prompt) {
        true => "the gateway writes its own",
        false => "the client's reaches the engine",
    };
    Finding::ok(CHECK, format!("{detail}: {whose}"))
}

/// Ranks of the second order: the best document is the same, so that it keeps its place.
pub(super) const AGAIN: &[usize] = &[0, 3, 2, 1];
const MAX_TOKENS: u64 = 3;
const SETTLE: Duration = Duration::from_millis(300);
/// The filter's default `report_header`.
const REPORT_HEADER: &str = "x-foreword";
const ROUTE: &str = "a route for POST /v1/chat/completions at the gateway, with the engine's model";
const BLIND: &str = "leave \"ordering\": {\"tree\": …} room (max_tokens: the engine's KV capacity), and engines[].block_tokens no larger than \
                     the engine's blocks";
const COMPUTED: &str = "the gateway believes resident what the engine computed: send these requests to the engine that was examined, with one \
                        salt and one template for all";
