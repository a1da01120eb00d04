//! Admission to the waiting room: how many requests may wait, in all and of one tenant, and when there will be room
//! again.
//!
//! This module knows names and times, but no requests. A request holds a [`WaitingSlot`] from its submission until it
//! first runs or ends. A preempted request has been admitted already and needs none.

use super::{EngineConfig, Kind, PrefillBatch, SubmitError};
use crate::cache::Cost;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) struct Admission {
    /// The counts of waiting requests. They are consistent after each line that changes them, so a panic under the lock
    /// does no harm.
    counts: Mutex<WaitingCounts>,
    max_waiting: u32,
    max_waiting_per_tenant: u32,
    max_prefill: Limit,
}

/// A maximum of waiting work.
#[derive(Clone, Copy)]
enum Limit {
    Requests(u32),
    Tokens(u64),
}

#[derive(Default)]
struct WaitingCounts {
    waiting: u32,
    /// Number of tokens in the prompts of the waiting requests.
    tokens: u64,
    /// Number of waiting requests by tenant; a tenant with none has no entry.
    tenants: HashMap<Arc<str>, u32>,
    /// Number of speculative requests ([`Kind::Prefill`]) refused so far because too many requests waited.
    refused_guesses: u64,
    /// Times at which the most recent requests began to run, oldest first; at most [`PACE`] of them.
    left: VecDeque<Instant>,
}

/// A request's place among the waiting requests whose number is limited; freed when dropped.
pub(super) struct WaitingSlot {
    admission: Arc<Admission>,
    tenant: Arc<str>,
    /// Number of tokens in the request's prompt.
    tokens: u64,
}

/// Number of recent starts of requests from which the rate at which waiting requests begin to run is estimated.
const PACE: usize = 32;

/// The suggested wait before a retry ([`SubmitError`]'s `retry_after`) while no request of this engine has begun to
/// run.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);

/// The maximum suggested wait before a retry: longer estimates are too uncertain.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Admission {
    /// Returns an empty waiting room, whose limits are those of `config`, for a device whose pool of pages holds
    /// `pool_tokens` tokens.
    pub(super) fn new(config: &EngineConfig, pool_tokens: u64) -> Arc<Self> {
        let max_prefill = match config.max_prefill_batch {
            PrefillBatch::Requests(requests) => Limit::Requests(requests),
            PrefillBatch::Derived => {
                let step = config.max_step_tokens.max(1);
                let cost = config.cache.cost.as_deref();
                let full = cost.map_or(step, |cost| fully_used(cost, step));
                Limit::Tokens(pool_tokens.min(full.into()))
            }
        };
        Arc::new(Self {
            counts: Mutex::default(),
            max_waiting: config.max_waiting.max(1),
            max_waiting_per_tenant: config.max_waiting_per_tenant.max(1),
            max_prefill,
        })
    }

    /// Returns whether a [`Kind::Prefill`] request would be accepted now. Each `false` counts among the speculative
    /// requests refused so far.
    pub(super) fn takes_guesses(&self) -> bool {
        let mut counts = self.counts.lock();
        let takes = counts.are_below(self.max_prefill);
        counts.refused_guesses += u64::from(!takes);
        takes
    }

    /// Returns the maximum number of requests that one tenant can have waiting at once, by both limits.
    pub(super) fn most_waiting(&self) -> u32 {
        self.max_waiting.min(self.max_waiting_per_tenant)
    }

    /// Takes a place among the waiting requests for a request of `tenant` with a prompt of `tokens` tokens, which
    /// arrives at `now`.
    ///
    /// # Errors
    /// Fails when `max_waiting` requests of all tenants wait, or `max_waiting_per_tenant` of this tenant, or, for a
    /// [`Kind::Prefill`], `max_prefill_batch` of all tenants.
    pub(super) fn enter(
        self: &Arc<Self>,
        tenant: &Arc<str>,
        kind: Kind,
        tokens: u64,
        now: Instant,
    ) -> Result<WaitingSlot, SubmitError> {
        let mut counts = self.counts.lock();
        if kind == Kind::Prefill && !counts.are_below(self.max_prefill) {
            counts.refused_guesses += 1;
            return Err(SubmitError::Busy {
                waiting: counts.waiting,
            });
        }
        if counts.waiting >= self.max_waiting {
            return Err(SubmitError::QueueFull {
                limit: self.max_waiting,
                retry_after: counts.wait(self.max_waiting, now),
            });
        }
        let own = counts.tenants.get(tenant).copied().unwrap_or(0);
        if own >= self.max_waiting_per_tenant {
            return Err(SubmitError::TenantQueueFull {
                limit: self.max_waiting_per_tenant,
                retry_after: counts.wait(self.max_waiting_per_tenant, now),
            });
        }
        counts.waiting += 1;
        counts.tokens += tokens;
        counts.tenants.insert(tenant.clone(), own + 1);
        Ok(WaitingSlot {
            admission: self.clone(),
            tenant: tenant.clone(),
            tokens,
        })
    }

    /// Returns the number of speculative requests ([`Kind::Prefill`]) refused so far because too many requests waited.
    pub(super) fn refused_guesses(&self) -> u64 {
        self.counts.lock().refused_guesses
    }
}

