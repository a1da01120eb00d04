//! The whole filter: a configuration, then what happens, a 0 byte between two sections. A section begins with the byte that
//! says what it is.
//!
//! | byte | what happens, with the rest of the section |
//! | --- | --- |
//! | `h` | a header of the next request, `name:value` |
//! | `b` | a request with this body comes in two pieces, and goes on or waits |
//! | `a` | the answer to the call that a request made last; its first byte stands for the status |
//! | `f` | the same to a feed's call |
//! | `r` | a piece of the engine's answer; the first is preceded by headers, the status as above |
//! | `e` | request and response are over |
//! | `s` | somebody puts this under a key of shared data; its first byte chooses the key |
//! | `t` | so many tenths of a second pass |
//! | `w` | another worker takes over, knowing what is in shared data |
//! | `x` | the proxy refuses a call from now on |

mod proxy;

use self::proxy::CALLS;
pub(crate) use self::proxy::Proxy;
use crate::bodies::is_json;
use crate::seeds;
use foreword_filter::{Config, Exchange, Flow, Plugin};
use serde_json::Value;
use std::sync::Arc;

pub(crate) fn run(input: &[u8]) {
    let mut sections = input.split(|byte| *byte == 0);
    let configuration = sections.next().unwrap_or_default();
    if let Some(mut scene) = Scene::begin(configuration) {
        for section in sections.take(24) {
            if let Some((kind, rest)) = section.split_first() {
                scene.happens(*kind, rest);
            }
        }
        scene.over();
    }
}

/// A worker, and the request that it is about.
struct Scene<'a> {
    configuration: &'a [u8],
    proxy: Proxy,
    plugin: Arc<Plugin>,
    exchange: Option<Exchange>,
    /// The body that came.
    body: Vec<u8>,
    /// It went on, or was answered.
    is_settled: bool,
    is_salted: bool,
    /// The salt that the tenant's empty request got.
    salt: Option<Value>,
    /// Headers of the next request.
    headers: Vec<(String, Vec<u8>)>,
}

impl<'a> Scene<'a> {
    fn begin(configuration: &'a [u8]) -> Option<Self> {
        let proxy = Proxy::default();
        let plugin = Plugin::load(&proxy, configuration).ok()?;
        let is_salted = Config::from_json(configuration).is_ok_and(|config| config.salt.is_some());
        Some(Self {
            configuration,
            proxy,
            plugin: Arc::new(plugin),
            exchange: None,
            body: Vec::new(),
            is_settled: false,
            is_salted,
            salt: None,
            headers: Vec::new(),
        })
    }

    fn happens(&mut self, kind: u8, rest: &[u8]) {
        match kind {
            b'h' => {
                let at = rest
                    .iter()
                    .position(|byte| *byte == b':')
                    .unwrap_or(rest.len());
                let (name, value) = rest.split_at(at);
                if let Ok(name) = String::from_utf8(name.to_ascii_lowercase()) {
                    self.headers
                        .push((name, value.get(1..).unwrap_or_default().to_vec()));
                }
            }
            b'b' => self.comes(rest),
            b'a' => {
                let (status, body) = answer(rest);
                let call = self.proxy.state().asked;
                let limit = self.exchange.as_ref().map_or(0, Exchange::max_answer_bytes);
                if let Some(exchange) = &mut self.exchange {
                    exchange.on_answer(
                        &self.proxy,
                        call,
                        status,
                        body.filter(|body| body.len() <= limit),
                    );
                }
                if self.proxy.state().resumed {
                    self.goes_on();
                }
            }
            b'f' => {
                let (status, body) = answer(rest);
                let call = self.proxy.state().calls;
                self.plugin.on_answer(&self.proxy, call, status, body);
            }
            b'r' => self.streams(rest),
            b'e' => self.over(),
            b's' => {
                let (Some(chosen), value) = (rest.first(), rest.get(1..).unwrap_or_default())
                else {
                    return;
                };
                let shared = &mut self.proxy.state().shared;
                let keys = shared.len().max(1);
                if let Some((bytes, number)) = shared.values_mut().nth(usize::from(*chosen) % keys)
                {
                    *bytes = value.to_vec();
                    *number += 1;
                }
            }
            b't' => {
                let tenths = u64::from(rest.first().copied().unwrap_or_default());
                self.proxy.state().now_ns += tenths * 100_000_000;
                self.plugin.on_tick(&self.proxy);
            }
            b'w' => {
                self.over();
                if let Ok(plugin) = Plugin::load(&self.proxy, self.configuration) {
                    self.plugin = Arc::new(plugin);
                }
            }
            b'x' => {
                let chosen = rest.first().copied().unwrap_or_default();
                self.proxy
                    .state()
                    .refused
                    .insert(CALLS[usize::from(chosen) % CALLS.len()]);
            }
            _ => {}
        }
    }

