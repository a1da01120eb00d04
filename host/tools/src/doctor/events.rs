//! KV events: whether they arrive, and whether they agree with what was sent.
//!
//! | source | asked how | agrees if |
//! | --- | --- | --- |
//! | vLLM's ZeroMQ socket (`--events`) | a new prompt, and its tokens from `/tokenize` | stored blocks hold these tokens, at their places |
//! | our feed over HTTP (`/v1/kv/events`) | a new prompt with documents, as the gateway would send it | the stored path holds these documents |

use super::api::{APIS, Api, CHAT, Usage};
use super::client::{Client, Connection, refusal, refusal_of};
use super::finding::{Finding, Status};
use super::prompt::Words;
use super::rendering;
use super::survey::Engine;
use foreword_ordering::feed::{Batch, Event};
use foreword_ordering::path::SentPath;
use foreword_ordering::{Config, Orderer, Tenant};
use foreword_server::bridge::subscription::{connect, numbered};
use foreword_server::kv::vllm::read::{self, BlockEvent, Stored};
use foreword_server::zmtp::{Received, Socket};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A subscription to an engine's ZeroMQ events, read on a thread of its own until it is dropped.
pub(super) struct Subscription {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What a subscription has received.
#[derive(Debug, Default)]
struct Seen {
    is_connected: bool,
    stored: Vec<Stored>,
    /// Removed blocks, and caches that were cleared.
    removals: u64,
    error: Option<String>,
}

/// What the events said of a prompt that was sent.
#[derive(Debug)]
pub(super) enum Heard {
    /// There is no address to ask, or what came of those that were tried.
    Nowhere(String),
    /// The source failed.
    Failed(String),
    /// The prompt could not be sent.
    NotSent(String),
    /// Blocks of tokens, from ZeroMQ.
    Blocks {
        stored: Vec<Stored>,
        /// The prompt's tokens, or why they are not known.
        tokens: Result<Vec<u64>, String>,
        usage: Usage,
    },
    /// Documents, from our feed.
    Documents {
        /// The documents that the prompt has.
        sent: Vec<u64>,
        stored: Vec<Vec<u64>>,
    },
    /// Our feed, sealed with a key: documents are counted and not read.
    Sealed { stored: usize },
}

impl Heard {
    /// Returns whether the source answers and no event came.
    fn is_silent(&self) -> bool {
        match self {
            Self::Blocks { stored, .. } => stored.is_empty(),
            Self::Documents { stored, .. } => stored.is_empty(),
            Self::Sealed { stored } => *stored == 0,
            Self::Nowhere(_) | Self::Failed(_) | Self::NotSent(_) => false,
        }
    }
}

/// A source of events.
pub(super) enum Source {
    Socket(Subscription),
    /// The URL of our feed.
    Feed(String),
    Nowhere(String),
}

impl Source {
    /// Finds the source: the socket if one is named, else the first of `feeds` that answers.
    pub(super) fn find(client: &Client, socket: Option<&str>, feeds: &[String]) -> Self {
        if let Some(address) = socket {
            return Self::Socket(Subscription::start(address));
        }
        let mut came = "no address is known".to_owned();
        for url in feeds {
            let answer = client.get(url);
            match &answer {
                Ok(reply) if reply.status == 200 && reply.json()["epoch"].is_string() => {
                    return Self::Feed(url.clone());
                }
                _ => came = refusal_of(&format!("GET {url}"), &answer),
            }
        }
        Self::Nowhere(came)
    }

    /// Sends a prompt of `tokens` tokens, and returns what the events say of it. A bridge learns of documents from a gateway's
    /// requests alone, so where our feed is silent they are sent through the gateway too.
    pub(super) fn hear(
        &self,
        engine: &Engine<'_>,
        gateway: Option<&str>,
        api: &Api,
        words: &mut Words,
        tokens: u64,
    ) -> Heard {
        match self {
            Self::Nowhere(came) => Heard::Nowhere(came.clone()),
            Self::Socket(subscription) => subscription.hear(engine, api, &words.text(tokens)),
            Self::Feed(url) => {
                let mut hear = |root: &str| {
                    hear_documents(engine, root, url, words, tokens)
                        .unwrap_or_else(|came| Heard::Failed(format!("GET {url}: {came}")))
                };
                let heard = hear(engine.root);
                match gateway {
                    Some(gateway) if heard.is_silent() => hear(gateway),
                    _ => heard,
                }
            }
        }
    }

