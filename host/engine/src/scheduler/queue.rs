//! The queue of waiting requests and the order in which it proposes them for admission.
//!
//! ```text
//!   put_back ──▶ returned      preempted requests, oldest first                    ┐
//!   push ──────▶ lane "a"      in order of arrival ── rule: which request? ────┐  ├──▶ head: tickets, next first
//!                lane "b"      in order of arrival ── rule                     ├──┘
//!                  …                                  shares: which tenant? ───┘
//! ```
//!
//! [`Shares`] decides between tenants, and the core's [`Rule`] decides within one tenant. The rule's starvation window
//! therefore counts requests of one tenant: no request is overtaken by more later requests of its tenant than the
//! window allows.
//!
//! A rule ranks requests by how much of each prompt is cached. That amount changes with every step, and looking up a
//! thousand prompts in every step would cost more than the step. So each entry remembers the result of its last lookup.
//! [`Queue::sweep`] looks up a few entries a step, one after another, and [`Queue::head`] looks up each request that it
//! is about to propose. A request is thus admitted for what is cached now, and ranked by what was cached at most a few
//! dozen steps ago.

use super::Rule;
use super::order::{self, Queued};
use super::shares::{GENERATED_COST, Shares};
use foreword_ordering::document::Fingerprint;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The queue of waiting requests; each carries a `T` that the queue stores for its caller.
pub struct Queue<T> {
    rule: Rule,
    /// Requests that were put back, in the order in which they resume.
    returned: VecDeque<T>,
    /// Waiting requests by tenant, each lane in order of arrival; no lane is empty.
    lanes: BTreeMap<Arc<str>, VecDeque<Waiter<T>>>,
    shares: Shares,
    /// Requests in all lanes together.
    arrived: usize,
    /// Requests that ever arrived; the next one's arrival number follows from it.
    arrivals: u64,
    /// The tenant and the arrival number after which the next sweep begins.
    swept: (Arc<str>, u64),
}

/// What the queue needs to know about a request to rank it.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The tenant that sent the request.
    pub tenant: Arc<str>,
    /// Tokens in the request's prompt.
    pub tokens: u32,
    /// The documents that the prompt opens with, each with the token index after its last token.
    pub documents: Box<[(Fingerprint, u32)]>,
}

struct Waiter<T> {
    arrival: u64,
    /// Boxed, so that a lane's entries lie close together in memory: ranking reads all of them.
    item: Box<T>,
    tokens: u32,
    path: Box<[Fingerprint]>,
    ends: Box<[u32]>,
    /// Tokens found in the cache by the last lookup.
    cached: u32,
    /// How many later requests of the same tenant were taken before this one.
    overtaken: u32,
}

/// Names a request in the queue until the queue changes. Take the tickets of one [`Queue::head`] in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket(QueuePosition);

#[derive(Clone, Debug, PartialEq, Eq)]
enum QueuePosition {
    /// The first of the requests that were put back, once those before it have been taken.
    Returned,
    Arrived {
        tenant: Arc<str>,
        arrival: u64,
    },
}

/// How often [`Queue::head`] may rank a tenant's requests in one call, because the cache lost what the first was ranked
/// by.
const RANKINGS: u32 = 4;

impl<T> Queue<T> {
    /// Returns an empty queue that ranks each tenant's requests by `rule`.
    pub fn new(rule: Rule) -> Self {
        Self {
            rule,
            returned: VecDeque::new(),
            lanes: BTreeMap::new(),
            shares: Shares::default(),
            arrived: 0,
            arrivals: 0,
            swept: (Arc::default(), 0),
        }
    }