    fn comes(&mut self, body: &[u8]) {
        self.over();
        let headers = std::mem::take(&mut self.headers);
        self.salt = None;
        if self.is_salted {
            // What the same tenant's empty request is salted with.
            self.asks(&headers, b"{}");
            let sent = self.proxy.state().body.clone();
            let sent: Option<Value> = serde_json::from_slice(&sent).ok();
            self.salt = sent.and_then(|sent| sent.get("cache_salt").cloned());
            self.over();
        }
        self.asks(&headers, body);
    }

    fn asks(&mut self, headers: &[(String, Vec<u8>)], body: &[u8]) {
        {
            let mut state = self.proxy.state();
            let path = b"/v1/chat/completions".to_vec();
            state.request_headers = [
                (":method".to_owned(), b"POST".to_vec()),
                (":path".to_owned(), path),
            ]
            .into();
            state.request_headers.extend(headers.iter().cloned());
            if state.request_headers.contains_key("content-length") {
                let length = body.len().to_string().into_bytes();
                state
                    .request_headers
                    .insert("content-length".to_owned(), length);
            }
            state.response_headers.clear();
            state.body.clear();
            (state.answered, state.resumed) = (false, false);
        }
        self.body = body.to_vec();
        self.is_settled = false;
        let mut exchange = Exchange::new(Arc::clone(&self.plugin));
        let mut flow = exchange.on_request_headers(&self.proxy, body.is_empty());
        let half = body.len() / 2;
        for (piece, is_last) in [(&body[..half], false), (&body[half..], true)] {
            if body.is_empty() || self.proxy.state().answered {
                break;
            }
            self.proxy.state().body.extend_from_slice(piece);
            let size = self.proxy.state().body.len();
            flow = exchange.on_request_body(&self.proxy, size, is_last);
        }
        self.exchange = Some(exchange);
        if flow == Flow::Continue {
            self.goes_on();
        }
    }

    /// The request leaves for the engine.
    fn goes_on(&mut self) {
        let state = self.proxy.state();
        if std::mem::replace(&mut self.is_settled, true) || !state.refused.is_empty() {
            return;
        }
        assert!(!state.answered, "who was answered does not go on");
        if let Some(length) = state.request_headers.get("content-length") {
            assert_eq!(length, state.body.len().to_string().as_bytes());
        }
        if is_json(&self.body) {
            assert!(is_json(&state.body), "JSON stays JSON");
        }
        if let Some(salt) = &self.salt
            && let Ok(sent) = serde_json::from_slice::<Value>(&state.body)
        {
            assert_eq!(sent.get("cache_salt"), Some(salt), "nobody chooses a salt");
        }
    }

    fn streams(&mut self, rest: &[u8]) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        if self.proxy.state().response_headers.is_empty() {
            let (status, _) = answer(rest);
            let status = status.unwrap_or(200).to_string().into_bytes();
            self.proxy
                .state()
                .response_headers
                .insert(":status".to_owned(), status);
            exchange.on_response_headers(&self.proxy);
        }
        self.proxy.state().chunk = rest.to_vec();
        exchange.on_response_body(&self.proxy, rest.len(), false);
    }

    fn over(&mut self) {
        if let Some(mut exchange) = self.exchange.take() {
            exchange.on_response_trailers(&self.proxy);
            exchange.on_done(&self.proxy);
        }
    }
}