    /// Marks this moment, for [`Source::has_removed`].
    pub(super) fn mark(&self, client: &Client) -> Mark {
        match self {
            Self::Socket(subscription) => Mark::Removals(subscription.seen.lock().removals),
            Self::Feed(url) => Mark::Position(position(client, url).ok()),
            Self::Nowhere(_) => Mark::None,
        }
    }

    /// Returns whether blocks were removed since, waiting a while for it; `None` if there is no source.
    pub(super) fn has_removed(&self, client: &Client, since: &Mark) -> Option<bool> {
        match (self, since) {
            (Self::Socket(subscription), Mark::Removals(before)) => {
                Some(subscription.wait(|seen| seen.removals > *before))
            }
            (Self::Feed(url), Mark::Position(Some(since))) => {
                // Types are readable in a sealed feed too.
                let batch = client.get(&since.query(url)).ok()?.json();
                let mut events = batch["events"].as_array()?.iter();
                Some(batch["reset"] == true || events.any(|event| event["type"] != "stored"))
            }
            _ => None,
        }
    }
}

/// A moment in a source's events.
pub(super) enum Mark {
    None,
    Removals(u64),
    Position(Option<Position>),
}

/// A position in our feed.
pub(super) struct Position {
    epoch: String,
    next: u64,
}

impl Position {
    fn query(&self, url: &str) -> String {
        let (epoch, next, wait) = (&self.epoch, self.next, PATIENCE.as_millis());
        format!("{url}?epoch={epoch}&since={next}&wait_ms={wait}")
    }
}

impl Subscription {
    fn start(address: &str) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let follow = (address.to_owned(), Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let (address, seen, stop) = follow;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let followed = match runtime {
                Ok(runtime) => runtime.block_on(Self::follow(&address, &seen, &stop)),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = followed {
                seen.lock().error = Some(format!("{error:#}"));
            }
        });
        let subscription = Self {
            seen,
            stop,
            thread: Some(thread),
        };
        subscription.wait(|seen| seen.is_connected);
        // A publisher reads a subscription some time after it was sent.
        std::thread::sleep(Duration::from_millis(300));
        subscription
    }

    async fn follow(address: &str, seen: &Mutex<Seen>, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut engine = connect(address, Socket::Sub).await?;
        engine.subscribe(b"").await?;
        seen.lock().is_connected = true;
        while !stop.load(Ordering::Relaxed) {
            // Nothing is lost when this wait ends.
            let Ok(received) = tokio::time::timeout(TICK, engine.receive()).await else {
                continue;
            };
            let Received::Message(frames) = received? else {
                continue;
            };
            let (_, payload) = numbered(&frames)?;
            let batch = read::batch(payload)?;
            let mut seen = seen.lock();
            for event in batch.events {
                match event {
                    BlockEvent::Stored(stored) => seen.stored.push(stored),
                    BlockEvent::Removed { .. } | BlockEvent::Cleared => seen.removals += 1,
                    BlockEvent::Unknown => {}
                }
            }
            // On a busy engine the latest are enough.
            let old = seen.stored.len().saturating_sub(MAX_STORED);
            seen.stored.drain(..old);
        }
        Ok(())
    }

    /// Waits a while for a condition or an error, and returns whether the condition holds.
    fn wait(&self, condition: impl Fn(&Seen) -> bool) -> bool {
        let start = Instant::now();
        loop {
            {
                let seen = self.seen.lock();
                if condition(&seen) {
                    return true;
                }
                if seen.error.is_some() || start.elapsed() > PATIENCE {
                    return false;
                }
            }
            std::thread::sleep(TICK / 10);
        }
    }

