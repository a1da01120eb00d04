//! The event feeds of engines: for each, one worker reads it and publishes the events to the other workers.
//!
//! ```text
//!   tick ──▶ is the lease ours? ──▶ long poll to the engine ──▶ batch ──▶ Residency ──▶ ring ──▶ every worker
//!                 └─ no: nothing to do            └─ failed: pause, doubling each time
//! ```
//!
//! A worker that takes the lease requests a full snapshot of the engine's cache, which replaces earlier state. It does
//! the same after the engine restarted or events were missed. After that worker ends, another one takes over within a
//! lease's term and a tick. Without a feed, only the usage in responses corrects the trees of cached prefixes
//! ([`crate::usage`]).
//!
//! A host that shares a key with its gateways seals (encrypts) its feed. A batch that is not sealed as configured
//! counts as a failure, with a counter of its own.
//!
//! Workers exchange their requests' records with gateways of other proxies, through the feed's server ([`gateways`]).
//!
//! This module knows HTTP's status codes and the feed's JSON, and decides when to call and how to handle a response. It
//! knows nothing of trees.

mod call;
mod gateways;
mod lease;
mod listeners;
mod outbox;

use foreword_ordering::feed::{Batch, Event, FeedKey, Follower};
use foreword_ordering::{EngineId, Residency};

use self::call::{CallSlot, Link, body_of};
pub(crate) use self::gateways::{ExchangeResult, Gateways};
use self::lease::Lease;
pub(crate) use self::outbox::{Outbox, Outgoing};
use crate::engines::FeedConfig;
use crate::host::{CallResponse, Host, HostError, LogLevel};

/// One worker's access to the event feed of one engine. At any time one worker of the proxy, the leader, reads the feed
/// for all of them.
#[derive(Debug)]
pub(crate) struct Feed {
    engine: EngineId,
    name: String,
    config: FeedConfig,
    key: Option<FeedKey>,
    lease: Lease,
    /// True if this worker held the lease when it last checked, so that it reads the feed for all workers.
    leads: bool,
    follower: Follower,
    reading: CallSlot,
    /// The exchange of updates about cached prefixes with gateways of other proxies; `None` if it is off.
    gateways: Option<Gateways>,
}

/// The cache events of an engine from one response of its feed.
#[derive(Debug, Default)]
pub(crate) struct FeedUpdate {
    /// The events, grouped so that each group fits into an entry of the ring buffer through which workers share
    /// updates.
    pub(crate) messages: Vec<Residency>,
    /// Number of events as the feed counts them, which may differ from those in `messages`; a full snapshot counts as
    /// one.
    pub(crate) events: u64,
    /// True if the feed cannot be read because it and the configuration use different keys, or only one of them uses a
    /// key.
    pub(crate) is_keyed_otherwise: bool,
}

impl Feed {
    /// Returns one worker's access to the feed of `engine`. `key` is the key that the feed must be sealed with (`None`
    /// for an unsealed feed), and `ring` the name of the ring buffer through which workers share updates. Returns an
    /// error if the proxy refuses access to shared data.
    pub(crate) fn new(
        host: &impl Host,
        engine: EngineId,
        name: &str,
        config: FeedConfig,
        key: Option<FeedKey>,
        ring: &str,
        gateways: Option<Gateways>,
    ) -> Result<Self, HostError> {
        Ok(Self {
            engine,
            name: name.to_owned(),
            lease: Lease::claim(host, &format!("{ring}/{name}"))?,
            leads: false,
            gateways,
            config,
            key,
            follower: Follower::default(),
            reading: CallSlot::default(),
        })
    }

    /// Handles a periodic tick: takes or renews the lease if possible. If this worker holds it and no call is in flight
    /// or delayed by a failure, requests the next events from the feed's server.
    pub(crate) fn on_tick(&mut self, host: &impl Host, now_ms: u64) -> Result<(), HostError> {
        self.leads = self.lease.hold(host, now_ms)?;
        if !self.leads {
            // The holder starts with a full snapshot; so will this worker when it holds the lease again.
            self.follower = Follower::default();
            self.reading.forget();
            return Ok(());
        }
        if !self.reading.is_free(now_ms) {
            return Ok(());
        }
        let query = self.follower.query();
        let path = format!("/v1/kv/events?wait_ms={WAIT_MS}&{query}");
        match self.link().call(host, "GET", &path, &[]) {
            Ok(call) => self.reading.begin(now_ms, call),
            // Envoy returns an error for an unknown cluster.
            Err(error) => self.failed(host, now_ms, &error.to_string()),
        }
        Ok(())
    }