/// Returns the smallest number of tokens that uses a device fully, a power of two or `most`: computed together, each
/// takes at most 10 % longer than in the best number up to `most`. `cost` returns the seconds to compute new tokens
/// after cached ones.
fn fully_used(cost: &Cost, most: u32) -> u32 {
    let mut numbers: Vec<u32> = (0..32).map(|power| 1 << power).collect();
    numbers.retain(|number| *number < most);
    numbers.push(most);
    let each = |number: u32| cost(0, number) / f64::from(number);
    let best = numbers
        .iter()
        .map(|&number| each(number))
        .fold(f64::INFINITY, f64::min);
    let full = numbers
        .into_iter()
        .find(|&number| each(number) <= 1.1 * best);
    full.unwrap_or(most)
}

impl WaitingCounts {
    fn are_below(&self, limit: Limit) -> bool {
        match limit {
            Limit::Requests(requests) => self.waiting < requests,
            Limit::Tokens(tokens) => self.tokens < tokens,
        }
    }

    /// Returns the expected time until half of `full` waiting requests have begun to run, at the recent pace. If it
    /// were the time until the first has, all refused clients would return for that one place.
    fn wait(&self, full: u32, now: Instant) -> Duration {
        let Some(oldest) = self.left.front() else {
            return UNKNOWN_WAIT;
        };
        let each = now.duration_since(*oldest) / self.left.len() as u32;
        each.saturating_mul(full.div_ceil(2)).min(LONGEST_WAIT)
    }
}

impl WaitingSlot {
    /// Records that the request began to run at `now`, and frees its place among the waiting requests.
    pub(super) fn leave(self, now: Instant) {
        let mut counts = self.admission.counts.lock();
        if counts.left.len() == PACE {
            counts.left.pop_front();
        }
        counts.left.push_back(now);
    }
}

