//! Fair shares of the device: which tenant is served next.
//!
//! This module implements virtual token counters (Sheng et al., OSDI '24, algorithm 2). Each tenant has a counter of
//! the tokens computed for it, and the tenant with the smallest counter is served next. Of two tenants that both always
//! have requests waiting, one is then served at most two requests' worth of tokens more than the other, however many
//! requests it sends (theorem 4.4 there). Tokens found in the cache cost nothing and are not counted.
//!
//! The counter of a tenant that returns after a pause is lifted, so that staying away earns no claim. The paper lifts
//! it to the smallest counter among the waiting tenants. That starves tenants when a stream of new tenants sends one
//! request each, for instance where every user is a tenant: each newcomer starts at the smallest counter and so keeps
//! it there, and a tenant that was served once more than they were waits for as long as they keep coming. This module
//! therefore lifts counters to the *virtual time* of fair queueing (Demers, Keshav and Shenker, SIGCOMM '89). Virtual
//! time advances with every computed token by the equal share of each waiting tenant, so a tenant that is ahead by some
//! tokens waits until the others had as many each, and no longer.
//!
//! This module knows names and counts, but no requests. Its memory is bounded: of the tenants with nothing waiting it
//! stores the [`REMEMBERED`] with the highest counters. Dropping one with a lower counter favours that tenant by less
//! than it lags behind.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Cost of a generated token, in units of the cost of a prompt token (the paper's weights, which follow common prices).
pub const GENERATED_COST: u64 = 2;

/// Number of tenants without waiting requests whose counters are stored.
pub const REMEMBERED: usize = 1024;

/// For each known tenant, a counter of the cost of the tokens computed for it. The tenant with the smallest one is
/// served next.
#[derive(Debug, Default)]
pub struct Shares {
    tenants: BTreeMap<Arc<str>, Tally>,
    /// Number of known tenants without waiting requests; at most twice [`REMEMBERED`].
    idle: usize,
    /// The virtual time of fair queueing: the counter with which a new or returning tenant starts.
    now: u64,
    /// Cost that has not advanced the virtual time yet: the remainder of dividing costs among the tenants that share.
    rest: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// The tenant's counter: cost of what was computed for it, plus what the counter was lifted by when the tenant
    /// returned after a pause.
    served: u64,
    /// Number of the tenant's waiting requests.
    waiting: u32,
}

impl Shares {
    /// Records that a request of `tenant` has begun to wait.
    pub fn arrive(&mut self, tenant: &Arc<str>) {
        let known = self.tenants.contains_key(tenant);
        let tally = self.tenants.entry(tenant.clone()).or_default();
        if tally.waiting == 0 {
            self.idle -= usize::from(known);
            tally.served = tally.served.max(self.now);
        }
        tally.waiting += 1;
    }

    /// Records that a request of `tenant` waits no longer.
    pub fn leave(&mut self, tenant: &str) {
        let Some(tally) = self.tenants.get_mut(tenant) else {
            return;
        };
        tally.waiting = tally.waiting.saturating_sub(1);
        if tally.waiting == 0 {
            self.idle += 1;
            if self.idle > 2 * REMEMBERED {
                self.forget();
            }
        }
    }

    /// Adds `cost`, the cost of tokens computed for `tenant`, to the tenant's counter. Advances the virtual time by the
    /// cost divided by the number of tenants that have waiting requests, this tenant included.
    pub fn charge(&mut self, tenant: &str, cost: u64) {
        let mut sharing = (self.tenants.len() - self.idle) as u64;
        if let Some(tally) = self.tenants.get_mut(tenant) {
            tally.served = tally.served.saturating_add(cost);
            sharing += u64::from(tally.waiting == 0);
        }
        let sharing = sharing.max(1);
        self.rest = self.rest.saturating_add(cost);
        self.now = self.now.saturating_add(self.rest / sharing);
        self.rest %= sharing;
    }

    /// Returns the tenant's counter: the cost of the tokens computed for it, where a prompt token costs 1 and a
    /// generated token [`GENERATED_COST`], plus what the counter was raised by when the tenant was new or returned
    /// after a pause. For a tenant that is not stored, returns the virtual time, with which its counter would start.
    pub fn served(&self, tenant: &str) -> u64 {
        self.tenants
            .get(tenant)
            .map_or(self.now, |tally| tally.served)
    }