    pub(crate) fn engine(&self) -> EngineId {
        self.engine
    }

    /// Reads from shared data whether gateways of other proxies listen, and returns it. Only then are updates queued
    /// for them.
    pub(crate) fn look_for_listeners(&mut self, host: &impl Host, now_ms: u64) -> bool {
        let leads = self.leads;
        self.gateways.as_mut().is_some_and(|gateways| {
            gateways.look(host, now_ms, leads);
            gateways.has_listeners()
        })
    }

    /// Returns whether updates about cached prefixes can be pushed to gateways of other proxies now: see
    /// [`Gateways::may_push`].
    pub(crate) fn may_push(&self, now_ms: u64) -> bool {
        let gateways = self.gateways.as_ref();
        gateways.is_some_and(|gateways| gateways.may_push(now_ms))
    }

    /// Returns whether this worker must push again how many tokens the engine has yet to compute: see
    /// [`Gateways::repeats_load`].
    pub(crate) fn repeats_load(&self, now_ms: u64) -> bool {
        let gateways = self.gateways.as_ref();
        gateways.is_some_and(|gateways| gateways.repeats_load(now_ms, self.leads))
    }

    /// If this worker leads (reads the feed for all workers), starts to listen to gateways of other proxies, and
    /// returns the result of [`Feed::changed_load`]. Otherwise returns `None`.
    pub(crate) fn poll_gateways(&mut self, host: &impl Host, now_ms: u64) -> Option<u64> {
        if !self.leads {
            return None;
        }
        self.with_gateways(|gateways, link| gateways.poll(host, now_ms, link));
        self.changed_load(now_ms)
    }

    /// Returns the sum of other gateways' loads (tokens that the engine has yet to compute for their requests) if it
    /// changed, or is not 0 and was last returned a second ago. Otherwise returns `None`.
    pub(crate) fn changed_load(&mut self, now_ms: u64) -> Option<u64> {
        self.gateways.as_mut()?.changed_load(now_ms)
    }

    /// Pushes updates about cached prefixes to gateways of other proxies, with the load that `outstanding` returns (the
    /// tokens that the engine has yet to compute for this proxy's requests). Returns the number of updates lost.
    pub(crate) fn push(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        taken: Outgoing,
        outstanding: impl FnOnce() -> u64,
    ) -> u64 {
        let lost = self
            .with_gateways(|gateways, link| gateways.push(host, now_ms, link, taken, outstanding));
        lost.unwrap_or(0)
    }

    /// Handles the response to the call with the number `call`, a push to other gateways or a listening call. `None` if
    /// this feed has no such call in flight.
    pub(crate) fn on_gateways_answer(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        call: u32,
        answer: CallResponse<'_>,
    ) -> Option<ExchangeResult> {
        self.with_gateways(|gateways, link| gateways.on_answer(host, now_ms, call, answer, link))?
    }

    fn with_gateways<T>(&mut self, act: impl FnOnce(&mut Gateways, &Link<'_>) -> T) -> Option<T> {
        let mut gateways = self.gateways.take()?;
        let acted = act(&mut gateways, &self.link());
        self.gateways = Some(gateways);
        Some(acted)
    }

    fn link(&self) -> Link<'_> {
        Link {
            config: &self.config,
            key: self.key.as_ref(),
            name: &self.name,
        }
    }

    /// Handles the response to the call with the number `call`, and returns the engine's events in it; none if the
    /// response cannot be used. `None` if this feed has no such call in flight.
    pub(crate) fn on_answer(
        &mut self,
        host: &impl Host,
        now_ms: u64,
        call: u32,
        answer: CallResponse<'_>,
    ) -> Option<FeedUpdate> {
        self.reading.end(call)?;
        let batch = match read(answer, self.key.as_ref()) {
            Ok(batch) => batch,
            Err(problem) => {
                self.failed(host, now_ms, &problem.words);
                return Some(FeedUpdate {
                    is_keyed_otherwise: problem.is_about_the_key,
                    ..FeedUpdate::default()
                });
            }
        };
        if self.reading.succeeded() {
            let message = format!("the feed of {} is back", self.name);
            host.log(LogLevel::Info, &message);
        }
        let events = self.follower.follow(&batch).cloned();
        Some(FeedUpdate {
            messages: in_messages(self.engine, &batch.model, events),
            events: if batch.reset {
                1
            } else {
                // Events that are not about documents count, though they are not sent; a peer may state any number.
                let stated = batch.next.saturating_sub(batch.from);
                stated.min(MAX_BATCH_BYTES as u64)
            },
            is_keyed_otherwise: false,
        })
    }