impl Drop for WaitingSlot {
    fn drop(&mut self) {
        let mut counts = self.admission.counts.lock();
        counts.waiting -= 1;
        counts.tokens -= self.tokens;
        if let Some(own) = counts.tenants.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                counts.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Arc<Admission> {
        let config = EngineConfig {
            max_waiting: 4,
            max_waiting_per_tenant: 2,
            max_prefill_batch: PrefillBatch::Requests(1),
            ..EngineConfig::default()
        };
        Admission::new(&config, u64::MAX)
    }

    #[test]
    fn a_derived_batch_has_the_tokens_that_use_the_device_or_fit_into_it() {
        // Each step takes 50 ms and then 1 ms for each token, so 512 tokens take 1.1 ms each.
        let cost = |_: u32, new: u32| 0.05 + 0.001 * f64::from(new);
        assert_eq!(fully_used(&cost, 8_192), 512);
        assert_eq!(fully_used(&cost, 300), 256);
        assert_eq!(fully_used(&cost, 1), 1);
        let mut config = EngineConfig {
            max_prefill_batch: PrefillBatch::Derived,
            max_step_tokens: 8_192,
            ..EngineConfig::default()
        };
        config.cache.cost = Some(Arc::new(cost));
        let now = Instant::now();
        for (pool, full) in [(10_000, 512), (400, 400)] {
            let admission = Admission::new(&config, pool);
            let enter = |kind, tokens| admission.enter(&"a".into(), kind, tokens, now);
            let first = enter(Kind::Answer, full - 1);
            assert!(admission.takes_guesses() && enter(Kind::Prefill, 9_999).is_ok());
            let second = enter(Kind::Answer, 1);
            assert!(!admission.takes_guesses());
            assert!(matches!(
                enter(Kind::Prefill, 1),
                Err(SubmitError::Busy { waiting: 2 })
            ));
            drop((first, second));
            assert!(admission.takes_guesses());
        }
    }

    #[test]
    fn the_room_is_bounded_and_so_is_each_tenants_part_of_it() {
        let (admission, now) = (admission(), Instant::now());
        let enter = |tenant: &str| admission.enter(&tenant.into(), Kind::Answer, 10, now);
        let first = enter("a").ok();
        let _second = enter("a").ok();
        assert!(matches!(
            enter("a"),
            Err(SubmitError::TenantQueueFull { limit: 2, .. })
        ));
        let _others = [enter("b").ok(), enter("b").ok()];
        assert!(matches!(
            enter("c"),
            Err(SubmitError::QueueFull { limit: 4, .. })
        ));
        drop(first);
        assert!(enter("a").is_ok());
        assert!(enter("c").is_ok(), "the last one was dropped at once");
        assert_eq!(admission.counts.lock().tenants.len(), 2);
    }

    #[test]
    fn speculative_work_enters_an_empty_room_only() {
        let (admission, now) = (admission(), Instant::now());
        let guess = admission.enter(&"a".into(), Kind::Prefill, 10, now).ok();
        assert!(matches!(
            admission.enter(&"a".into(), Kind::Prefill, 10, now),
            Err(SubmitError::Busy { waiting: 1 })
        ));
        assert_eq!(admission.refused_guesses(), 1);
        assert!(admission.enter(&"a".into(), Kind::Answer, 10, now).is_ok());
        drop(guess);
        assert!(admission.enter(&"a".into(), Kind::Prefill, 10, now).is_ok());
    }

    #[test]
    fn whoever_is_refused_hears_how_long_half_the_queue_takes() {
        let (admission, start) = (admission(), Instant::now());
        let wait = |now: Instant| {
            let places: Vec<WaitingSlot> = ["a", "a", "b", "b"]
                .iter()
                .filter_map(|&tenant| admission.enter(&tenant.into(), Kind::Answer, 10, now).ok())
                .collect();
            let error = admission.enter(&"c".into(), Kind::Answer, 10, now).err();
            drop(places);
            match error {
                Some(SubmitError::QueueFull { retry_after, .. }) => retry_after,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(wait(start), UNKNOWN_WAIT);
        for second in 0..10 {
            let now = start + Duration::from_secs(3 * second);
            let place = admission.enter(&"a".into(), Kind::Answer, 10, now).ok();
            place.unwrap().leave(now);
        }
        // Ten leave in thirty seconds, so two places take six.
        let now = start + Duration::from_secs(30);
        assert_eq!(wait(now), Duration::from_secs(6));
        assert_eq!(wait(now + Duration::from_secs(9999)), LONGEST_WAIT);
    }
}
