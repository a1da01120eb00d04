//! The engines behind the gateway: the tokens that each has yet to compute, their health, and the request header that
//! names the chosen engine.
//!
//! ```text
//!   shared data   …/engine/a   {2 failures, out until 12:00:07, 4,100 tokens to compute}     all workers read and
//!                 …/engine/b   {0 failures, –, 900 tokens to compute, 700 for others}        change these
//!
//!   request ──▶ candidates: engines not out, with loads ▶ core chooses ▶ x-gateway-destination-endpoint: b:8000,a:8000
//!   response begins ──▶ the tokens are computed; an engine with no response, or 502, 503 or 504, is out for a while
//! ```
//!
//! If the module that embeds the filter provides a pool of engines ([`EnginePool`]), engine ids belong to the pool:
//! each id has its state in shared data, and is a candidate while the pool has an engine with that id. The engine's own
//! report of its queue adds to its load.
//!
//! After its pause, one request probes an engine that is out; each failure doubles the pause. If all engines are out,
//! all are candidates, and Envoy then reports the error. The header names the others after the chosen one, so that
//! Envoy's retry goes to them.

mod health;
mod responses;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use foreword_ordering::{EngineCandidate, EngineId};

use self::health::EngineHealth;
use self::responses::KeptResponses;
pub(crate) use self::responses::empty_responses;
pub(crate) use crate::config::{EngineConfig, FeedConfig};
use crate::host::{EnginePool, Host, HostError, PoolEngine};
use crate::swap;

/// The configured engines behind the gateway, with access to their health and load in shared data.
#[derive(Debug)]
pub(crate) struct Engines {
    list: Vec<EngineConfig>,
    /// Keys of the engines' health and load in shared data, one for each engine; empty if there is one engine, or no
    /// shared data.
    keys: Vec<String>,
    responses: KeptResponses,
    /// A moving average of the tokens that an engine computes for one request. It is the estimate for each request in
    /// an engine's own report of its queue.
    mean_tokens: AtomicU64,
}

/// A request sent to an engine, which adds to the engine's load until [`Engines::settle`] ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dispatch {
    pub(crate) engine: EngineId,
    /// Estimated number of tokens that the engine has to compute for the request.
    tokens: u64,
}

impl Dispatch {
    /// Returns true if the request adds tokens to the engine's load: the estimate of the tokens that the engine has to
    /// compute for it is more than 0. It is 0 for a request that Envoy retried at this engine, which the plugin did not
    /// choose.
    pub(crate) fn has_tokens(self) -> bool {
        self.tokens > 0
    }
}

/// The outcome of a request that was sent to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DispatchResult {
    /// The engine began to respond, with a status that does not mean that it is unavailable.
    Answered,
    /// The engine could not be reached, broke off, or responded with 502, 503 or 504.
    Failed,
    /// The request ended before a response, so nothing is known about the engine.
    Abandoned,
}

impl Engines {
    /// Opens the engines' health and load in shared data, and creates missing keys, which is safe since Envoy loads the
    /// plugin on its main thread first. `ring`, the name of the ring buffer through which workers share updates, is
    /// part of the keys. Returns an error if the proxy refuses access to shared data.
    pub(crate) fn open(
        host: &impl Host,
        list: &[EngineConfig],
        ring: &str,
    ) -> Result<Self, HostError> {
        let mut engines = Self::without_choice(list);
        if list.len() > 1 {
            for engine in list {
                let key = format!("foreword/engine/{}/{ring}/{}", health::LAYOUT, engine.name);
                swap::create(host, &key, &EngineHealth::default().bytes())?;
                engines.keys.push(key);
            }
            engines.responses = KeptResponses::open(host, list, ring)?;
        }
        Ok(engines)
    }

    /// Returns the engines without access to shared data: for a single engine, or a proxy without shared data.
    /// [`Engines::choices`] is then empty.
    pub(crate) fn without_choice(list: &[EngineConfig]) -> Self {
        Self {
            list: list.to_vec(),
            keys: Vec::new(),
            responses: KeptResponses::default(),
            mean_tokens: AtomicU64::new(FIRST_MEAN_TOKENS),
        }
    }