    /// Records a failed call, which delays the next one, longer with each failure in a row. Logs the problem if it is
    /// the first failure in a row.
    fn failed(&mut self, host: &impl Host, now_ms: u64, problem: &str) {
        if self.reading.failed(now_ms) {
            let message = format!("the feed of {} cannot be followed: {problem}", self.name);
            host.log(LogLevel::Warn, &message);
        }
    }
}

/// The reason why a response of a feed's server cannot be used: a text for the log, and whether the key is the cause.
struct Problem {
    words: String,
    is_about_the_key: bool,
}

fn read(answer: CallResponse<'_>, key: Option<&FeedKey>) -> Result<Batch, Problem> {
    let body = body_of(answer).map_err(|words| Problem {
        words,
        is_about_the_key: false,
    })?;
    Batch::read(body, key).map_err(|error| Problem {
        words: error.to_string(),
        is_about_the_key: error.is_about_the_key(),
    })
}

/// Groups consecutive events into updates of about [`DOCUMENTS_IN_A_MESSAGE`] documents at most; a larger event is an
/// update of its own.
fn in_messages(
    engine: EngineId,
    model: &str,
    events: impl Iterator<Item = Event>,
) -> Vec<Residency> {
    let mut messages: Vec<Residency> = Vec::new();
    let mut room = 0_usize;
    for event in events {
        let size = match &event {
            Event::Stored { path, .. } => path.len(),
            Event::Removed { path, .. } => path.len(),
            Event::Cleared => 0,
        };
        // An event counts as at least three documents.
        let size = size.saturating_add(3);
        match messages.last_mut() {
            Some(last) if size <= room => last.events.push(event),
            _ => {
                room = DOCUMENTS_IN_A_MESSAGE;
                messages.push(Residency {
                    engine,
                    model: model.into(),
                    events: vec![event],
                });
            }
        }
        room = room.saturating_sub(size);
    }
    messages
}

/// The maximum length in bytes of a response of a feed's server: about 40,000 documents. A longer one counts as a
/// failed call.
pub(crate) const MAX_BATCH_BYTES: usize = 4 << 20;

/// The maximum time in milliseconds that a feed's server waits for an event before it responds.
const WAIT_MS: u64 = 5_000;
/// The maximum number of documents in one update for the other workers: twelve bytes each, well below the maximum
/// length of an entry in their ring buffer.
const DOCUMENTS_IN_A_MESSAGE: usize = 1_000;

#[cfg(test)]
mod tests {
    use foreword_ordering::document::Fingerprint;
    use foreword_ordering::feed::{Epoch, Pages, TenantKey};
    use foreword_ordering::tree::Scope;

    use super::lease::TERM_MS;
    use super::*;
    use crate::tests::scripted::ScriptedHost;

    fn feed(host: &ScriptedHost) -> Feed {
        let config = FeedConfig {
            cluster: "engine".to_owned(),
            token: Some("secret".to_owned()),
            key: None,
        };
        Feed::new(host, EngineId(3), "e", config, None, "r", None).unwrap()
    }

    /// A feed with a key and without a token.
    fn sealed(host: &ScriptedHost, key: &FeedKey) -> Feed {
        let config = FeedConfig {
            cluster: "engine".to_owned(),
            token: None,
            key: None,
        };
        Feed::new(host, EngineId(3), "e", config, Some(key.clone()), "r", None).unwrap()
    }

    fn stored(documents: u64) -> Event {
        Event::Stored {
            tenant: TenantKey::default(),
            scope: Scope(1),
            path: (0..documents)
                .map(|document| (Fingerprint(document), 5))
                .collect(),
        }
    }

    fn batch(epoch: u64, from: u64, reset: bool, events: Vec<Event>) -> Vec<u8> {
        written(None, epoch, from, reset, events)
    }

