//! Chooses the engine for a request.
//!
//! ```text
//!              tree of engine 0  has   400 tokens to compute, and 900 of this request's 1,000   400 + 2.9 × 900  3,010
//!   request ─▶ tree of engine 1  has 1,500 tokens to compute, and 100 of this request's       1,500 + 2.9 × 100  1,790
//!              tree of engine 2  is unhealthy
//! ```
//!
//! The request is ordered against each engine's tree and goes to the engine with the lowest cost. The cost is the
//! tokens that the engine has to compute before this request, plus a multiple of those that it has to compute for it.
//! The first term is the request's wait. The second has a higher weight because other requests pay for it too:
//!
//! - the request itself waits for the computation (1);
//! - each computed token evicts another one from a full cache, and is often a duplicate of one on another engine, so
//!   later requests compute more (1.5, measured);
//! - each request that queues behind this one waits for it as well. The expected number is that of the requests queued
//!   now: the median engine's outstanding tokens over this request's document tokens.
//!
//! The multiple has an upper bound, so that an idle engine is preferred to a cached prefix behind a long queue. With a
//! multiple of 1 this is Preble's *E2* (arXiv:2407.00023) with only the load term of prefill. That rule minimises the
//! time of one request, and leaves an engine with the match whenever another is idle: in simulations it reused up to
//! 31 % less than a prefix router (`benches/results/engines.md`, *Several engines*).
//!
//! On a tie, the first engine in the caller's list is chosen; the caller rotates the list. A chat stays with the engine
//! of its earlier turns, as long as that is among the candidates. The caller tracks which engines are healthy and how
//! much each has to compute.

use smallvec::SmallVec;

/// Identifies one of the engines behind a gateway, by its index in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u16);

/// An engine that may receive a request. The candidate with the lowest cost is chosen, where cost is its outstanding
/// tokens plus a multiple of the tokens of this request that it has to compute. Chats stay with their engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCandidate {
    /// The id of the engine.
    pub engine: EngineId,
    /// Estimated tokens that the engine has yet to compute for other requests.
    pub outstanding: u64,
}

/// The maximum number of engines of a gateway that have knowledge trees (documents believed to be cached); their ids
/// are below this number.
pub const MAX_ENGINES: u16 = 256;

/// The cost, in half tokens, of computing one token while no request waits at the engines: 2 for the request's own
/// waiting time, and 3 for the cached token that is evicted.
const IDLE_HALVES: u64 = 5;
/// The highest cost, in half tokens, that is assigned to computing one token, however many requests wait at the
/// engines.
const MAX_HALVES: u64 = 12;

/// The cost function by which an engine is chosen for a request; see the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutingCost {
    /// The tokens that the median one of the candidate engines has yet to compute; of an even number, the lower middle
    /// one.
    median_outstanding: u64,
}

impl RoutingCost {
    /// Returns the cost function for a choice among these candidate engines.
    pub(crate) fn among(choices: &[EngineCandidate]) -> Self {
        let loads = choices.iter().map(|choice| choice.outstanding);
        let mut loads: SmallVec<[u64; 8]> = loads.collect();
        loads.sort_unstable();
        let middle = loads.len().saturating_sub(1) / 2;
        Self {
            median_outstanding: loads.get(middle).copied().unwrap_or(0),
        }
    }

    /// Returns the cost, in tokens, of sending a request to an engine. The engine has `outstanding` tokens to compute
    /// before this request, and must compute `uncached` of the request's `documents` document tokens.
    pub(crate) fn of(self, outstanding: u64, uncached: u64, documents: u64) -> u64 {
        let own = uncached.saturating_mul(IDLE_HALVES) / 2;
        let behind = uncached
            .saturating_mul(self.median_outstanding)
            .checked_div(documents)
            .unwrap_or(0);
        let behind = behind.min(uncached.saturating_mul(MAX_HALVES - IDLE_HALVES) / 2);
        outstanding.saturating_add(own).saturating_add(behind)
    }
}

/// Returns the engines to choose from for a request: only `home`, the engine of the chat's earlier turns, if it is in
/// `choices`, otherwise all with an id below [`MAX_ENGINES`], or engine 0 if there are none.
pub(crate) fn choices(
    choices: &[EngineCandidate],
    home: Option<EngineId>,
) -> SmallVec<[EngineCandidate; 4]> {
    let known = (choices.iter()).filter(|choice| choice.engine.0 < MAX_ENGINES);
    let mut known: SmallVec<[EngineCandidate; 4]> = known.copied().collect();
    if let Some(home) = (known.iter())
        .copied()
        .find(|choice| Some(choice.engine) == home)
    {
        known.clear();
        known.push(home);
    }
    if known.is_empty() {
        known.push(EngineCandidate::default());
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among(outstanding: &[u64]) -> RoutingCost {
        let choices = (0..).map(EngineId).zip(outstanding);
        let choices: Vec<EngineCandidate> = choices
            .map(|(engine, &outstanding)| EngineCandidate {
                engine,
                outstanding,
            })
            .collect();
        RoutingCost::among(&choices)
    }

    #[test]
    fn a_computed_token_costs_more_the_more_requests_wait() {
        // With no request waiting, one, two, and very many.
        for (median, halves) in [(0, 5), (1_000, 7), (2_000, 9), (9_000, 12), (u64::MAX, 12)] {
            let cost = among(&[0, median, u64::MAX]);
            assert_eq!(cost.of(70, 1_000, 1_000), 70 + halves * 500, "{median}");
        }
    }

    #[test]
    fn one_busy_engine_makes_nothing_dearer() {
        assert_eq!(among(&[0, 0, 1 << 40]).of(0, 500, 1_000), 1_250);
        assert_eq!(among(&[0, 1 << 40]).of(0, 500, 1_000), 1_250);
    }

    #[test]
    fn a_request_without_documents_costs_the_outstanding_tokens() {
        assert_eq!(among(&[8, 9]).of(8, 0, 0), 8);
        assert_eq!(among(&[]).of(5, 0, 0), 5);
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let cost = among(&[u64::MAX, u64::MAX]);
        assert_eq!(cost.of(u64::MAX, u64::MAX, 1), u64::MAX);
    }
}
