//! The checks of the gateway in front of the engine: what it forwards, how it orders documents, and whether its workers
//! agree.
//!
//! ```text
//!   one body ──▶ engine                  prompt, answer and counts must be the same
//!       └──────▶ gateway ──▶ engine
//!   documents a b c d ──▶ gateway        then a d c b, four times, three of them on new connections: each decision
//!                                        must see what the first one sent
//! ```

use super::api::{CHAT, Usage};
use super::client::{Answer, Connection, Reply};
use super::finding::Finding;
use super::prompt::{AGAIN, Documents, FIRST, Words};
use super::survey::Engine;
use crate::client::REPORT_HEADER;
use serde_json::{Value, json};
use std::time::Duration;

/// The responses, from the engine and through the gateway, from which the findings about the gateway are made.
pub(super) struct Gateway {
    /// The responses to the same request body (token counts and JSON): first from the engine directly, then through the
    /// gateway.
    pair: [Result<(Usage, Value), String>; 2],
    stream: Answer,
    /// The gateway's ordering decisions about requests with the same documents, in the order of sending: the first
    /// request lists the documents in one order, all later requests in one other order.
    decisions: Vec<Decision>,
    /// Token counts of one prompt: through the gateway with two different `cache_salt`s, then from the engine without
    /// one; or the error of one of these requests. `None` if the engine ignores salts, so that none was sent.
    salted: Option<Result<[Usage; 3], String>>,
}

/// The gateway's report of one ordering decision, and the engine's token counts for that request.
#[derive(Clone, Debug)]
pub(super) struct Decision {
    /// The value of the gateway's report header; `None` if there was no response or it has no such header.
    report: Option<String>,
    usage: Result<Usage, String>,
}

impl Gateway {
    /// Returns whether the number of cached tokens is missing from the response through the gateway, but not from the
    /// engine's own response.
    fn loses_counts(&self) -> bool {
        let [direct, through] = (self.pair.each_ref())
            .map(|answer| (answer.as_ref()).is_ok_and(|(usage, _)| usage.cached.is_some()));
        direct && !through
    }
}

impl Decision {
    /// Returns the number in a field of the report header, such as `matched`; `None` if there is no header, or no such
    /// number in it.
    fn field(&self, name: &str) -> Option<u64> {
        let mut fields = self.report.as_deref()?.split("; ");
        let value = fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))?;
        value.parse().ok()
    }

    pub(super) fn matched(&self) -> u64 {
        self.field("matched").unwrap_or_default()
    }
}

/// Sends a chat about the documents through the gateway at `root`, and returns the gateway's ordering decision. `ranks`
/// are the documents' indices, best first.
pub(super) fn decide(
    engine: &Engine<'_>,
    root: &str,
    documents: &Documents,
    ranks: [usize; 4],
    connection: Connection,
) -> Decision {
    let (url, body) = (CHAT.url(root), documents.chat(engine.model, ranks));
    let answer = (engine.client).send(&url, Some(&body), &[], connection);
    let reply = answer.as_ref().ok();
    let report = reply.and_then(|reply| reply.header(REPORT_HEADER));
    Decision {
        report: report.map(str::to_owned),
        usage: CHAT.read(engine.client, answer).map(|(usage, _)| usage),
    }
}

/// Sends all requests that the gateway's checks need, and returns the responses. `is_salted` is true if the engine
/// honours `cache_salt` on the chat route; otherwise no requests with salts are sent.
pub(super) fn ask(
    engine: &Engine<'_>,
    root: &str,
    words: &mut Words,
    documents: &Documents,
    is_salted: bool,
) -> Gateway {
    let (client, model) = (engine.client, engine.model);
    let post = |root, body: &Value| CHAT.read(client, client.post(&CHAT.url(root), body));
    let text = words.text(documents.words * 2);
    let plain = json!({"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": MAX_TOKENS, "temperature": 0});
    let mut body = plain.clone();
    body["logprobs"] = true.into();
    body["tools"] = json!([{"type": "function", "function": {"name": "ask_tide", "description": words.text(32),
        "parameters": {"type": "object", "properties": {}}}}]);
    // The engine may not allow tools or log-probabilities.
    if post(engine.root, &body).is_err() {
        body = plain.clone();
    }
    // The body is sent again, since some engines omit the count if nothing was cached.
    let pair = [post(engine.root, &body), post(root, &body)];
    let mut streaming = plain;
    streaming["stream"] = true.into();
    streaming["stream_options"] = json!({"include_usage": true});
    let stream = client.post(&CHAT.url(root), &streaming);
    let decide = |ranks, connection| decide(engine, root, documents, ranks, connection);
    let mut decisions = vec![decide(FIRST, Connection::Kept)];
    // Workers exchange updates within a tick, 100 ms.
    std::thread::sleep(SETTLE);
    decisions.push(decide(AGAIN, Connection::Kept));
    decisions.extend((0..3).map(|_| decide(AGAIN, Connection::Fresh)));
    let salted = is_salted.then(|| {
        let text = words.text(documents.words * 2);
        let through = |salt| CHAT.ask(client, root, &CHAT.salted(model, &text, salt));
        Ok([through("c")?, through("d")?, engine.ask(CHAT, &text)?])
    });
    Gateway {
        pair,
        stream,
        decisions,
        salted,
    }
}