    fn written(
        key: Option<&FeedKey>,
        epoch: u64,
        from: u64,
        reset: bool,
        events: Vec<Event>,
    ) -> Vec<u8> {
        let batch = Batch {
            epoch: Epoch(epoch),
            from,
            next: from + events.len() as u64,
            reset,
            model: "m".into(),
            pages: Pages::default(),
            events,
        };
        serde_json::to_vec(&batch.wire(key)).unwrap()
    }

    fn paths(host: &ScriptedHost) -> Vec<String> {
        let path = |headers: Vec<(String, String)>| {
            let found = headers.into_iter().find(|(name, _)| name == ":path");
            found.unwrap().1
        };
        host.calls()
            .into_iter()
            .map(|(_, headers)| path(headers))
            .collect()
    }

    fn answer(body: &[u8]) -> CallResponse<'_> {
        CallResponse {
            status: Some(200),
            body: Some(body),
        }
    }

    fn events(said: Option<FeedUpdate>) -> Vec<Event> {
        let said = said.unwrap().messages.into_iter();
        said.flat_map(|residency| {
            assert_eq!((residency.engine, &*residency.model), (EngineId(3), "m"));
            residency.events
        })
        .collect()
    }

    #[test]
    fn one_call_is_made_at_a_time_and_the_next_goes_on_where_it_ended() {
        let host = ScriptedHost::default();
        let mut feed = feed(&host);
        for now in [0, 100, 200] {
            feed.on_tick(&host, now).unwrap();
        }
        assert_eq!(paths(&host), ["/v1/kv/events?wait_ms=5000&"]);
        let (cluster, headers) = host.calls().remove(0);
        assert_eq!(cluster, "engine");
        assert!(headers.contains(&("authorization".into(), "Bearer secret".into())));

        // A response to another call is ignored.
        assert!(feed.on_answer(&host, 300, 7, answer(b"")).is_none());
        let first = batch(7, 40, true, vec![stored(2)]);
        assert_eq!(
            events(feed.on_answer(&host, 300, 0, answer(&first))),
            [Event::Cleared, stored(2)]
        );
        feed.on_tick(&host, 400).unwrap();
        assert_eq!(
            paths(&host)[1],
            "/v1/kv/events?wait_ms=5000&epoch=0000000000000007&since=41"
        );
        let second = batch(7, 41, false, vec![stored(3)]);
        assert_eq!(
            events(feed.on_answer(&host, 500, 1, answer(&second))),
            [stored(3)]
        );
        // The engine restarted or we missed events: request a full snapshot.
        feed.on_tick(&host, 600).unwrap();
        let gap = batch(7, 99, false, vec![stored(4)]);
        assert_eq!(
            events(feed.on_answer(&host, 700, 2, answer(&gap))),
            [Event::Cleared]
        );
        feed.on_tick(&host, 800).unwrap();
        assert_eq!(paths(&host)[3], "/v1/kv/events?wait_ms=5000&");
    }

    #[test]
    fn after_failures_it_waits_longer_each_time_and_keeps_its_place() {
        let host = ScriptedHost::default();
        let mut feed = feed(&host);
        feed.on_tick(&host, 0).unwrap();
        feed.on_answer(&host, 0, 0, answer(&batch(7, 0, true, Vec::new())))
            .unwrap();
        let mut now = 1;
        let mut pauses = Vec::new();
        let failures = [
            (None, None),
            (Some(401), Some(&b"{}"[..])),
            (Some(503), Some(b"")),
            (Some(200), Some(b"noise")),
            (Some(200), Some(b"{}")),
            (Some(200), None),
            (Some(504), Some(b"")),
            (Some(504), Some(b"")),
        ];
        for (call, (status, body)) in (1..).zip(failures) {
            let since = now;
            while host.calls().len() == usize::try_from(call).unwrap() {
                feed.on_tick(&host, now).unwrap();
                now += 100;
            }
            pauses.push(now - 100 - since);
            now += 10;
            let said = feed.on_answer(&host, now, call, CallResponse { status, body });
            assert_eq!(events(said), []);
        }
        assert_eq!(pauses, [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000]);
        let place = "/v1/kv/events?wait_ms=5000&epoch=0000000000000007&since=0";
        assert!(paths(&host)[1..].iter().all(|path| path == place));
        // An unknown cluster is a failure like any other.
        host.refuse("call");
        now += 60_000;
        feed.on_tick(&host, now).unwrap();
        feed.on_tick(&host, now + 10).unwrap();
        assert_eq!(host.refused_calls(), 1);
    }

    #[test]
    fn another_worker_takes_over_when_the_leader_is_gone_and_begins_anew() {
        let host = ScriptedHost::default();
        let mut leader = feed(&host);
        let mut other = feed(&host);
        leader.on_tick(&host, 0).unwrap();
        other.on_tick(&host, 0).unwrap();
        assert_eq!(host.calls().len(), 1);
        leader.on_answer(&host, 0, 0, answer(&batch(7, 5, true, Vec::new())));
        other.on_tick(&host, TERM_MS).unwrap();
        leader.on_tick(&host, TERM_MS).unwrap();
        assert_eq!(paths(&host)[1..], ["/v1/kv/events?wait_ms=5000&"]);
        // A late response is ignored.
        assert!(leader.on_answer(&host, TERM_MS, 0, answer(b"")).is_none());
    }

    #[test]
    fn a_sealed_feed_is_followed_with_its_key_which_also_is_the_token() {
        let host = ScriptedHost::default();
        let key = FeedKey::new(&[7; 32]);
        let mut feed = sealed(&host, &key);
        feed.on_tick(&host, 0).unwrap();
        let (_, headers) = host.calls().remove(0);
        let bearer = format!("Bearer {}", key.token());
        assert!(headers.contains(&("authorization".into(), bearer)));
        let all = written(Some(&key), 7, 40, true, vec![stored(2)]);
        assert_eq!(
            events(feed.on_answer(&host, 0, 0, answer(&all))),
            [Event::Cleared, stored(2)]
        );
    }

    #[test]
    fn a_feed_of_another_key_says_nothing_is_counted_and_is_logged_once() {
        let key = FeedKey::new(&[7; 32]);
        let other = FeedKey::new(&[8; 32]);
        for (ours, theirs, words) in [
            (Some(&key), Some(&other), "sealed with another key"),
            (Some(&key), None, "not sealed, although a key is configured"),
            (None, Some(&key), "sealed, and no key is configured"),
        ] {
            let host = ScriptedHost::default();
            let mut feed = match ours {
                Some(key) => sealed(&host, key),
                None => feed(&host),
            };
            let body = written(theirs, 7, 40, true, vec![stored(2)]);
            let mut now = 0;
            for call in 0..3 {
                while host.calls().len() == usize::try_from(call).unwrap() {
                    feed.on_tick(&host, now).unwrap();
                    now += 100;
                }
                let said = feed.on_answer(&host, now, call, answer(&body)).unwrap();
                assert!(said.is_keyed_otherwise && said.messages.is_empty());
            }
            let logged = host.log_text();
            assert_eq!(logged.matches(words).count(), 1, "{logged}");
            // Once the keys agree, the feed continues.
            now += 60_000;
            feed.on_tick(&host, now).unwrap();
            let body = written(ours, 7, 40, true, vec![stored(2)]);
            let said = feed.on_answer(&host, now, 3, answer(&body));
            assert_eq!(events(said), [Event::Cleared, stored(2)]);
        }
    }

    #[test]
    fn a_call_that_is_never_answered_is_given_up() {
        let host = ScriptedHost::default();
        let mut feed = feed(&host);
        for now in (0..=21_000).step_by(1_000) {
            feed.on_tick(&host, now).unwrap();
        }
        assert_eq!(host.calls().len(), 2);
    }

    #[test]
    fn many_events_become_messages_that_the_ring_takes() {
        let all: Vec<Event> = (0..600).map(|at| stored(at % 20)).collect();
        let messages = in_messages(EngineId(0), "m", all.clone().into_iter());
        let sizes = messages.iter().map(|message| {
            let update = foreword_ordering::PeerUpdate::Residency(message.clone());
            update.encode().len()
        });
        assert!(
            sizes.clone().all(|size| size < 16 << 10),
            "{:?}",
            sizes.collect::<Vec<_>>()
        );
        assert!(messages.len() < 10);
        let back: Vec<Event> = messages
            .into_iter()
            .flat_map(|message| message.events)
            .collect();
        assert_eq!(back, all);
    }
}
