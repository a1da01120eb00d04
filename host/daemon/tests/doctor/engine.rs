//! A stub engine without a model: it renders chats, counts words as tokens, reports cached prefixes, publishes blocks
//! over ZeroMQ, and has one fault.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use foreword_engine::cache::{CacheEvent, PageHash, Tier};
use foreword_server::kv::vllm::{Encoding, write};
use foreword_server::zmtp::{Peer, Socket};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::broadcast;

/// A fault of the engine, or of the gateway in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    NoCaching,
    /// Caching is on, and nothing is found, as behind a balancer over engines.
    NeverReused,
    /// The named API's usage lacks cached tokens.
    Unreported(&'static str),
    /// The named API always reports 0 cached tokens.
    ReportedAsZero(&'static str),
    /// The named API's prompts share one cache, whatever their salts.
    Unsalted(&'static str),
    /// No salted prompt is ever reused.
    SaltedInVain,
    LongBlocks,
    Date,
    Clock,
    ShuffledTools,
    SilentEvents,
    NoEvents,
    OtherEvents,
    UnannouncedReset,
    DroppedFields,
    NoGateway,
    NoUsage,
    BrokenStream,
    SilentStream,
    /// No decision considers earlier requests.
    Blind,
    /// The two workers do not share their knowledge.
    TwoMinds,
    PassedOn,
    OtherEngine,
    DroppedSalt,
    BelievedReset,
    /// Additional lines in the gateway's metrics.
    Metrics(&'static str),
}

/// A stub of an inference engine that has one seeded [`Fault`]: its APIs, its prefix cache and its KV events.
pub(crate) struct Engine {
    fault: Fault,
    state: Mutex<Known>,
    news: broadcast::Sender<Vec<u8>>,
}

#[derive(Default)]
struct Known {
    vocabulary: HashMap<String, u32>,
    words: Vec<String>,
    /// Computed prompts, by salt.
    prompts: Vec<(String, Vec<u32>)>,
    rendered: usize,
    blocks: u128,
    resets: usize,
}

const MODEL: &str = "stub";

impl Engine {
    pub(crate) fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self {
            fault,
            state: Mutex::default(),
            news: broadcast::channel(1024).0,
        })
    }

    /// Number of times that the cache was reset.
    pub(crate) fn resets(&self) -> usize {
        self.state.lock().unwrap().resets
    }

    /// Serves HTTP, and returns the address.
    pub(crate) async fn serve(self: &Arc<Self>) -> SocketAddr {
        let handle = async |State(engine): State<Arc<Self>>, uri: Uri, body: Bytes| {
            engine.answer(
                uri.path(),
                &serde_json::from_slice(&body).unwrap_or_default(),
            )
        };
        listen(Router::new().fallback(handle).with_state(Arc::clone(self))).await
    }

    /// Publishes blocks, and returns the address.
    pub(crate) async fn publish(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        if self.fault == Fault::NoEvents {
            return address;
        }
        let engine = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut news = engine.news.subscribe();
                tokio::spawn(async move {
                    let mut peer = Peer::meet(stream, Socket::Pub, 1 << 16).await.unwrap();
                    let mut number = 0_u64;
                    while let Ok(batch) = news.recv().await {
                        let sent = peer.send(&[b"", &number.to_be_bytes(), &batch]).await;
                        if sent.is_err() {
                            return;
                        }
                        number += 1;
                    }
                });
            }
        });
        address
    }

    pub(crate) fn answer(&self, path: &str, body: &Value) -> Response {
        let mut known = self.state.lock().unwrap();
        match path {
            "/v1/models" => json_of(json!({"data": [{"id": MODEL, "max_model_len": 65_536}]})),
            "/metrics" => {
                let caching = if self.fault == Fault::NoCaching {
                    "False"
                } else {
                    "True"
                };
                format!(
                    "# HELP vllm:cache_config_info The cache.\nvllm:cache_config_info{{mamba_block_size=\"None\",block_size=\"{}\",\
                     enable_prefix_caching=\"{caching}\"}} 1.0\n",
                    self.block()
                )
                .into_response()
            }
            "/tokenize" => {
                let text = self.render(&mut known, body);
                let tokens = known.tokens(&text);
                json_of(json!({"count": tokens.len(), "tokens": tokens}))
            }
            "/detokenize" => {
                let tokens = body["tokens"].as_array().unwrap();
                let words = tokens
                    .iter()
                    .map(|token| &*known.words[token.as_u64().unwrap() as usize]);
                json_of(json!({"prompt": words.collect::<String>()}))
            }
            "/reset_prefix_cache" => {
                known.prompts.clear();
                known.resets += 1;
                if self.fault != Fault::UnannouncedReset {
                    self.tell(&[CacheEvent::Cleared]);
                }
                StatusCode::OK.into_response()
            }
            "/v1/chat/completions" => self.generate(&mut known, "chat", body),
            "/v1/completions" => self.generate(&mut known, "completions", body),
            "/v1/responses" => self.generate(&mut known, "responses", body),
            "/v1/messages" => self.generate(&mut known, "messages", body),
            _ => (StatusCode::NOT_FOUND, "no such route").into_response(),
        }
    }

    fn block(&self) -> usize {
        if self.fault == Fault::LongBlocks {
            1024
        } else {
            16
        }
    }

    fn render(&self, known: &mut Known, body: &Value) -> String {
        let mut text = String::new();
        if self.fault == Fault::Date {
            let date = Command::new("date")
                .args(["-u", "+%d %b %Y"])
                .output()
                .unwrap();
            text = format!("Today Date: {}", String::from_utf8(date.stdout).unwrap());
        }
        known.rendered += 1;
        if self.fault == Fault::Clock {
            text = format!("Tick {}\n", known.rendered);
        }
        let mut tools = body["tools"].as_array().cloned().unwrap_or_default();
        if self.fault == Fault::ShuffledTools && !tools.is_empty() {
            let turns = known.rendered % tools.len();
            tools.rotate_left(turns);
        }
        for tool in tools {
            text += &format!(
                "{} {}\n",
                tool["function"]["name"], tool["function"]["description"]
            );
        }
        match &body["messages"] {
            Value::Array(messages) => {
                for message in messages {
                    text += &format!(
                        "<user> {} <assistant>",
                        message["content"].as_str().unwrap()
                    );
                }
            }
            _ => {
                text += ["prompt", "input"]
                    .iter()
                    .find_map(|name| body[name].as_str())
                    .unwrap();
            }
        }
        text
    }

    fn generate(&self, known: &mut Known, api: &'static str, body: &Value) -> Response {
        let text = self.render(known, body);
        let tokens = known.tokens(&text);
        let salt = match self.fault == Fault::Unsalted(api) {
            true => String::new(),
            false => body["cache_salt"].as_str().unwrap_or_default().to_owned(),
        };
        let cached = match self.fault {
            Fault::NoCaching | Fault::NeverReused => 0,
            Fault::SaltedInVain if api == "completions" && !salt.is_empty() => 0,
            _ => known.cached(&salt, &tokens, self.block()),
        };
        let blocks = tokens[cached..].chunks_exact(self.block());
        let events: Vec<CacheEvent> = blocks
            .map(|block| {
                known.blocks += 1;
                let wrong = u32::from(self.fault == Fault::OtherEvents);
                CacheEvent::Stored {
                    hash: PageHash(known.blocks),
                    parent: None,
                    tokens: block.iter().map(|token| token + wrong).collect(),
                    salt: salt.as_str().into(),
                    tier: Tier::Device,
                }
            })
            .collect();
        self.tell(&events);
        known.prompts.push((salt, tokens.clone()));
        let limit = body["max_tokens"].as_u64().unwrap_or(16);
        let told = match self.fault {
            Fault::Unreported(which) if which == api => Value::Null,
            Fault::ReportedAsZero(which) if which == api => json!(0),
            _ => json!(cached),
        };
        let details = json!({"cached_tokens": told});
        let usage = match api {
            "responses" => json!({"input_tokens": tokens.len(), "input_tokens_details": details}),
            "messages" => {
                json!({"input_tokens": tokens.len() - cached, "cache_read_input_tokens": told})
            }
            _ => {
                json!({"prompt_tokens": tokens.len(), "completion_tokens": limit, "prompt_tokens_details": details})
            }
        };
        if body["stream"] == true {
            let chunk = json!({"choices": [{"delta": {"content": "x"}}]});
            let last = json!({"choices": [], "usage": usage});
            let kind = [("content-type", "text/event-stream")];
            return (
                kind,
                format!("data: {chunk}\n\ndata: {last}\n\ndata: [DONE]\n\n"),
            )
                .into_response();
        }
        let logprobs = match body["logprobs"] == true {
            true => json!({"content": []}),
            false => Value::Null,
        };
        json_of(json!({"choices": [{"logprobs": logprobs}], "usage": usage}))
    }

    fn tell(&self, events: &[CacheEvent]) {
        if self.fault == Fault::SilentEvents {
            return;
        }
        if let Some(batch) = write::batch(events, 1.0, Encoding::Map).unwrap() {
            // There may be no subscriber.
            let _ = self.news.send(batch);
        }
    }
}

impl Known {
    fn tokens(&mut self, text: &str) -> Vec<u32> {
        let words = text.split_inclusive([' ', '\n']);
        words
            .map(|word| {
                let next = self.words.len() as u32;
                *self.vocabulary.entry(word.to_owned()).or_insert_with(|| {
                    self.words.push(word.to_owned());
                    next
                })
            })
            .collect()
    }

    fn cached(&self, salt: &str, tokens: &[u32], block: usize) -> usize {
        let same = self.prompts.iter().filter(|(other, _)| other == salt);
        let shared = same.map(|(_, prompt)| {
            prompt
                .iter()
                .zip(tokens)
                .take_while(|(a, b)| a == b)
                .count()
        });
        shared.max().unwrap_or(0).min(tokens.len() - 1) / block * block
    }
}

/// Serves on a free port.
pub(crate) async fn listen(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

pub(crate) fn json_of(value: Value) -> Response {
    ([("content-type", "application/json")], value.to_string()).into_response()
}
