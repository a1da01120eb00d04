//! The checks of KV events (an engine's reports of what enters and leaves its KV cache): whether they arrive, and
//! whether they agree with the prompts that were sent.
//!
//! | source | what is sent | agrees if |
//! | --- | --- | --- |
//! | vLLM's ZeroMQ socket (`--events`) | a new prompt, whose tokens `/tokenize` returns | stored blocks hold them |
//! | our feed over HTTP | a new prompt with documents, as the gateway sends it | stored paths hold these documents |

use super::api::{Api, CHAT};
use super::client::{Client, Connection};
use super::feed::{self, Position};
use super::finding::{Finding, Status};
use super::prompt::{Documents, FIRST, Words};
use super::rendering;
use super::survey::Engine;
use super::zmq::{PATIENCE, Seen, Subscription};
use foreword_ordering::{Config, Orderer, Tenant};
use foreword_server::kv::place::PATH_HEADER;
use foreword_server::kv::vllm::read::Stored;

/// A source of KV events (reports of what enters and leaves the engine's KV cache): vLLM's ZeroMQ socket, or Foreword's
/// feed over HTTP.
pub(super) enum Source {
    Socket(Subscription),
    /// Foreword's feed at this URL.
    Feed(String),
    /// No source was found; the error of the last address that was tried.
    Nowhere(String),
}

/// The KV events that arrived after a prompt was sent.
#[derive(Debug)]
pub(super) struct Observed {
    /// Description of the prompt, for the text of the check's finding.
    asked: String,
    /// Number of events about stored blocks (vLLM's socket) or about stored lists of documents (Foreword's feed).
    stored: usize,
    agreement: Result<Agreement, String>,
}

/// The part of a prompt that the KV events report as stored in the engine's cache.
#[derive(Debug)]
struct Agreement {
    detail: String,
    /// Number of the prompt's tokens (vLLM's socket) or documents (Foreword's feed) that events report as stored.
    found: u64,
    /// Number of the prompt's tokens or documents that need not be reported: they were cached before, or are in a block
    /// that is not full.
    excused: u64,
    /// Number of all the prompt's tokens (vLLM's socket) or documents (Foreword's feed).
    all: u64,
}

/// The reason why no KV events were observed.
#[derive(Debug)]
pub(super) enum Unobserved {
    /// No events could be expected: there is no source of them, or no prompt was answered. With the reason.
    NotAsked(String),
    /// The source of events failed, with its error.
    Failed(String),
}

impl Agreement {
    fn is_enough(&self) -> bool {
        self.found > 0 && self.found + self.excused > self.all
    }
}

/// A point in a source's sequence of KV events: the number of removals so far, or a position in the feed.
/// [`Source::has_removed`] looks for removals after it.
pub(super) enum Mark {
    Removals(u64),
    Position(Position),
}

impl Source {
    /// Returns the source of KV events: the ZeroMQ socket if its address is given, else the feed at the first URL of
    /// `feeds` that responds, else [`Source::Nowhere`].
    pub(super) fn find(client: &Client, socket: Option<&str>, feeds: &[String]) -> Self {
        if let Some(address) = socket {
            return Self::Socket(Subscription::start(address));
        }
        let mut came = "no address was given".to_owned();
        for url in feeds {
            match feed::position(client, url) {
                Ok(_) => return Self::Feed(url.clone()),
                Err(other) => came = other,
            }
        }
        Self::Nowhere(came)
    }

    /// Sends a new prompt of about `length` words, and returns the KV events that arrive after it. The prompt goes to
    /// `api` if the source is the socket, otherwise to the chat API, with documents. If Foreword's feed then has no
    /// events, sends another prompt through the gateway, because the feed of `foreword kv-bridge` knows only documents
    /// that the gateway has announced.
    ///
    /// # Errors
    /// Returns an error if there is no source, or if the prompt or the source fails.
    pub(super) fn observe(
        &self,
        engine: &Engine<'_>,
        gateway: Option<&str>,
        api: &Api,
        words: &mut Words,
        length: u64,
    ) -> Result<Observed, Unobserved> {
        match self {
            Self::Nowhere(came) => Err(Unobserved::NotAsked(came.clone())),
            Self::Socket(subscription) => {
                observe_blocks(subscription, engine, api, &words.text(length))
            }
            Self::Feed(url) => {
                let mut observe = |root| observe_documents(url, engine, root, words, length);
                let observed = observe(engine.root)?;
                match gateway {
                    Some(gateway) if observed.stored == 0 => observe(gateway),
                    _ => Ok(observed),
                }
            }
        }
    }