    /// Returns the number of waiting requests, those that were put back included.
    pub fn len(&self) -> usize {
        self.returned.len() + self.arrived
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a newly arrived request at the end of its tenant's lane.
    pub fn push(&mut self, entry: Entry, item: T) {
        self.shares.arrive(&entry.tenant);
        self.arrivals += 1;
        self.arrived += 1;
        let (path, ends) = entry
            .documents
            .iter()
            .copied()
            .unzip::<_, _, Vec<_>, Vec<_>>();
        self.lanes
            .entry(entry.tenant)
            .or_default()
            .push_back(Waiter {
                arrival: self.arrivals,
                item: Box::new(item),
                tokens: entry.tokens,
                path: path.into(),
                ends: ends.into(),
                cached: 0,
                overtaken: 0,
            });
    }

    /// Puts a request that was taken back at the head of the queue, before all others.
    pub fn put_back(&mut self, item: T) {
        self.returned.push_front(item);
    }

    /// Charges the tenant for `tokens` prompt tokens that are about to be computed.
    pub fn charge_prompt(&mut self, tenant: &str, tokens: u32) {
        self.shares.charge(tenant, u64::from(tokens));
    }

    /// Charges the tenant for one generated token.
    pub fn charge_token(&mut self, tenant: &str) {
        self.shares.charge(tenant, GENERATED_COST);
    }

    /// Returns tickets for up to `most` requests in the order of admission, those that were put back first.
    ///
    /// `look` returns how many tokens of a request are cached, and a detail that is returned with its ticket. `more`
    /// decides after each ticket whether to go on. Costs `O(waiting + most · log waiting)`, and hardly more than one
    /// look a ticket.
    pub fn head<D>(
        &mut self,
        most: usize,
        mut look: impl FnMut(&T) -> (u32, D),
        mut more: impl FnMut(&D) -> bool,
    ) -> Vec<(Ticket, D)> {
        let mut tickets = Vec::new();
        for item in self.returned.iter().take(most) {
            let (_, detail) = look(item);
            let more = more(&detail);
            tickets.push((Ticket(QueuePosition::Returned), detail));
            if !more {
                return tickets;
            }
        }
        if tickets.len() == most {
            return tickets;
        }
        // The lane with the smallest counter is on top. The counters are copies, which grow here as tickets are given
        // out.
        let mut turns: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
        let mut lanes: Vec<Lane<'_, T>> = Vec::new();
        for (tenant, waiting) in &mut self.lanes {
            let oldest = waiting.front().map_or(0, |waiter| waiter.arrival);
            turns.push(Reverse((self.shares.served(tenant), oldest, lanes.len())));
            lanes.push(Lane {
                tenant,
                waiting,
                order: Vec::new(),
                next: 0,
            });
        }
        while tickets.len() < most
            && let Some(Reverse((served, oldest, at))) = turns.pop()
        {
            let lane = &mut lanes[at];
            let Some((arrival, computed, detail)) = lane.next(self.rule, most, &mut look) else {
                continue;
            };
            let more = more(&detail);
            let tenant = lane.tenant.clone();
            tickets.push((Ticket(QueuePosition::Arrived { tenant, arrival }), detail));
            if !more {
                break;
            }
            turns.push(Reverse((served + u64::from(computed), oldest, at)));
        }
        tickets
    }

    /// Returns the request with this ticket, or `None` if it has left the queue.
    pub fn get(&self, Ticket(place): &Ticket) -> Option<&T> {
        match place {
            QueuePosition::Returned => self.returned.front(),
            QueuePosition::Arrived { tenant, arrival } => {
                let lane = self.lanes.get(tenant)?;
                let at = position(lane, *arrival)?;
                lane.get(at).map(|waiter| &*waiter.item)
            }
        }
    }

    /// Removes the request with this ticket for admission and counts it as having overtaken the earlier ones of its
    /// tenant.
    pub fn take(&mut self, Ticket(place): &Ticket) -> Option<T> {
        match place {
            QueuePosition::Returned => self.returned.pop_front(),
            QueuePosition::Arrived { tenant, arrival } => {
                let lane = self.lanes.get_mut(tenant)?;
                let at = position(lane, *arrival)?;
                for earlier in lane.range_mut(..at) {
                    earlier.overtaken += 1;
                }
                let waiter = lane.remove(at)?;
                self.left(tenant, 1);
                Some(*waiter.item)
            }
        }
    }

    /// Looks up the next `most` arrived requests and remembers how many tokens `look` finds cached. Successive calls go
    /// round the lanes, so `len / most` calls look at each request once. Where `look` returns `None`, the remembered
    /// number stays. Requests that were put back are skipped.
    pub fn sweep(&mut self, most: usize, mut look: impl FnMut(&mut T) -> Option<u32>) {
        for _ in 0..most.min(self.arrived) {
            let (tenant, after) = &self.swept;
            let here = self.lanes.get(tenant).and_then(|lane| {
                let at = lane.partition_point(|waiter| waiter.arrival <= *after);
                (at < lane.len()).then(|| (tenant.clone(), at))
            });
            let next = || {
                let later = (Bound::Excluded(tenant.clone()), Bound::Unbounded);
                let mut lanes = self.lanes.range(later).chain(&self.lanes);
                lanes.next().map(|(tenant, _)| (tenant.clone(), 0))
            };
            let Some((tenant, at)) = here.or_else(next) else {
                return;
            };
            let lane = self.lanes.get_mut(&tenant);
            if let Some(waiter) = lane.and_then(|lane| lane.get_mut(at)) {
                waiter.cached = look(&mut waiter.item).unwrap_or(waiter.cached);
                self.swept = (tenant, waiter.arrival);
            }
        }
    }

    /// Removes and returns all requests for which `gone` is true, in no particular order. Costs `O(waiting)`.
    pub fn extract(&mut self, mut gone: impl FnMut(&T) -> bool) -> Vec<T> {
        let (out, kept) = std::mem::take(&mut self.returned)
            .into_iter()
            .partition(|item| gone(item));
        self.returned = kept;
        let mut out: Vec<T> = Vec::from(out);
        let mut left: Vec<(Arc<str>, u32)> = Vec::new();
        for (tenant, lane) in &mut self.lanes {
            if !lane.iter().any(|waiter| gone(&waiter.item)) {
                continue;
            }
            let before = lane.len();
            let (leaving, staying): (VecDeque<_>, _) = std::mem::take(lane)
                .into_iter()
                .partition(|waiter| gone(&waiter.item));
            *lane = staying;
            out.extend(leaving.into_iter().map(|waiter| *waiter.item));
            left.push((tenant.clone(), (before - lane.len()) as u32));
        }
        for (tenant, count) in left {
            self.left(&tenant, count);
        }
        out
    }

    /// Iterates over all waiting requests: those that were put back first, then the others by arrival.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let mut arrived: Vec<&Waiter<T>> = self.lanes.values().flatten().collect();
        arrived.sort_unstable_by_key(|waiter| waiter.arrival);
        self.returned
            .iter()
            .chain(arrived.into_iter().map(|waiter| &*waiter.item))
    }