/// Checks that the gateway responds: `answer` is its response to `GET /v1/models`, whatever the status.
pub(super) fn reachable(answer: &Answer) -> Finding {
    match answer {
        Ok(reply) => Finding::ok(format!("GET /v1/models: {}", reply.status)),
        Err(came) => Finding::fail(came, LISTENER),
    }
}

/// Checks that the gateway forwards the request body and the answer unchanged, as far as prompt tokens, cached tokens,
/// log-probabilities and the answer's length show it.
pub(super) fn forwards(gateway: &Gateway) -> Finding {
    let ((direct, answer), (through, passed)) = match &gateway.pair {
        [Ok(direct), Ok(through)] => (direct, through),
        [Err(came), _] => return Finding::unknown(format!("to the engine, {came}")),
        [_, Err(came)] => {
            let detail = format!("through the gateway, {came}; to the engine: 200");
            return Finding::fail(detail, ROUTE);
        }
    };
    let has_logprobs = |answer: &Value| !answer["choices"][0]["logprobs"].is_null();
    let is_short =
        |answer: &Value| answer["usage"]["completion_tokens"].as_u64() <= Some(MAX_TOKENS);
    let (count, expected) = (through.prompt, direct.prompt);
    let is_shifted = count.abs_diff(expected) * 50 > expected;
    let is_longer = is_short(answer) && !is_short(passed);
    let lacks_logprobs = has_logprobs(answer) && !has_logprobs(passed);
    let lost = [
        (is_shifted, "messages or tools (other prompt tokens)"),
        (is_longer, "max_tokens (a longer answer)"),
        (lacks_logprobs, "logprobs (none in the answer)"),
        (gateway.loses_counts(), "cached_tokens of the answer"),
    ];
    let lost = lost.into_iter().filter(|(is_lost, _)| *is_lost);
    let lost: Vec<&str> = lost.map(|(_, what)| what).collect();
    let detail = format!(
        "one body to the engine and through the gateway: {expected} and {count} prompt tokens"
    );
    match lost.is_empty() {
        true => Finding::ok(detail),
        false => Finding::fail(
            format!("{detail}; lost: {}", lost.join(", ")),
            "a gateway that passes bodies and answers on byte for byte where it changes nothing",
        ),
    }
}

/// Checks that the gateway forwards a streamed answer to its end. If `is_reported` (the engine's chat API reports
/// cached tokens), also checks that the stream contains token counts.
pub(super) fn streams(gateway: &Gateway, is_reported: bool) -> Finding {
    let reply: &Reply = match &gateway.stream {
        Ok(reply) => reply,
        Err(came) => return Finding::fail(came, ROUTE),
    };
    let text = String::from_utf8_lossy(&reply.body);
    let events = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let events: Vec<&str> = events.map(str::trim).collect();
    let kind = reply.header("content-type").unwrap_or_default();
    let detail = format!(
        "a streamed chat with stream_options.include_usage: {} {kind}, {} events",
        reply.status,
        events.len()
    );
    if !kind.starts_with("text/event-stream") || events.last() != Some(&"[DONE]") {
        return Finding::fail(format!("{detail}, not ended by [DONE]"), ROUTE);
    }
    if is_reported && !text.contains("\"prompt_tokens\"") {
        let remedy = "vLLM: --enable-force-include-usage; a gateway that passes stream_options and the last event on";
        return Finding::warn(format!("{detail}, none with usage"), remedy);
    }
    Finding::ok(detail)
}

