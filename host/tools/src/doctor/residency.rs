//! Checks that KV events and the gateway notice when the engine's cache is cleared. Clears the cache (only with
//! `--allow-reset`), then waits for events of removals, and reads the gateway's next ordering decision.

use super::api::Usage;
use super::client::{Connection, served};
use super::events::Source;
use super::finding::Finding;
use super::gateway::{self, Decision};
use super::metrics::FEED;
use super::prompt::{AGAIN, Documents};
use super::survey::{Engine, Route};
use serde_json::Value;
use std::time::Duration;

/// The result of clearing the engine's cache.
pub(super) enum Cleared {
    NotAllowed,
    /// No route cleared the cache; the error of the last route that was tried.
    Refused(String),
    Done {
        /// Token counts of a prompt that was cached before the clearing and sent again after it; `None` if there was no
        /// such prompt, or the request failed.
        after: Option<Usage>,
        /// True if a KV event reported a removal after the clearing, false if none did within `zmq::PATIENCE` (3 s).
        /// `None` if events do not arrive at all, or their source fails.
        is_announced: Option<bool>,
        /// The gateway's ordering decision about documents that were cached before the clearing, in a request sent
        /// after it; `None` if no gateway is examined.
        decision: Option<Decision>,
    },
}

/// Clears the engine's cache at the first of `roots` (URLs of servers) that allows it. Then sends again, to see whether
/// it is still cached, the prompt of `route` and the documents that `gateway` (URL and documents) ordered. `source`
/// reports removals.
pub(super) fn clear(
    engine: &Engine<'_>,
    roots: &[String],
    route: Option<&Route>,
    source: Option<&Source>,
    gateway: Option<(&str, &Documents)>,
) -> Cleared {
    let client = engine.client;
    let before = source.and_then(|source| Some((source, source.mark(client)?)));
    let mut came = String::new();
    let mut urls = (roots.iter()).flat_map(|root| RESETS.map(|path| format!("{root}{path}")));
    let is_done = urls.any(|url| {
        let answer = client.post(&url, &Value::Null);
        let reply = served(&format!("POST {url}"), answer);
        reply.map_err(|refusal| came = refusal).is_ok()
    });
    if !is_done {
        return Cleared::Refused(came);
    }
    // vLLM publishes events with its next step.
    let after = route.and_then(|route| engine.ask(route.api, &route.text).ok());
    let is_announced = before.and_then(|(source, before)| source.has_removed(client, &before));
    // The gateway's feed has the same events by its next poll.
    std::thread::sleep(SETTLE);
    let decide = |(root, documents): (&str, &Documents)| {
        gateway::decide(engine, root, documents, AGAIN, Connection::Kept)
    };
    Cleared::Done {
        after,
        is_announced,
        decision: gateway.map(decide),
    }
}

/// Checks that KV events report the clearing of the cache, and that the gateway no longer counts documents as resident
/// that were cached before. Skipped if the cache was not cleared; a warning if the engine still has the prompt cached.
pub(super) fn believed(cleared: &Cleared) -> Finding {
    let (after, is_announced, decision) = match cleared {
        Cleared::NotAllowed => return Finding::skipped("the cache was not emptied", ALLOW),
        Cleared::Refused(came) => return Finding::skipped(came, RESET),
        Cleared::Done {
            after,
            is_announced,
            decision,
        } => (after, is_announced, decision),
    };
    let mut detail = "the cache was emptied".to_owned();
    if let Some(after) = after {
        detail = format!("{detail}: {} tokens cached", after.of_prompt());
        if after.is_warm() {
            return Finding::warn(detail, BUSY);
        }
    }
    match (is_announced, decision) {
        (Some(false), _) => Finding::fail(format!("{detail}; no event says so"), UNTOLD),
        (_, Some(decision)) if decision.matched() > 0 => {
            let believed = format!("believed {} documents resident", decision.matched());
            Finding::fail(format!("{detail}; the gateway still {believed}"), FEED)
        }
        (_, Some(_)) => Finding::ok(format!("{detail}; the gateway knew it")),
        (Some(true), None) => Finding::ok(format!("{detail}; events say so")),
        (None, None) => Finding::skipped(detail, NO_READER),
    }
}

const ALLOW: &str = "--allow-reset, when the engine's cache may be emptied: every prompt is then computed once more";
const RESET: &str = "vLLM: VLLM_SERVER_DEV_MODE=1 serves /reset_prefix_cache; foreword serve: --internal with its internal listener";
const BUSY: &str = "ask again when nothing runs: an engine empties no cache in use";
const NO_READER: &str = "--events or --gateway: nothing else believes anything of this cache";
const UNTOLD: &str = "an engine that publishes AllBlocksCleared, as vLLM does; until then restart gateways after a reset";
/// Routes that empty an engine's cache: vLLM's and SGLang's.
const RESETS: [&str; 2] = ["/reset_prefix_cache", "/flush_cache"];
const SETTLE: Duration = Duration::from_millis(500);