    /// Iterates over all waiting requests, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let arrived = self.lanes.values_mut().flatten();
        self.returned
            .iter_mut()
            .chain(arrived.map(|waiter| &mut *waiter.item))
    }

    /// Returns a request for which `found` is true, if there is one.
    pub fn find_mut(&mut self, mut found: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.iter_mut().find(|item| found(item))
    }

    /// Accounts for `count` requests that have left this tenant's lane.
    fn left(&mut self, tenant: &Arc<str>, count: u32) {
        self.arrived -= count as usize;
        for _ in 0..count {
            self.shares.leave(tenant);
        }
        if self.lanes.get(tenant).is_some_and(VecDeque::is_empty) {
            self.lanes.remove(tenant);
        }
    }
}

/// A tenant's lane while [`Queue::head`] gives out tickets.
struct Lane<'q, T> {
    tenant: &'q Arc<str>,
    waiting: &'q mut VecDeque<Waiter<T>>,
    /// Positions in `waiting` in the rule's order; empty until the lane has been ranked.
    order: Vec<usize>,
    /// How many entries of `order` already have a ticket.
    next: usize,
}

impl<T> Lane<'_, T> {
    /// Returns the lane's next request: its arrival number, the tokens to compute, and the detail that `look` returned.
    ///
    /// If the first request has lost cached tokens since it was ranked, the whole lane is ranked again, at most
    /// [`RANKINGS`] times. Later requests, whose ranks follow from those before them, keep their ranks until the next
    /// step.
    fn next<D>(
        &mut self,
        rule: Rule,
        most: usize,
        look: &mut impl FnMut(&T) -> (u32, D),
    ) -> Option<(u64, u32, D)> {
        let mut rankings = 0;
        loop {
            if self.order.is_empty() {
                self.order = ranked(self.waiting, rule, most);
                rankings += 1;
            }
            let at = *self.order.get(self.next)?;
            let waiter = self.waiting.get_mut(at)?;
            let (cached, detail) = look(&waiter.item);
            let lost = cached < std::mem::replace(&mut waiter.cached, cached);
            if lost && self.next == 0 && rankings < RANKINGS && rule != Rule::Arrival {
                self.order.clear();
                continue;
            }
            self.next += 1;
            let computed = waiter.tokens.saturating_sub(cached);
            return Some((waiter.arrival, computed, detail));
        }
    }
}

/// Returns the positions of the first `most` requests of `waiting` in the order of `rule`.
fn ranked<T>(waiting: &VecDeque<Waiter<T>>, rule: Rule, most: usize) -> Vec<usize> {
    if rule == Rule::Arrival {
        return (0..waiting.len().min(most)).collect();
    }
    let queue: Vec<Queued<'_>> = waiting
        .iter()
        .map(|waiter| Queued {
            path: match rule {
                Rule::PathGroups => waiter.live_path(),
                Rule::Arrival | Rule::CachedFirst { .. } => &[],
            },
            cached_tokens: u64::from(waiter.cached),
            computed_tokens: u64::from(waiter.tokens.saturating_sub(waiter.cached)),
            overtaken: waiter.overtaken,
        })
        .collect();
    order::first(&queue, rule, most)
}

impl<T> Waiter<T> {
    /// Returns the leading documents of the prompt that are cached to their last token.
    fn live_path(&self) -> &[Fingerprint] {
        let live = self.ends.partition_point(|&end| end <= self.cached);
        self.path.get(..live).unwrap_or_default()
    }
}

fn position<T>(lane: &VecDeque<Waiter<T>>, arrival: u64) -> Option<usize> {
    lane.binary_search_by_key(&arrival, |waiter| waiter.arrival)
        .ok()
}

#[cfg(test)]
mod tests;