    /// Returns the current point in the sequence of events; `None` if there is no source or it fails.
    pub(super) fn mark(&self, client: &Client) -> Option<Mark> {
        match self {
            Self::Socket(events) => Some(Mark::Removals(events.seen(|seen| seen.removals))),
            Self::Feed(url) => feed::position(client, url).ok().map(Mark::Position),
            Self::Nowhere(_) => None,
        }
    }

    /// Waits up to [`PATIENCE`] for an event after `since` about removed blocks or a cleared cache, and returns whether
    /// one arrived; `None` if the source fails or there is none.
    pub(super) fn has_removed(&self, client: &Client, since: &Mark) -> Option<bool> {
        match (self, since) {
            (Self::Socket(subscription), Mark::Removals(before)) => {
                Some(subscription.wait(|seen| seen.removals > *before))
            }
            (Self::Feed(url), Mark::Position(since)) => {
                Some(feed::news(client, url, since).ok()?.is_removal)
            }
            _ => None,
        }
    }
}

fn observe_blocks(
    subscription: &Subscription,
    engine: &Engine<'_>,
    api: &Api,
    text: &str,
) -> Result<Observed, Unobserved> {
    subscription.seen(|seen| seen.stored.clear());
    let body = api.body(engine.model, text);
    let usage = api
        .ask(engine.client, engine.root, &body)
        .map_err(Unobserved::NotAsked)?;
    let prompt = rendering::render(engine, &body).map(|rendered| rendered.tokens);
    let compare = |seen: &Seen| {
        let prompt = prompt.as_ref().map_err(Clone::clone)?;
        let blocks = seen.stored.iter().map(|stored| stored.block_tokens);
        let block = u64::from(blocks.max().unwrap_or_default());
        let (all, cached) = (prompt.len() as u64, usage.cached_or_zero());
        let found = covered(prompt, &seen.stored);
        let detail = format!(
            "{all} tokens by /tokenize, {cached} cached before: blocks of {block} with {found} of them stored"
        );
        // The last block is not full, and the answer's token may be in none.
        let excused = cached + 2 * block;
        Ok(Agreement {
            detail,
            found,
            excused,
            all,
        })
    };
    // Events of earlier prompts may still arrive.
    subscription.wait(|seen| match compare(seen) {
        Ok(agreement) => agreement.is_enough(),
        Err(_) => !seen.stored.is_empty(),
    });
    subscription.seen(|seen| match &seen.error {
        Some(error) => Err(Unobserved::Failed(error.clone())),
        None => Ok(Observed {
            asked: format!("a new prompt of {} tokens", usage.prompt),
            stored: seen.stored.len(),
            agreement: compare(seen),
        }),
    })
}

/// Sends a chat with documents to `root` (engine or gateway): with the documents in the order, and with the header that
/// lists them, that the gateway's filter would send. Returns the events that the feed at `url` then reports.
fn observe_documents(
    url: &str,
    engine: &Engine<'_>,
    root: &str,
    words: &mut Words,
    length: u64,
) -> Result<Observed, Unobserved> {
    let client = engine.client;
    let since = feed::position(client, url).map_err(Unobserved::Failed)?;
    let body = Documents::new(words, (length / 4).max(8)).chat(engine.model, FIRST);
    let mut orderer = Orderer::new(Config::default());
    let ordered = orderer.rewrite(Tenant::default(), body.to_string().as_bytes());
    let ordered =
        ordered.map_err(|skip| Unobserved::NotAsked(format!("no documents: {skip:?}")))?;
    let changed = ordered.body.as_deref();
    let changed = changed.and_then(|body| serde_json::from_slice(body).ok());
    let path = ordered.path.to_header();
    let name = PATH_HEADER;
    let path = path.as_deref().map(|path| (name.as_str(), path));
    let (chat, body) = (CHAT.url(root), changed.unwrap_or(body));
    let answer = client.send(&chat, Some(&body), path.as_slice(), Connection::Kept);
    CHAT.read(client, answer).map_err(Unobserved::NotAsked)?;
    let news = feed::news(client, url, &since).map_err(Unobserved::Failed)?;
    let documents = ordered.path.runs.iter().flat_map(|run| &run.documents);
    let sent: Vec<u64> = documents.map(|document| document.0).collect();
    Ok(Observed {
        asked: format!("a new prompt with {} documents", sent.len()),
        stored: news.stored,
        agreement: news.documents.map(|stored| compared(&sent, &stored)),
    })
}

