//! Whether a cleared cache is noticed: the engine's cache is emptied (`--allow-reset`), and what is then believed is compared with
//! what is so.

use super::api::Usage;
use super::client::{Client, Connection, refusal_of};
use super::events::Source;
use super::finding::{Finding, Status};
use super::gateway::{AGAIN, Decision, Documents};
use super::metrics::FEED;
use super::survey::{Engine, Route};
use std::time::Duration;

/// What came of emptying the cache.
pub(super) enum Cleared {
    /// Nobody allowed it.
    NotAllowed,
    /// Every route refused.
    Refused(String),
    Done {
        /// The prompt that was cached before.
        after: Option<Result<Usage, String>>,
        /// Whether the events say that something was removed; `None`: there are none.
        is_announced: Option<bool>,
        /// The gateway's decision about documents that were cached before.
        decision: Option<Decision>,
    },
}

/// The gateway, and the documents that it was asked about before.
pub(super) struct Believer<'a> {
    pub(super) root: &'a str,
    pub(super) documents: &'a Documents,
}

/// Empties the engine's cache, and asks again for what it held.
pub(super) fn clear(
    engine: &Engine<'_>,
    roots: &[String],
    route: Option<&Route>,
    source: Option<&Source>,
    believer: Option<&Believer<'_>>,
) -> Cleared {
    let client: &Client = engine.client;
    let before = source.map(|source| (source, source.mark(client)));
    let mut came = String::new();
    let urls = (roots.iter()).flat_map(|root| RESETS.map(|path| format!("{root}{path}")));
    let is_done = urls.into_iter().any(|url| {
        let answer = client.post(&url, &serde_json::Value::Null);
        came = refusal_of(&format!("POST {url}"), &answer);
        answer.is_ok_and(|reply| reply.status == 200)
    });
    if !is_done {
        return Cleared::Refused(came);
    }
    // vLLM publishes what happened with its next step.
    let after = route.map(|route| engine.ask(route.api, &route.text));
    let is_announced = before.and_then(|(source, before)| source.has_removed(client, &before));
    // The gateway's feed has the same news, at the latest with its next poll.
    std::thread::sleep(SETTLE);
    let decision = believer.map(|gateway| {
        (gateway.documents).ask(client, gateway.root, engine.model, AGAIN, Connection::Kept)
    });
    Cleared::Done {
        after,
        is_announced,
        decision,
    }
}

/// Whether what is believed resident is resident.
pub(super) fn believed(cleared: &Cleared) -> Finding {
    const CHECK: &str = "residency";
    let (after, is_announced, decision) = match cleared {
        Cleared::NotAllowed => {
            let remedy = "--allow-reset, when the engine's cache may be emptied: every prompt is then computed once more";
            return Finding::new(CHECK, Status::Skipped, "the cache was not emptied", remedy);
        }
        Cleared::Refused(came) => {
            let remedy = "vLLM: VLLM_SERVER_DEV_MODE=1 serves /reset_prefix_cache; foreword serve: --internal with its internal listener";
            return Finding::new(CHECK, Status::Skipped, came.clone(), remedy);
        }
        Cleared::Done {
            after,
            is_announced,
            decision,
        } => (after, is_announced, decision),
    };
    let mut detail = "the cache was emptied".to_owned();
    if let Some(Ok(after)) = after {
        detail = format!(
            "{detail}: {} of {} tokens cached",
            after.shown(),
            after.prompt
        );
        if after.is_cached(after.prompt) {
            let remedy = "ask again when nothing runs: an engine empties no cache in use";
            return Finding::new(CHECK, Status::Warn, detail, remedy);
        }
    }
    if *is_announced == Some(false) {
        let detail = format!("{detail}; no event says so");
        let remedy = "an engine that publishes AllBlocksCleared (vLLM 0.9 and later); until then restart gateways after a reset";
        return Finding::new(CHECK, Status::Fail, detail, remedy);
    }
    match decision {
        Some(decision) if decision.matched() > 0 => {
            let matched = decision.matched();
            let detail =
                format!("{detail}; the gateway still believed {matched} documents resident");
            Finding::new(CHECK, Status::Fail, detail, FEED)
        }
        Some(_) => Finding::ok(CHECK, format!("{detail}; the gateway knew it")),
        None if *is_announced == Some(true) => {
            Finding::ok(CHECK, format!("{detail}; events say so"))
        }
        None => {
            let remedy =
                "--events or --gateway: nobody was asked who believes something of this cache";
            Finding::new(CHECK, Status::Skipped, detail, remedy)
        }
    }
}

/// Routes that empty an engine's cache: vLLM's and SGLang's.
const RESETS: [&str; 2] = ["/reset_prefix_cache", "/flush_cache"];
const SETTLE: Duration = Duration::from_millis(500);