    fn hear(&self, engine: &Engine<'_>, api: &Api, text: &str) -> Heard {
        self.seen.lock().stored.clear();
        let body = api.body(engine.model, text);
        let usage = match api.ask(engine.client, engine.root, &body) {
            Ok(usage) => usage,
            Err(came) => return Heard::NotSent(format!("POST {}: {came}", api.path)),
        };
        let tokens = match body.get("input") {
            None => rendering::render(engine, &body).map(|rendered| rendered.tokens),
            Some(_) => Err(format!("/tokenize takes no body of {}", api.path)),
        };
        let count = tokens.as_ref().map_or(0, Vec::len);
        let expected = usage.prompt.max(count as u64) - usage.cached_or_zero();
        self.wait(|seen| {
            seen.stored
                .iter()
                .any(|stored| tokens_of(&seen.stored) + u64::from(stored.block_tokens) > expected)
        });
        let seen = self.seen.lock();
        match &seen.error {
            Some(error) => Heard::Failed(error.clone()),
            None => Heard::Blocks {
                stored: seen.stored.clone(),
                tokens,
                usage,
            },
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its error is in what was seen.
            let _ = thread.join();
        }
    }
}

fn tokens_of(stored: &[Stored]) -> u64 {
    stored.iter().map(|stored| stored.tokens.len() as u64).sum()
}

/// Returns the feed's position now.
fn position(client: &Client, url: &str) -> Result<Position, String> {
    let answer = client.get(url);
    let Ok(reply) = &answer else {
        return Err(refusal(&answer));
    };
    let batch = reply.json();
    match (batch["epoch"].as_str(), batch["next"].as_u64()) {
        (Some(epoch), Some(next)) => Ok(Position {
            epoch: epoch.to_owned(),
            next,
        }),
        _ => Err(refusal(&answer)),
    }
}

/// Sends a chat with documents as the gateway would, and reads the feed.
fn hear_documents(
    engine: &Engine<'_>,
    root: &str,
    url: &str,
    words: &mut Words,
    tokens: u64,
) -> Result<Heard, String> {
    let since = position(engine.client, url)?;
    let body = documents(engine.model, words, tokens);
    let ordered =
        Orderer::new(Config::default()).rewrite(Tenant::default(), body.to_string().as_bytes());
    let ordered = ordered.map_err(|skip| format!("the documents are not found: {skip:?}"))?;
    let body = match &ordered.body {
        Some(changed) => serde_json::from_slice(changed).unwrap_or_default(),
        None => body,
    };
    let path: &SentPath = &ordered.path;
    let headers: Vec<_> = (path.to_header().into_iter())
        .map(|path| (PATH_HEADER, path))
        .collect();
    let chat = format!("{root}{}", CHAT.path);
    let answer = engine
        .client
        .post_with(&chat, &body, &headers, Connection::Kept);
    if let Err(came) = CHAT.told(engine.client, answer) {
        return Ok(Heard::NotSent(format!("POST {}: {came}", CHAT.path)));
    }
    let answer = engine.client.get(&since.query(url))?;
    let heard = answer.json();
    let events = heard["events"].as_array().cloned().unwrap_or_default();
    let stored = events.iter().filter(|event| event["type"] == "stored");
    if heard["key"].is_string() {
        return Ok(Heard::Sealed {
            stored: stored.count(),
        });
    }
    let batch = Batch::read(&answer.body, None).map_err(|error| error.to_string())?;
    let paths = batch.events.iter().filter_map(|event| match event {
        Event::Stored { path, .. } => Some(path.iter().map(|(document, _)| document.0).collect()),
        Event::Removed { .. } | Event::Cleared => None,
    });
    let sent = path.runs.iter().flat_map(|run| &run.documents);
    Ok(Heard::Documents {
        sent: sent.map(|document| document.0).collect(),
        stored: paths.collect(),
    })
}

/// Returns a chat with four documents that have `tokens` tokens together.
pub(super) fn documents(model: &str, words: &mut Words, tokens: u64) -> Value {
    let texts: Vec<String> = (0..4).map(|_| words.text((tokens / 4).max(8))).collect();
    chat_of(model, &texts, &[0, 1, 2, 3], &words.text(8))
}

