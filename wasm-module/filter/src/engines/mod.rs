//! The engines behind the gateway: their outstanding tokens, their health, and how Envoy is told which one is chosen.
//!
//! ```text
//!   shared data   …/engine/a   {2 failures, out until 12:00:07, 4,100 tokens to compute}     all workers read and
//!                 …/engine/b   {0 failures, –, 900 tokens to compute}                        change these
//!
//!   request ──▶ choices: who is not out, with loads ──▶ core chooses ──▶ x-gateway-destination-endpoint: b:8000,a:8000
//!   answer begins ──▶ the tokens are computed; an engine that gave none, or 502, 503, 504, is out for a while
//! ```
//!
//! After its pause, an engine that is out is tried by one request; each failure doubles the pause. When all engines
//! are out, all are candidates, and Envoy then reports what is wrong. The header names the others after the chosen
//! one, so that Envoy's retry goes to them.

mod health;
mod responses;

use foreword_ordering::{EngineCandidate, EngineId};

use self::health::EngineHealth;
use self::responses::KeptResponses;
pub(crate) use crate::config::{EngineConfig, FeedConfig};
use crate::host::{Host, HostError};
use crate::swap;

/// The engines behind the gateway.
#[derive(Debug)]
pub(crate) struct Engines {
    list: Vec<EngineConfig>,
    /// Keys in shared data, one for each engine; none if there is one engine, or no shared data.
    keys: Vec<String>,
    responses: KeptResponses,
}

/// A request that was sent to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dispatch {
    pub(crate) engine: EngineId,
    /// Tokens that the engine has to compute for the request.
    tokens: u64,
}

/// The result of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DispatchResult {
    /// The engine began to answer.
    Answered,
    /// The engine could not be reached, broke off, or reported that it is unavailable.
    Failed,
    /// The client went away first, which says nothing of the engine.
    Abandoned,
}

impl Engines {
    /// Opens the engines' state. `ring` is the name under which workers agree. Keys are created here: see
    /// [`crate::agreement`] on who may create keys.
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

    /// Returns the engines without any state, as for a single engine.
    pub(crate) fn without_choice(list: &[EngineConfig]) -> Self {
        Self {
            list: list.to_vec(),
            keys: Vec::new(),
            responses: KeptResponses::default(),
        }
    }

    /// Returns whether there are several engines.
    pub(crate) fn are_several(&self) -> bool {
        self.list.len() > 1
    }

    /// Returns the engines that a request may go to. `request_number` determines which of equals comes first.
    pub(crate) fn choices(
        &self,
        host: &impl Host,
        now_ms: u64,
        request_number: u64,
    ) -> Vec<EngineCandidate> {
        let mut all = Vec::with_capacity(self.list.len());
        let mut well = Vec::with_capacity(self.list.len());
        for (engine, key) in (0..).map(EngineId).zip(&self.keys) {
            let state = EngineHealth::read(host, key).map(|(state, _)| state);
            let state = state.unwrap_or_default();
            let choice = EngineCandidate {
                engine,
                outstanding: state.outstanding(now_ms),
            };
            all.push(choice);
            if state.is_well(now_ms) {
                well.push(choice);
            }
        }
        let mut choices = if well.is_empty() { all } else { well };
        let count = u64::try_from(choices.len()).unwrap_or(1);
        let first = request_number.checked_rem(count).unwrap_or(0);
        choices.rotate_left(usize::try_from(first).unwrap_or(0));
        choices
    }

    /// Returns the one of the `choices` that keeps the tenant's response of that id; all, if none does.
    pub(crate) fn keeping(
        &self,
        host: &impl Host,
        choices: Vec<EngineCandidate>,
        tenant: &str,
        response: Option<&str>,
    ) -> Vec<EngineCandidate> {
        let response = response.filter(|_| self.are_several());
        let engine = response.and_then(|id| self.responses.engine(host, tenant, id));
        let mut keepers = choices
            .iter()
            .filter(|choice| Some(choice.engine) == engine);
        match keepers.next() {
            Some(keeper) => vec![*keeper],
            None => choices,
        }
    }

    /// Records that the engine has answered a tenant with the response of that id.
    pub(crate) fn keep(&self, host: &impl Host, tenant: &str, response: &str, engine: EngineId) {
        self.responses.keep(host, tenant, response, engine);
    }

    /// The request goes to that engine, which has `tokens` to compute for it.
    pub(crate) fn send(
        &self,
        host: &impl Host,
        now_ms: u64,
        engine: EngineId,
        tokens: u64,
    ) -> Dispatch {
        self.change(host, engine, |state| state.send(now_ms, tokens));
        Dispatch { engine, tokens }
    }

    /// Records the end of a dispatch, once for each [`Engines::send`].
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

    /// Returns the engine with that address, as Envoy writes it.
    pub(crate) fn at(&self, address: &[u8]) -> Option<EngineId> {
        let address = str::from_utf8(address).ok()?.parse().ok()?;
        let mut engines = (0..).map(EngineId).zip(&self.list);
        engines
            .find(|(_, engine)| engine.address == Some(address))
            .map(|(id, _)| id)
    }

    /// Returns the value of [`DESTINATION_HEADER`]: the chosen engine, then the other candidates by their outstanding
    /// tokens, then the ones that are out, [`MAX_DESTINATIONS`] in all. Returns `None` if there is one engine.
    pub(crate) fn destinations(
        &self,
        chosen: EngineId,
        choices: &[EngineCandidate],
    ) -> Option<String> {
        if !self.are_several() {
            return None;
        }
        let mut others: Vec<EngineCandidate> = choices.to_vec();
        others.sort_by_key(|choice| choice.outstanding);
        let out = (0..).map(EngineId).take(self.list.len());
        let mut order = vec![chosen];
        for engine in others.into_iter().map(|choice| choice.engine).chain(out) {
            if !order.contains(&engine) {
                order.push(engine);
            }
        }
        let addresses = order.iter().take(MAX_DESTINATIONS).filter_map(|engine| {
            let engine = self.list.get(usize::from(engine.0))?;
            engine.address.map(|address| address.to_string())
        });
        Some(addresses.collect::<Vec<_>>().join(","))
    }

    /// Changes an engine's health. A change that loses against others is given up after some attempts, since loads are
    /// estimates, and stale values are forgotten.
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

/// The header in which Envoy's `override_host` policy finds the engine, by the convention of the Gateway API's
/// inference extension.
pub(crate) const DESTINATION_HEADER: &str = "x-gateway-destination-endpoint";

/// Most addresses in the header: more than Envoy retries.
const MAX_DESTINATIONS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::engines;
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
    fn what_nobody_settles_is_forgotten() {
        let host = ScriptedHost::default();
        let engines = three(&host);
        engines.send(&host, 1_000, EngineId(0), 300);
        assert_eq!(loads(&engines, &host, 60_000), [300, 0, 0]);
        assert_eq!(loads(&engines, &host, 62_000), [0, 0, 0]);
        // And the next one starts from nothing.
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
            // One tries it, and meanwhile nobody else does.
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
            engines.destinations(EngineId(0), &choices).unwrap(),
            "10.0.0.1:8000,[::1]:8000,10.0.0.2:8000"
        );
        assert_eq!(engines.at(b"[::1]:8000"), Some(EngineId(2)));
        for other in [&b"10.0.0.9:8000"[..], b"", b"\xff"] {
            assert_eq!(engines.at(other), None);
        }
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