fn compared(sent: &[u64], stored: &[u64]) -> Agreement {
    let found = sent.iter().filter(|document| stored.contains(document));
    let (found, all) = (found.count() as u64, sent.len() as u64);
    Agreement {
        detail: format!("{found} of the {all} documents sent are in stored paths"),
        found,
        // The last document may end within a page.
        excused: 2,
        all,
    }
}

/// Returns the number of the prompt's tokens that are in stored blocks. `stored` has the blocks that KV events report
/// as stored; a block counts if the prompt contains its tokens at a multiple of the block size.
fn covered(prompt: &[u64], stored: &[Stored]) -> u64 {
    let mut is_held = vec![false; prompt.len()];
    for block in stored {
        let tokens: Vec<u64> = block.tokens.iter().copied().map(u64::from).collect();
        for start in (0..prompt.len()).step_by((block.block_tokens as usize).max(1)) {
            if prompt[start..].starts_with(&tokens) {
                is_held[start..start + tokens.len()].fill(true);
            }
        }
    }
    is_held.into_iter().filter(|is_held| *is_held).count() as u64
}

/// Checks that KV events (reports of what enters and leaves the engine's KV cache) arrive. `caching` is the status of
/// the check `caching` (whether the engine caches prompts at all); if that check failed, missing events are no failure.
pub(super) fn arrive(observed: &Result<Observed, Unobserved>, caching: Status) -> Finding {
    match observed {
        Err(Unobserved::NotAsked(came)) => Finding::skipped(came, PUBLISH),
        Err(Unobserved::Failed(came)) => Finding::fail(came, PUBLISH),
        Ok(observed) if observed.stored > 0 => Finding::ok(format!(
            "{}: {} events of stored blocks or paths",
            observed.asked, observed.stored
        )),
        Ok(_) if caching == Status::Fail => {
            Finding::unknown("nothing is cached, so nothing is stored")
        }
        Ok(observed) => Finding::fail(
            format!("{}: no event in {PATIENCE:?}", observed.asked),
            PUBLISH,
        ),
    }
}

/// Checks that the KV events report the prompt that was sent as stored in the engine's cache. Skipped if no events
/// arrived.
pub(super) fn agree(observed: &Result<Observed, Unobserved>) -> Finding {
    match observed {
        Ok(observed) if observed.stored > 0 => match &observed.agreement {
            Ok(agreement) if agreement.is_enough() => Finding::ok(&agreement.detail),
            Ok(agreement) => Finding::fail(&agreement.detail, DISAGREE),
            Err(came) => Finding::unknown(came),
        },
        _ => Finding::unknown("no event came"),
    }
}

const PUBLISH: &str = "vLLM, which listens only on an address with * or ::: --kv-events-config '{\"enable_kv_cache_events\": true, \
                       \"publisher\": \"zmq\", \"endpoint\": \"tcp://[::ffff:127.0.0.1]:5557\"}', then --events tcp://127.0.0.1:5557; \
                       foreword serve: --internal with its internal listener; kv-bridge: the same, and --gateway";
const DISAGREE: &str = "give the port of this very engine (each data-parallel rank has one), and kv-bridge this model's tokenizer";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_others_do_not_agree_and_silence_is_no_failure_without_a_cache() {
        let observed = |stored: &[u64]| {
            Ok(Observed {
                asked: String::new(),
                stored: stored.len(),
                agreement: Ok(compared(&[1, 2, 3, 4], stored)),
            })
        };
        for (stored, expected) in [
            (&[4, 2, 1, 9][..], Status::Ok),
            (&[1, 2, 9, 8, 7, 6], Status::Fail),
            (&[], Status::Skipped),
        ] {
            assert_eq!(agree(&observed(stored)).status, expected, "{stored:?}");
        }
        assert_eq!(arrive(&observed(&[]), Status::Ok).status, Status::Fail);
        assert_eq!(arrive(&observed(&[]), Status::Fail).status, Status::Skipped);
        assert_eq!(arrive(&observed(&[9]), Status::Ok).status, Status::Ok);
    }

    #[test]
    fn blocks_count_where_a_block_can_begin_and_once() {
        let block = |tokens: &[u32]| Stored {
            tokens: tokens.to_vec(),
            block_tokens: 2,
            ..Stored::default()
        };
        let prompt = [1, 2, 3, 4, 5];
        assert_eq!(covered(&prompt, &[block(&[3, 4]), block(&[1, 2])]), 4);
        assert_eq!(covered(&prompt, &[block(&[1, 2, 3, 4]), block(&[1, 2])]), 4);
        // Between two blocks, of another prompt, and of none.
        let others = [block(&[2, 3]), block(&[4, 5]), block(&[9, 9]), block(&[])];
        assert_eq!(covered(&prompt, &others), 0);
    }
}