/// Returns a chat about these of the texts, in this order, the best first.
pub(super) fn chat_of(model: &str, texts: &[String], ranks: &[usize], question: &str) -> Value {
    let documents: Vec<String> = (ranks.iter())
        .filter_map(|rank| {
            let text = texts.get(*rank)?;
            Some(format!("<document id=\"probe-{rank}\">{text}</document>"))
        })
        .collect();
    let content = format!(
        "<documents>\n{}\n</documents>\n\n{question}",
        documents.join("\n")
    );
    json!({"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1})
}

/// Returns the API whose prompt's tokens `/tokenize` tells, of those that are served.
pub(super) fn api_for(served: &[&str]) -> &'static Api {
    let api = APIS.iter().find(|api| served.contains(&api.name));
    api.unwrap_or(CHAT)
}

/// Whether events arrive; `caching`: how the check of that name ended.
pub(super) fn arrive(heard: &Heard, caching: Status) -> Finding {
    const CHECK: &str = "events";
    match heard {
        _ if caching == Status::Fail && heard.is_silent() => {
            let detail = "nothing is cached that could be told";
            Finding::new(CHECK, Status::Skipped, detail, "")
        }
        Heard::Nowhere(came) => Finding::new(CHECK, Status::Skipped, came.clone(), PUBLISH),
        Heard::Failed(came) => Finding::new(CHECK, Status::Fail, came.clone(), PUBLISH),
        Heard::NotSent(came) => Finding::new(CHECK, Status::Skipped, came.clone(), ""),
        Heard::Blocks { stored, usage, .. } if stored.is_empty() => {
            let detail = format!(
                "a new prompt of {} tokens: no event in {PATIENCE:?}",
                usage.prompt
            );
            Finding::new(CHECK, Status::Fail, detail, PUBLISH)
        }
        Heard::Blocks { stored, usage, .. } => Finding::ok(
            CHECK,
            format!(
                "a new prompt of {} tokens: blocks of {} tokens stored",
                usage.prompt,
                tokens_of(stored)
            ),
        ),
        Heard::Documents { sent, stored } if stored.is_empty() => {
            let detail = format!(
                "a new prompt with {} documents: no event in {PATIENCE:?}",
                sent.len()
            );
            Finding::new(CHECK, Status::Fail, detail, LONGER)
        }
        Heard::Documents { stored, .. } => Finding::ok(
            CHECK,
            format!("a new prompt with documents: {} stored", stored.len()),
        ),
        Heard::Sealed { stored: 0 } => {
            let detail = format!("a new prompt with documents: no event in {PATIENCE:?}");
            Finding::new(CHECK, Status::Fail, detail, LONGER)
        }
        Heard::Sealed { stored } => Finding::ok(
            CHECK,
            format!("a new prompt with documents: {stored} stored, sealed"),
        ),
    }
}

/// Whether events agree with what was sent.
pub(super) fn agree(heard: &Heard) -> Finding {
    const CHECK: &str = "events-agree";
    let skipped = |came: &str| Finding::new(CHECK, Status::Skipped, came, "");
    match heard {
        Heard::Blocks {
            stored,
            tokens,
            usage,
        } if !stored.is_empty() => {
            let block = stored
                .iter()
                .map(|stored| u64::from(stored.block_tokens))
                .max();
            let block = block.unwrap_or_default().max(1);
            let tokens = match tokens {
                Ok(tokens) => tokens,
                Err(came) => return skipped(came),
            };
            let (told, all) = (covered(tokens, stored), tokens.len() as u64);
            let detail = format!(
                "{all} tokens by /tokenize, {} cached before: blocks of {block} with {told} of them stored",
                usage.cached_or_zero()
            );
            // The last block is not full, and the answer's token is in none.
            if told > 0 && told + usage.cached_or_zero() + 2 * block > all {
                Finding::ok(CHECK, detail)
            } else {
                Finding::new(CHECK, Status::Fail, detail, DISAGREE)
            }
        }
        Heard::Documents { sent, stored } if !stored.is_empty() => {
            let is_stored = |document: &&u64| stored.iter().any(|path| path.contains(document));
            let told = sent.iter().filter(is_stored).count();
            let detail = format!(
                "{told} of the {} documents sent are in stored paths",
                sent.len()
            );
            // The last one may end within a page.
            if told > 0 && told + 1 >= sent.len() {
                Finding::ok(CHECK, detail)
            } else {
                Finding::new(CHECK, Status::Fail, detail, DISAGREE)
            }
        }
        Heard::Sealed { stored: 1.. } => skipped("the feed is sealed: its hashes are not read"),
        _ => skipped("no event came"),
    }
}

/// Returns how many of the prompt's tokens stored blocks hold, at places where a block can begin.
fn covered(prompt: &[u64], stored: &[Stored]) -> u64 {
    let mut places = vec![false; prompt.len()];
    for block in stored.iter().filter(|stored| !stored.tokens.is_empty()) {
        let step = (block.block_tokens as usize).max(1);
        for start in (0..prompt.len()).step_by(step) {
            let here = prompt.get(start..start + block.tokens.len());
            let is_here = here.is_some_and(|here| {
                here.iter()
                    .copied()
                    .eq(block.tokens.iter().map(|token| u64::from(*token)))
            });
            if is_here {
                places[start..start + block.tokens.len()].fill(true);
            }
        }
    }
    places.iter().filter(|is_held| **is_held).count() as u64
}

/// Longest wait for events.
const PATIENCE: Duration = Duration::from_secs(3);
const TICK: Duration = Duration::from_millis(100);
/// Most stored blocks that are kept.
const MAX_STORED: usize = 1 << 14;
/// The header in which a gateway names the documents of a request.
const PATH_HEADER: &str = "x-foreword-path";
const PUBLISH: &str = "vLLM, which listens only on an address with * or ::: --kv-events-config '{\"enable_kv_cache_events\": true, \
                       \"publisher\": \"zmq\", \"endpoint\": \"tcp://[::ffff:127.0.0.1]:5557\"}', then --events tcp://127.0.0.1:5557; \
                       foreword serve: --internal with its internal listener";
const LONGER: &str = "foreword serve: documents of at least a page, named in x-foreword-path; kv-bridge: --gateway, whose \
                      requests it gets copies of";
const DISAGREE: &str = "give the port of this very engine (each data-parallel rank has one), and the tokenizer of this model";

#[cfg(test)]
mod tests {
    use super::*;

    fn block(tokens: &[u32]) -> Stored {
        Stored {
            tokens: tokens.to_vec(),
            block_tokens: 2,
            ..Stored::default()
        }
    }

    #[test]
    fn documents_of_others_do_not_agree_and_silence_is_no_failure_without_a_cache() {
        let heard = |stored: &[&[u64]]| Heard::Documents {
            sent: vec![1, 2, 3, 4],
            stored: stored.iter().map(|path| path.to_vec()).collect(),
        };
        for (stored, expected) in [
            (&[&[4, 2, 1][..], &[9]][..], Status::Ok),
            (&[&[1, 2], &[9, 8, 7, 6]], Status::Fail),
            (&[], Status::Skipped),
        ] {
            assert_eq!(agree(&heard(stored)).status, expected, "{stored:?}");
        }
        assert_eq!(arrive(&heard(&[]), Status::Ok).status, Status::Fail);
        assert_eq!(arrive(&heard(&[]), Status::Fail).status, Status::Skipped);
        assert_eq!(arrive(&heard(&[&[9]]), Status::Ok).status, Status::Ok);
    }

    #[test]
    fn blocks_count_where_a_block_can_begin_and_once() {
        let prompt = [1, 2, 3, 4, 5];
        assert_eq!(covered(&prompt, &[block(&[3, 4]), block(&[1, 2])]), 4);
        assert_eq!(covered(&prompt, &[block(&[1, 2, 3, 4]), block(&[1, 2])]), 4);
        // Between two blocks, of another prompt, and of none.
        let others = [block(&[2, 3]), block(&[4, 5]), block(&[9, 9]), block(&[])];
        assert_eq!(covered(&prompt, &others), 0);
    }
}
