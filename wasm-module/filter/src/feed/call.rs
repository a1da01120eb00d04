//! Calls to the server of an engine's event feed: to read events, to listen to other gateways, and to push updates. At
//! most one call of each kind is in flight.

use foreword_ordering::feed::FeedKey;

use crate::engines::FeedConfig;
use crate::host::{CallResponse, Host, HostError};

/// The address and credentials of the server of an engine's event feed.
pub(super) struct Link<'a> {
    pub(super) config: &'a FeedConfig,
    /// The key that the feed must be sealed (encrypted) with; `None` if it must be unsealed.
    pub(super) key: Option<&'a FeedKey>,
    /// The engine's name, for log lines.
    pub(super) name: &'a str,
}

/// The state of one kind of call to the server of an engine's feed, of which at most one is in flight.
#[derive(Debug, Default)]
pub(super) struct CallSlot {
    /// The number of the call in flight and its start time in milliseconds; `None` if no call is in flight.
    waiting: Option<(u32, u64)>,
    /// Time in milliseconds before which no call of this kind is made, because of a failure.
    next_ms: u64,
    /// Number of failed calls of this kind since the last successful one.
    failures: u32,
}

impl Link<'_> {
    /// Calls the server, with a JSON body unless `body` is empty, and returns the number that the proxy gives the call.
    pub(super) fn call(
        &self,
        host: &impl Host,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<u32, HostError> {
        let cluster = self.config.cluster.as_str();
        // A gateway with the key needs no other token: the default token is derived from the key.
        let derived = self.key.map(FeedKey::token);
        let token = self.config.token.as_deref().or(derived);
        let authorization = token.map(|token| format!("Bearer {token}"));
        let mut headers = vec![
            (":method", method),
            (":path", path),
            (":authority", cluster),
            ("accept", "application/json"),
        ];
        if let Some(authorization) = &authorization {
            headers.push(("authorization", authorization));
        }
        if !body.is_empty() {
            headers.push(("content-type", "application/json"));
        }
        host.call_for_plugin(cluster, &headers, body, LIMIT_MS)
    }
}

impl CallSlot {
    /// Returns whether a call of this kind may be made now: none is in flight, and the pause after a failure is over.
    pub(super) fn is_free(&self, now_ms: u64) -> bool {
        // A call older than twice the limit gets no response any more. A start time in the future, or a distant next
        // time, means that the clock was set back.
        let is_lost = |since: u64| now_ms.abs_diff(since) > LIMIT_MS.saturating_mul(2);
        let is_waiting = self.waiting.is_some_and(|(_, since)| !is_lost(since));
        let is_due =
            now_ms >= self.next_ms || self.next_ms.saturating_sub(now_ms) > LONGEST_PAUSE_MS;
        !is_waiting && is_due
    }

    pub(super) fn begin(&mut self, now_ms: u64, call: u32) {
        self.waiting = Some((call, now_ms));
    }

    /// Ends the call in flight and returns its start time in milliseconds. `None`, without effect, if `call` is not the
    /// number of the call in flight.
    pub(super) fn end(&mut self, call: u32) -> Option<u64> {
        let ended = self.waiting.take_if(|(waiting, _)| *waiting == call);
        ended.map(|(_, since)| since)
    }

    /// Forgets the call in flight, so its response will be ignored.
    pub(super) fn forget(&mut self) {
        self.waiting = None;
    }

    /// Records a successful call, which ends the pause after failures. Returns whether calls had failed before.
    pub(super) fn succeeded(&mut self) -> bool {
        self.next_ms = 0;
        std::mem::take(&mut self.failures) > 0
    }

    /// Records a failed call and delays the next one, longer with each failure in a row. Returns whether it is the
    /// first failure in a row.
    pub(super) fn failed(&mut self, now_ms: u64) -> bool {
        let pause = FIRST_PAUSE_MS << self.failures.min(MAX_DOUBLINGS);
        self.failed_for(now_ms, pause)
    }

    /// Records a failed call and delays the next one by `pause_ms` milliseconds. Returns whether it is the first
    /// failure in a row.
    pub(super) fn failed_for(&mut self, now_ms: u64, pause_ms: u64) -> bool {
        self.next_ms = now_ms.saturating_add(pause_ms);
        self.failures = self.failures.saturating_add(1);
        self.failures == 1
    }
}

/// Returns the body of a response with status 200; otherwise a description of the problem, for log lines.
pub(super) fn body_of(answer: CallResponse<'_>) -> Result<&[u8], String> {
    match (answer.status, answer.body) {
        (Some(200), Some(body)) => Ok(body),
        (Some(200), None) => Err(format!(
            "an answer of more than {} bytes",
            super::MAX_BATCH_BYTES
        )),
        (Some(status), _) => Err(format!("status {status}")),
        (None, _) => Err("no answer".to_owned()),
    }
}

/// Time in milliseconds after which a call to a feed's server fails; longer than the server waits for events before it
/// responds.
const LIMIT_MS: u64 = 10_000;
/// Pause after the first failed call, in milliseconds; it doubles with each further failure.
pub(super) const FIRST_PAUSE_MS: u64 = 500;
/// The maximum number of doublings of the pause between calls; it then is half a minute.
const MAX_DOUBLINGS: u32 = 6;
/// The longest pause between calls, in milliseconds; used when the server lacks the route.
pub(super) const LONGEST_PAUSE_MS: u64 = 300_000;
