//! The arm in which followers wait for their leader, as with the gateway's `bursts`.

use super::cache::{BoundaryCache, BoundaryUsage, FIRST_TOKEN_MS};
use foreword_ordering::cuts::{CacheRules, Layout, MarkTtl};
use foreword_ordering::{BurstLimits, BurstTicket, Bursts, Entry, Opening, Released};
use fxhash::FxHashMap;
use std::collections::VecDeque;
use std::rc::Rc;

/// A forwarded prompt, with its markers and prices.
pub(super) struct Forwarded {
    pub layout: Rc<Layout>,
    pub marks: Vec<(usize, MarkTtl)>,
    pub rules: CacheRules,
    /// Price of a million plain tokens.
    pub input: f64,
}

impl Forwarded {
    pub(super) fn served(&self, cache: &mut BoundaryCache, now_ms: u64) -> BoundaryUsage {
        cache.serve(&self.layout, &self.marks, &self.rules, now_ms)
    }
}

/// The requests in flight and those held.
pub(super) struct Flights {
    bursts: Bursts<u64>,
    requests: u64,
    held: FxHashMap<u64, (BurstTicket, Forwarded)>,
    /// Times in milliseconds at which responses of requests with a ticket begin, the earliest first.
    beginning: VecDeque<(u64, BurstTicket)>,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self {
            bursts: Bursts::new(BurstLimits::default()),
            requests: 0,
            held: FxHashMap::default(),
            beginning: VecDeque::new(),
        }
    }

    /// Forwards a request that arrives at `now_ms`, or holds it; returns whether it is held. `opening` is `None` for a
    /// request without documents. `bill` is called for each request that is forwarded.
    pub(super) fn arrive(
        &mut self,
        now_ms: u64,
        opening: Option<Opening>,
        request: Forwarded,
        cache: &mut BoundaryCache,
        mut bill: impl FnMut(&Forwarded, BoundaryUsage),
    ) -> bool {
        self.advance(now_ms, cache, &mut bill);
        self.requests += 1;
        let number = self.requests;
        let entry = opening.map(|opening| self.bursts.enter(now_ms, opening, || Some(number)));
        let ticket = match entry {
            Some(Entry::Held(ticket)) => {
                self.held.insert(number, (ticket, request));
                return true;
            }
            Some(Entry::Leads(ticket)) => Some(ticket),
            Some(Entry::Free | Entry::Unheld) | None => None,
        };
        self.forward(now_ms, ticket, &request, cache, &mut bill);
        false
    }

    /// Advances the time to `until_ms`: responses begin, and the requests released by that are forwarded.
    pub(super) fn advance(
        &mut self,
        until_ms: u64,
        cache: &mut BoundaryCache,
        mut bill: impl FnMut(&Forwarded, BoundaryUsage),
    ) {
        while let Some(&(at_ms, ticket)) = self.beginning.front() {
            if at_ms > until_ms {
                return;
            }
            self.beginning.pop_front();
            let mut released = self.bursts.answered(at_ms, ticket);
            released.extend(self.bursts.expire(at_ms));
            for Released { waiter, .. } in released {
                if let Some((ticket, request)) = self.held.remove(&waiter) {
                    self.forward(at_ms, Some(ticket), &request, cache, &mut bill);
                }
            }
        }
    }

    fn forward(
        &mut self,
        now_ms: u64,
        ticket: Option<BurstTicket>,
        request: &Forwarded,
        cache: &mut BoundaryCache,
        mut bill: impl FnMut(&Forwarded, BoundaryUsage),
    ) {
        if let Some(ticket) = ticket {
            // The times of a log may decrease.
            let begins = now_ms.saturating_add(FIRST_TOKEN_MS);
            let at = (self.beginning).partition_point(|(at_ms, _)| *at_ms <= begins);
            self.beginning.insert(at, (begins, ticket));
        }
        bill(request, request.served(cache, now_ms));
    }
}