    pub(crate) fn are_several(&self) -> bool {
        self.list.len() > 1
    }

    /// Returns the engines that the request may be sent to, with their loads. Saturated ones, or those in a pause after
    /// a failure, are included only if there are no better ones. Empty if there is one engine. `request_number` rotates
    /// the list, so that ties do not always go to the same engine.
    pub(crate) fn choices(
        &self,
        host: &impl Host,
        now_ms: u64,
        request_number: u64,
    ) -> Vec<EngineCandidate> {
        let pool = host.pool();
        let mut choices = Vec::with_capacity(self.list.len());
        let mut best = usize::MAX;
        for (engine, key) in (0..).map(EngineId).zip(&self.keys) {
            let reported = pool.as_ref().map(|pool| pool.eligible(engine));
            if reported == Some(None) {
                continue;
            }
            let reported = reported.flatten();
            let state = EngineHealth::read(host, key).map(|(state, _)| state);
            let state = state.unwrap_or_default();
            let own = state.outstanding(now_ms);
            let own = own.saturating_add(state.elsewhere(now_ms));
            // An engine that is saturated, or out, is a candidate only if there is no better one.
            let rank = if !state.is_available(now_ms) {
                2
            } else {
                usize::from(reported.is_some_and(|reported| reported.is_saturated))
            };
            if rank < best {
                choices.clear();
                best = rank;
            }
            if rank == best {
                choices.push(EngineCandidate {
                    engine,
                    outstanding: reported.map_or(own, |reported| self.outstanding(own, reported)),
                });
            }
        }
        let count = u64::try_from(choices.len()).unwrap_or(1);
        let first = request_number.checked_rem(count).unwrap_or(0);
        choices.rotate_left(usize::try_from(first).unwrap_or(0));
        choices
    }

    /// Returns the estimated number of tokens that an engine of a pool has yet to compute. `own` is the number for
    /// requests that gateways sent; the engine's report of its queue, which may include others' requests, gives another
    /// estimate. The larger counts. Each running request adds one token, since it takes one of every step.
    fn outstanding(&self, own: u64, reported: &PoolEngine) -> u64 {
        let mean = self.mean_tokens.load(Ordering::Relaxed);
        let waiting = reported.waiting.saturating_mul(mean);
        own.max(waiting).saturating_add(reported.running)
    }

    /// Returns only the candidate that stores the tenant's `response` (Responses API), given by its id; all candidates
    /// if `response` is `None`, or the engine that stores it is unknown, out, or not in the pool. An engine of a pool is
    /// returned even if it is saturated, since no other engine has the response.
    pub(crate) fn keeping(
        &self,
        host: &impl Host,
        now_ms: u64,
        choices: Vec<EngineCandidate>,
        tenant: &str,
        response: Option<&str>,
    ) -> Vec<EngineCandidate> {
        let response = response.filter(|_| self.are_several());
        let engine = response.and_then(|id| self.responses.engine(host, tenant, id));
        let mut keepers = choices
            .iter()
            .filter(|choice| Some(choice.engine) == engine);
        if let Some(keeper) = keepers.next() {
            return vec![*keeper];
        }
        let saturated = engine.filter(|engine| {
            let pool = host.pool();
            let state = (self.keys.get(usize::from(engine.0)))
                .and_then(|key| EngineHealth::read(host, key).ok());
            state.is_none_or(|(state, _)| state.is_available(now_ms))
                && pool.is_some_and(|pool| pool.eligible(*engine).is_some_and(|it| it.is_saturated))
        });
        match saturated {
            Some(engine) => vec![EngineCandidate {
                engine,
                outstanding: 0,
            }],
            None => choices,
        }
    }

    /// Records that `engine` stores the tenant's `response` (Responses API), given by its id.
    pub(crate) fn keep(&self, host: &impl Host, tenant: &str, response: &str, engine: EngineId) {
        self.responses.keep(host, tenant, response, engine);
    }