    fn forget(&mut self) {
        let idle = self.tenants.iter().filter(|(_, tally)| tally.waiting == 0);
        let mut served: Vec<(u64, Arc<str>)> = idle
            .map(|(tenant, tally)| (tally.served, tenant.clone()))
            .collect();
        served.sort_unstable();
        served.truncate(served.len().saturating_sub(REMEMBERED));
        for (_, tenant) in &served {
            self.tenants.remove(tenant);
        }
        self.idle -= served.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreword_ordering::random::Random;

    fn name(tenant: u64) -> Arc<str> {
        tenant.to_string().into()
    }

    #[test]
    fn a_tenant_that_comes_back_has_saved_up_nothing() {
        let mut shares = Shares::default();
        let (a, b) = (name(1), name(2));
        shares.arrive(&a);
        shares.charge(&a, 1000);
        shares.arrive(&b);
        assert_eq!(
            shares.served(&b),
            1000,
            "no more claim than the one that was served all the time"
        );
        shares.charge(&b, 10);
        shares.leave(&b);
        shares.leave(&a);
        shares.arrive(&b);
        assert_eq!(shares.served(&b), 1010, "nor less than it had");
        shares.leave(&b);
        assert_eq!(shares.served("3"), 1005, "two shared the ten");
    }

    #[test]
    fn whoever_was_served_once_more_is_not_starved_by_those_who_come_once() {
        const OTHERS: u64 = 7;
        const COST: u64 = 100;
        let mut shares = Shares::default();
        let first = name(0);
        shares.arrive(&first);
        let mut waiting: Vec<Arc<str>> = (1..=OTHERS).map(name).collect();
        for tenant in &waiting {
            shares.arrive(tenant);
        }
        // The first tenant was served and waits again. Whenever another is served, a new tenant arrives.
        shares.charge(&first, COST);
        let mut overtaken = 0;
        while waiting
            .iter()
            .any(|tenant| shares.served(tenant) < shares.served(&first))
        {
            let least = |at: &usize| shares.served(&waiting[*at]);
            let next = (0..waiting.len()).min_by_key(least).unwrap();
            let next = waiting.remove(next);
            shares.charge(&next, COST);
            shares.leave(&next);
            waiting.push(name(OTHERS + 1 + overtaken));
            shares.arrive(&waiting[waiting.len() - 1]);
            overtaken += 1;
            assert!(overtaken < 1000, "it is starved");
        }
        assert!((OTHERS..=2 * OTHERS).contains(&overtaken), "{overtaken}");
    }

    #[test]
    fn those_that_wait_stay_within_two_requests_of_each_other() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut shares = Shares::default();
            let tenants: Vec<Arc<str>> = (0..2 + random.below(4)).map(name).collect();
            // Every tenant has more requests waiting than are served in the whole test.
            for tenant in &tenants {
                shares.arrive(tenant);
            }
            const LARGEST: u64 = 100;
            for _ in 0..500 {
                let next = tenants
                    .iter()
                    .min_by_key(|tenant| shares.served(tenant))
                    .unwrap();
                shares.charge(next, 1 + random.below(LARGEST));
                let served = tenants.iter().map(|tenant| shares.served(tenant));
                let (least, most) = (served.clone().min().unwrap(), served.max().unwrap());
                assert!(most - least <= LARGEST, "{least} and {most}");
            }
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_loses_no_one_that_waits() {
        let mut shares = Shares::default();
        let waiting = name(0);
        shares.arrive(&waiting);
        for tenant in 1..10 * REMEMBERED as u64 {
            let tenant = name(tenant);
            shares.arrive(&tenant);
            shares.charge(&tenant, 1);
            shares.leave(&tenant);
            assert!(shares.tenants.len() <= 2 * REMEMBERED + 1);
            let idle = shares.tenants.values().filter(|tally| tally.waiting == 0);
            assert_eq!(idle.count(), shares.idle);
        }
        shares.charge(&waiting, 5);
        assert_eq!(shares.served(&waiting), 5);
    }
}