/// Checks that the gateway's decision counts the documents of an earlier request as resident in the engine's cache. If
/// `is_reported` (the engine's chat API reports cached tokens), also checks that the engine finds them cached.
pub(super) fn orders(gateway: &Gateway, is_reported: bool) -> Finding {
    let second = &gateway.decisions[1];
    let usage = match &second.usage {
        Ok(usage) => usage,
        Err(came) => return Finding::fail(format!("with documents, {came}"), ROUTE),
    };
    let Some(report) = &second.report else {
        let detail = format!("a chat with documents: the answer has no {REPORT_HEADER} header");
        return Finding::skipped(detail, REPORT);
    };
    let detail = format!(
        "four documents, then the same in another order: {report}; {} tokens cached",
        usage.of_prompt()
    );
    let is_computed = is_reported && !gateway.loses_counts() && !usage.is_cached(usage.prompt / 2);
    match report.split(';').next().unwrap_or_default() {
        "dry-run" => Finding::ok(detail),
        "ordered" | "unchanged" if second.field("documents") == Some(0) => {
            Finding::fail(detail, FORMAT)
        }
        "ordered" | "unchanged" if second.matched() == 0 => Finding::fail(detail, BLIND),
        "ordered" | "unchanged" if is_computed => Finding::fail(detail, COMPUTED),
        "ordered" | "unchanged" => Finding::ok(detail),
        _ => Finding::fail(detail, REASONS),
    }
}

/// Checks that all of the gateway's workers count documents as resident in the engine's cache that one of them has
/// forwarded before.
pub(super) fn agree(gateway: &Gateway) -> Finding {
    let matched = gateway.decisions[1..].iter().map(Decision::matched);
    let matched: Vec<u64> = matched.collect();
    let detail =
        format!("the same documents again, three times on new connections: matched {matched:?}");
    match matched.iter().filter(|matched| **matched > 0).count() {
        0 => Finding::unknown("no decision saw resident documents"),
        seeing if seeing < matched.len() => Finding::fail(detail, AGREEMENT),
        _ => Finding::ok(detail),
    }
}

/// Checks that a `cache_salt` reaches the engine through the gateway, and reports whether it is the client's or one
/// that the gateway writes.
pub(super) fn salts(gateway: &Gateway) -> Finding {
    let [_, other, bare] = match &gateway.salted {
        Some(Ok(answers)) => answers,
        Some(Err(came)) => {
            return Finding::unknown(format!("with the client's cache_salt, {came}"));
        }
        None => return Finding::unknown("the engine was not found to keep salts of chats apart"),
    };
    let detail = format!(
        "one prompt with two salts of the client's, then to the engine without: cached {}, {}",
        other.shown(),
        bare.of_prompt()
    );
    if bare.is_warm() {
        let remedy = "\"salt\": {\"key_env\": \"FOREWORD_SALT_KEY\"} with \"tenant\", or a gateway that passes cache_salt on";
        return Finding::fail(format!("{detail}: no salt reaches the engine"), remedy);
    }
    Finding::ok(match other.is_warm() {
        true => format!("{detail}: the gateway writes its own"),
        false => format!("{detail}: the client's reaches the engine"),
    })
}

const MAX_TOKENS: u64 = 3;
const SETTLE: Duration = Duration::from_millis(300);
const LISTENER: &str =
    "--gateway with the address of the listener that clients use, and that listener running";
const ROUTE: &str = "a route for POST /v1/chat/completions at the gateway, with the engine's model";
const REPORT: &str =
    "\"report_header\": \"x-foreword\", if Foreword's filter is to run at this gateway";
const FORMAT: &str =
    "\"ordering\": {\"documents\": …}: the format in which your clients write documents";
const REASONS: &str = "gateway-config/envoy/README.md has a line for each reason";
const BLIND: &str = "leave \"ordering\": {\"tree\": …} room (max_tokens: the engine's KV capacity), and engines[].block_tokens no larger than \
                     the engine's blocks";
const COMPUTED: &str = "the gateway believes resident what the engine computed: send these requests to the engine that was examined, with one \
                        salt and one template for all";
const AGREEMENT: &str = "\"agreement\" on in every worker and gateway, with one plugin name, vm_id and \"ring\"; engines[].feed where several \
                         gateways stand before an engine";