    /// Records that a request is sent to `engine`, which has to compute `tokens` tokens for it. The caller must pass
    /// the result to [`Engines::settle`].
    pub(crate) fn send(
        &self,
        host: &impl Host,
        now_ms: u64,
        engine: EngineId,
        tokens: u64,
    ) -> Dispatch {
        self.change(host, engine, |state| state.send(now_ms, tokens));
        if tokens > 0 {
            // A lost update does no harm.
            let mean = self.mean_tokens.load(Ordering::Relaxed);
            let mean = mean.saturating_sub(mean / MEAN_OF);
            let mean = mean.saturating_add(tokens / MEAN_OF);
            self.mean_tokens.store(mean.max(1), Ordering::Relaxed);
        }
        Dispatch { engine, tokens }
    }

    /// Returns the tokens that `engine` has yet to compute for requests through this proxy; 0 if there is one engine.
    pub(crate) fn own_outstanding(&self, host: &impl Host, now_ms: u64, engine: EngineId) -> u64 {
        let key = self.keys.get(usize::from(engine.0));
        let state = key.and_then(|key| EngineHealth::read(host, key).ok());
        state.map_or(0, |(state, _)| state.outstanding(now_ms))
    }

    /// Records the tokens that `engine` has yet to compute for requests through other proxies, as their gateways
    /// report.
    pub(crate) fn set_elsewhere(
        &self,
        host: &impl Host,
        now_ms: u64,
        engine: EngineId,
        tokens: u64,
    ) {
        self.change(host, engine, |state| state.set_elsewhere(now_ms, tokens));
    }

    /// Resets the health and load under an engine id that now belongs to another engine.
    pub(crate) fn forget(&self, host: &impl Host, engine: EngineId) {
        self.change(host, engine, |state| *state = EngineHealth::default());
    }

    /// Records how a request to an engine ended, and subtracts its tokens from the engine's load. Called once for each
    /// [`Engines::send`].
    pub(crate) fn settle(
        &self,
        host: &impl Host,
        now_ms: u64,
        dispatch: Dispatch,
        result: DispatchResult,
    ) {
        self.change(host, dispatch.engine, |state| {
            state.settle(now_ms, dispatch.tokens, result);
        });
    }

    /// Returns the engine at an address (`IP:port`, as Envoy writes it); `None` if it is not the address of an engine.
    pub(crate) fn at(&self, host: &impl Host, address: &[u8]) -> Option<EngineId> {
        let address: SocketAddr = str::from_utf8(address).ok()?.parse().ok()?;
        if let Some(pool) = host.pool() {
            let found = pool.engines.iter().find(|it| it.address == address);
            return found.map(|it| it.engine);
        }
        let mut engines = (0..).map(EngineId).zip(&self.list);
        engines
            .find(|(_, engine)| engine.address == Some(address))
            .map(|(id, _)| id)
    }

    /// Returns the value of [`DESTINATION_HEADER`]: the addresses of the chosen engine, then of the other candidates,
    /// the least loaded first, then of the engines that were not candidates; at most [`MAX_DESTINATIONS`], or one more
    /// than the pool's number of fallbacks. `None` if there is one engine, or if the embedding module's pool of engines
    /// has none for the request.
    pub(crate) fn destinations(
        &self,
        host: &impl Host,
        chosen: EngineId,
        choices: &[EngineCandidate],
    ) -> Option<String> {
        if !self.are_several() {
            return None;
        }
        let pool = host.pool();
        let mut others: Vec<EngineCandidate> = choices.to_vec();
        others.sort_by_key(|choice| choice.outstanding);
        let out = (0..).map(EngineId).take(self.list.len());
        let mut order = vec![chosen];
        for engine in others.into_iter().map(|choice| choice.engine).chain(out) {
            if !order.contains(&engine) {
                order.push(engine);
            }
        }
        let most = |pool: &EnginePool| pool.fallbacks.saturating_add(1);
        let most = pool.as_ref().map_or(MAX_DESTINATIONS, most);
        let addresses = order.into_iter().filter_map(|engine| match &pool {
            Some(pool) => pool.eligible(engine).map(|it| it.address),
            None => self.list.get(usize::from(engine.0))?.address,
        });
        let addresses: Vec<String> = addresses
            .take(most)
            .map(|address| address.to_string())
            .collect();
        (!addresses.is_empty()).then(|| addresses.join(","))
    }