/// Status and body of an answer.
fn answer(rest: &[u8]) -> (Option<u16>, Option<&[u8]>) {
    let (status, body) = match rest.split_first() {
        Some((b'-', body)) => (None, body),
        Some((b'4', body)) => (Some(404), body),
        Some((b'5', body)) => (Some(503), body),
        Some((b'9', _)) => return (Some(200), None),
        Some((_, body)) => (Some(200), body),
        None => (Some(200), rest),
    };
    (status, Some(body))
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    const SALTED: &str =
        r#"{"tenant": {"header": "x-tenant"}, "salt": {"key_env": "K"}, "bypass_header": "x-raw"}"#;
    const RETRIEVING: &str = r#"{"retrieval": {"cluster": "c", "similarity": {"dimensions": 2, "tolerance": 0.01},
        "warm_up": {"cluster": "e"}, "embedding": {"header": "x-embedding"}}}"#;
    const ENGINES: &str = r#"{"engines": [{"name": "a", "address": "10.0.0.1:80", "feed": {"cluster": "fa", "token": "t"}},
        {"name": "b", "address": "10.0.0.2:80"}], "on_failure": "refuse", "experiment": {"control_share": 0.5}}"#;
    const CHAT: &str = r#"b{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Why?"}], "retrieval": {"k": 2}}"#;
    const DOCUMENTS: &str = r#"b{"cache_salt": "theirs", "messages": [{"role": "user", "content": "<doc id=\"a\">x</doc><doc id=\"b\">y</doc>?"}]}"#;
    const USAGE: &str =
        r#"r2{"usage": {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 0}}}"#;
    const BATCH: &str = r#"f2{"epoch": "5c0f000000000000", "from": 0, "next": 2, "reset": true, "model": "", "events":
        [{"type": "stored", "scope": "9f3c000000000000", "path": [["0a1b000000000000", 117]]}]}"#;
    const ANSWERS: &str = r#"{"ordering": {"conversation": {"answers": "all"}}}"#;
    const QUESTION: &str = r#"b{"messages": [{"role": "user", "content": "Why?"}]}"#;
    const THOUGHT: &str = r#"r2
data: {"choices": [{"delta": {"reasoning": "Hm.", "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{ }"}}]}, "finish_reason": "stop"}]}
"#;
    const CONTINUED: &str = r#"b{"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}]}"#;
    let scripts: [&[&str]; 7] = [
        &[
            ANSWERS,
            QUESTION,
            THOUGHT,
            "e",
            "hcontent-length:1",
            CONTINUED,
            THOUGHT,
            "s1x",
            CONTINUED,
        ],
        &[
            "{}",
            "hcontent-length:1",
            DOCUMENTS,
            USAGE,
            "e",
            "w",
            DOCUMENTS,
            "t1",
            "e",
        ],
        &[
            SALTED,
            "hx-tenant:red",
            DOCUMENTS,
            "e",
            "hx-tenant:blue",
            "hx-raw:1",
            DOCUMENTS,
            USAGE,
            "e",
            CHAT,
        ],
        &[
            RETRIEVING,
            "hcontent-length:1",
            CHAT,
            r#"a2{"data": [{"embedding": [1, 0]}]}"#,
            r#"a2{"version": "1", "data": [{"id": "a", "text": "of a"}, {"id": "b", "title": "B", "text": "of b"}]}"#,
            USAGE,
            "e",
            CHAT,
            r#"a2{"data": [{"embedding": "AACAPwAAAAA="}]}"#,
        ],
        &[
            ENGINES, "t1", BATCH, DOCUMENTS, "r5", "e", DOCUMENTS, USAGE, "e", "t9",
        ],
        &[
            r#"{"mode": "dry-run", "request_headers": "release"}"#,
            "hcontent-length:1",
            DOCUMENTS,
            "e",
        ],
        &[
            "{}",
            DOCUMENTS,
            "s1xxxxxxxx",
            "s2xxxxxxxx\u{2}\u{1}",
            "t1",
            DOCUMENTS,
            "xb",
            DOCUMENTS,
        ],
    ];
    let mut all: Vec<Vec<u8>> = scripts
        .map(|sections| sections.join("\0").into_bytes())
        .into();
    for bodies in seeds::golden() {
        let sections = bodies.into_iter().map(|body| [b"b", &body[..]].concat());
        all.push(
            [SALTED.as_bytes().to_vec(), b"hx-tenant:red".to_vec()]
                .into_iter()
                .chain(sections)
                .collect::<Vec<_>>()
                .join(&0),
        );
    }
    all
}