    /// Changes an engine's health and load in shared data. Gives up if other workers are faster at several attempts,
    /// since loads are estimates and old values expire.
    fn change(&self, host: &impl Host, engine: EngineId, change: impl Fn(&mut EngineHealth)) {
        let Some(key) = self.keys.get(usize::from(engine.0)) else {
            return;
        };
        let _ = swap::change(host, key, None, EngineHealth::read, |health| {
            let mut health = *health;
            change(&mut health);
            health.bytes()
        });
    }
}

/// The request header that names the engines for Envoy's `override_host` policy, as in the Gateway API's inference
/// extension.
pub const DESTINATION_HEADER: &str = "x-gateway-destination-endpoint";

/// The maximum number of addresses in [`DESTINATION_HEADER`] if there is no pool of engines: more than Envoy retries.
const MAX_DESTINATIONS: usize = 8;
/// The divisor of the moving average of tokens per request: a new request has a weight of one divided by this number.
const MEAN_OF: u64 = 16;
/// Value of the moving average of tokens per request before the first request.
const FIRST_MEAN_TOKENS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, engines};
    use crate::tests::scripted::ScriptedHost;
    use serde_json::json;

    fn three(host: &ScriptedHost) -> Engines {
        let list = json!([
            {"name": "a", "address": "10.0.0.1:8000"},
            {"name": "b", "address": "10.0.0.2:8000"},
            {"name": "c", "address": "[::1]:8000"},
        ]);
        Engines::open(host, &engines(Some(&list)).unwrap(), "r").unwrap()
    }

    fn ids(choices: &[EngineCandidate]) -> Vec<u16> {
        choices.iter().map(|choice| choice.engine.0).collect()
    }

    fn loads(engines: &Engines, host: &ScriptedHost, now_ms: u64) -> Vec<u64> {
        let choices = engines.choices(host, now_ms, 0);
        choices.iter().map(|choice| choice.outstanding).collect()
    }

    #[test]
    fn what_engines_have_to_do_is_known_to_all_workers() {
        let host = ScriptedHost::default();
        let (one, two) = (three(&host), three(&host));
        let dispatch = one.send(&host, 1_000, EngineId(1), 300);
        two.send(&host, 1_000, EngineId(1), 50);
        two.send(&host, 1_000, EngineId(2), 7);
        assert_eq!(loads(&one, &host, 1_000), [0, 350, 7]);
        one.settle(&host, 1_100, dispatch, DispatchResult::Answered);
        assert_eq!(loads(&two, &host, 1_100), [0, 50, 7]);
    }

    #[test]
    fn what_engines_have_to_do_for_other_proxies_counts_until_it_is_not_told_again() {
        let host = ScriptedHost::default();
        let (one, two) = (three(&host), three(&host));
        one.send(&host, 1_000, EngineId(1), 300);
        one.set_elsewhere(&host, 1_000, EngineId(1), 50);
        one.set_elsewhere(&host, 1_000, EngineId(0), 70);
        assert_eq!(loads(&two, &host, 2_000), [70, 350, 0]);
        assert_eq!(two.own_outstanding(&host, 2_000, EngineId(1)), 300);
        assert_eq!(two.own_outstanding(&host, 2_000, EngineId(0)), 0);
        one.set_elsewhere(&host, 5_000, EngineId(0), 80);
        assert_eq!(loads(&two, &host, 7_000), [80, 300, 0]);
    }

    #[test]
    fn what_nobody_settles_is_forgotten() {
        let host = ScriptedHost::default();
        let engines = three(&host);
        engines.send(&host, 1_000, EngineId(0), 300);
        assert_eq!(loads(&engines, &host, 60_000), [300, 0, 0]);
        assert_eq!(loads(&engines, &host, 62_000), [0, 0, 0]);
        // The next dispatch starts from 0.
        engines.send(&host, 62_000, EngineId(0), 5);
        assert_eq!(loads(&engines, &host, 62_000), [5, 0, 0]);
    }

    #[test]
    fn an_engine_that_fails_is_out_and_then_tried_by_one_request() {
        let host = ScriptedHost::default();
        let engines = three(&host);
        let mut now = 1_000;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let dispatch = engines.send(&host, now, EngineId(0), 100);
            engines.settle(&host, now, dispatch, DispatchResult::Failed);
            assert_eq!(ids(&engines.choices(&host, now, 0)), [1, 2]);
            let failed = now;
            while ids(&engines.choices(&host, now, 0)) == [1, 2] {
                now += 500;
            }
            pauses.push(now - failed);
            // One request probes it; meanwhile no other does.
            let dispatch = engines.send(&host, now, EngineId(0), 100);
            assert_eq!(ids(&engines.choices(&host, now, 0)), [1, 2]);
            engines.settle(&host, now, dispatch, DispatchResult::Abandoned);
        }
        assert_eq!(pauses[..4], [1_000, 2_000, 4_000, 8_000]);
        assert_eq!(pauses[6..], [30_000, 30_000]);
        now += 60_000;
        let dispatch = engines.send(&host, now, EngineId(0), 100);
        engines.settle(&host, now, dispatch, DispatchResult::Answered);
        assert_eq!(ids(&engines.choices(&host, now, 0)), [0, 1, 2]);
    }

    #[test]
    fn when_all_are_out_all_are_choices() {
        let host = ScriptedHost::default();
        let engines = three(&host);
        for engine in [0, 1, 2].map(EngineId) {
            let dispatch = engines.send(&host, 1_000, engine, 1);
            engines.settle(&host, 1_000, dispatch, DispatchResult::Failed);
        }
        assert_eq!(ids(&engines.choices(&host, 1_000, 0)), [0, 1, 2]);
    }

    #[test]
    fn of_equals_each_comes_first_in_turn() {
        let host = ScriptedHost::default();
        let engines = three(&host);
        let firsts: Vec<u16> = (0..4)
            .map(|turn| ids(&engines.choices(&host, 0, turn))[0])
            .collect();
        assert_eq!(firsts, [0, 1, 2, 0]);
    }

    #[test]
    fn envoy_is_told_the_chosen_one_and_whom_to_try_next() {
        let host = ScriptedHost::default();
        let engines = three(&host);
        engines.send(&host, 0, EngineId(0), 100);
        let failed = engines.send(&host, 0, EngineId(1), 1);
        engines.settle(&host, 0, failed, DispatchResult::Failed);
        let choices = engines.choices(&host, 0, 0);
        assert_eq!(
            engines.destinations(&host, EngineId(0), &choices).unwrap(),
            "10.0.0.1:8000,[::1]:8000,10.0.0.2:8000"
        );
        assert_eq!(engines.at(&host, b"[::1]:8000"), Some(EngineId(2)));
        for other in [&b"10.0.0.9:8000"[..], b"", b"\xff"] {
            assert_eq!(engines.at(&host, other), None);
        }
    }

    /// A pool of engines with these ids, each with its reported number of waiting requests.
    fn pool(engines: &[(u16, u64)]) -> EnginePool {
        let engines = engines.iter().map(|(id, waiting)| PoolEngine {
            engine: EngineId(*id),
            address: SocketAddr::from(([10, 0, 0, 1], 8000 + *id)),
            is_eligible: true,
            is_saturated: *waiting > 5,
            waiting: *waiting,
            running: u64::from(*id),
        });
        EnginePool {
            engines: engines.collect(),
            fallbacks: 1,
        }
    }

    /// The engines behind a shell that keeps a pool.
    fn of_pool(host: &ScriptedHost) -> Engines {
        let config = Config::from_json(b"{}").unwrap().for_pool().unwrap();
        Engines::open(host, &config.engines, "r").unwrap()
    }

    #[test]
    fn only_engines_of_the_pool_are_choices_and_what_they_report_counts() {
        let host = ScriptedHost::default();
        host.set_pool(pool(&[(63, 0), (5, 2), (0, 1)]));
        let engines = of_pool(&host);
        assert_eq!(ids(&engines.choices(&host, 0, 0)), [0, 5, 63]);
        // 1,000 tokens for each waiting request, and one for each running one.
        assert_eq!(loads(&engines, &host, 0), [1_000, 2_005, 63]);
        // Requests of others are among those that wait, and so are these.
        engines.send(&host, 0, EngineId(0), 16_000);
        engines.send(&host, 0, EngineId(5), 100);
        assert_eq!(loads(&engines, &host, 0)[0], 16_000);
        assert!(loads(&engines, &host, 0)[1] > 2_005);
        // An engine that returns to the pool keeps its load; once its id belonged to another, its state is reset.
        host.set_pool(pool(&[(0, 0)]));
        assert_eq!(loads(&engines, &host, 0), [16_000]);
        engines.forget(&host, EngineId(0));
        assert_eq!(loads(&engines, &host, 0), [0]);
    }

    #[test]
    fn saturated_engines_are_choices_only_while_all_are_and_then_those_that_are_well() {
        let host = ScriptedHost::default();
        host.set_pool(pool(&[(0, 6), (1, 0), (2, 7)]));
        let engines = of_pool(&host);
        assert_eq!(ids(&engines.choices(&host, 0, 0)), [1]);
        let failed = engines.send(&host, 0, EngineId(1), 1);
        engines.settle(&host, 0, failed, DispatchResult::Failed);
        assert_eq!(ids(&engines.choices(&host, 0, 0)), [0, 2]);
        let choices = engines.choices(&host, 0, 0);
        let told = |chosen| engines.destinations(&host, EngineId(chosen), &choices);
        assert_eq!(told(0).unwrap(), "10.0.0.1:8000,10.0.0.1:8002");
        assert_eq!(engines.at(&host, b"10.0.0.1:8002"), Some(EngineId(2)));
        assert_eq!(engines.at(&host, b"10.0.0.1:8009"), None);
        host.set_pool(pool(&[]));
        assert_eq!(engines.choices(&host, 0, 0), []);
        assert_eq!(engines.destinations(&host, EngineId(0), &[]), None);
    }

    #[test]
    fn who_keeps_a_response_is_asked_even_when_it_is_saturated() {
        let host = ScriptedHost::default();
        host.set_pool(pool(&[(0, 6), (1, 0)]));
        let engines = of_pool(&host);
        engines.keep(&host, "red", "resp_1", EngineId(0));
        let asked = |response| {
            let choices = engines.choices(&host, 0, 0);
            ids(&engines.keeping(&host, 0, choices, "red", response))
        };
        assert_eq!(asked(Some("resp_1")), [0]);
        assert_eq!(asked(Some("resp_2")), [1]);
        assert_eq!(asked(None), [1]);
        // One that is out is not asked.
        let failed = engines.send(&host, 0, EngineId(0), 1);
        engines.settle(&host, 0, failed, DispatchResult::Failed);
        assert_eq!(asked(Some("resp_1")), [1]);
        engines.forget(&host, EngineId(0));
        assert_eq!(asked(Some("resp_1")), [0]);
        // The engine has left the pool.
        host.set_pool(pool(&[(1, 0)]));
        assert_eq!(asked(Some("resp_1")), [1]);
    }

    #[test]
    fn without_shared_data_engines_take_turns() {
        let host = ScriptedHost::default();
        let engines = three(&host);
        host.refuse("shared_data");
        let dispatch = engines.send(&host, 0, EngineId(0), 100);
        engines.settle(&host, 0, dispatch, DispatchResult::Failed);
        assert_eq!(ids(&engines.choices(&host, 0, 1)), [1, 2, 0]);
    }
}
