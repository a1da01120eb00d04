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
//! A rule ranks requests by the cached part of each prompt. That part changes with every step, and looking up a
//! thousand prompts in every step would cost more than the step. So each entry stores the result of its last lookup.
//! [`Queue::sweep`] looks up a few entries a step, one after another, and [`Queue::head`] looks up each request that it
//! is about to propose. A request is thus admitted by its present cached prefix, and ranked by one that is at most a
//! few dozen steps old.
//!
//! Tenants come first because they share no pages: an order across them gains nothing.

use super::Rule;
use super::order::{self, Queued};
use super::shares::{GENERATED_COST, Shares};
use foreword_ordering::document::Fingerprint;
use fxhash::{FxHashMap, FxHashSet, FxHasher};
use std::cmp::Reverse;
use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;

/// The queue of waiting requests of all tenants, in two parts: requests that were put back, and newly arrived ones.
/// With each request, the queue stores a `T` for its caller.
pub struct Queue<T> {
    rule: Rule,
    /// Requests that were put back after they had run, in the order in which they are admitted again.
    returned: VecDeque<T>,
    /// Newly arrived requests by tenant, those of each tenant in order of arrival; a tenant without any has no entry.
    lanes: BTreeMap<Arc<str>, Lane<T>>,
    shares: Shares,
    /// Number of newly arrived requests that wait now, of all tenants.
    arrived: usize,
    /// Number of requests that ever arrived; each gets this as its arrival number.
    arrivals: u64,
    /// The tenant and the arrival number of the request that [`Queue::sweep`] looked at last.
    swept: (Arc<str>, u64),
}

/// The properties of a request by which the queue ranks it.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The tenant that sent the request.
    pub tenant: Arc<str>,
    /// Number of tokens in the request's prompt.
    pub tokens: u32,
    /// The documents with which the prompt begins, in order, each with the token index after its last token.
    pub documents: Box<[(Fingerprint, u32)]>,
}

/// The waiting requests of one tenant that have newly arrived, in order of arrival.
struct Lane<T> {
    waiting: VecDeque<Waiter<T>>,
    /// For each beginning of a list of documents, the number of waiting requests whose prompts begin with these
    /// documents; used for [`Rule::Grouped`] only.
    opening_with: FxHashMap<PrefixHash, u32>,
    recent: RecentPrefixes,
}

/// The lists of documents with which the most recently admitted requests of a tenant begin. They are cached by now, or
/// will be after this step, but most waiting requests were looked up before that. So a request that begins with one is
/// ranked as if it were cached, until a lookup shows that it is not. Without this, requests with the same documents
/// would gain their rank only when [`Queue::sweep`] reaches them. Used for [`Rule::Grouped`] only.
#[derive(Default)]
struct RecentPrefixes {
    known: FxHashSet<PrefixHash>,
    /// The hashes in `known`, oldest first.
    listed: VecDeque<PrefixHash>,
}

impl RecentPrefixes {
    fn add(&mut self, prefix: PrefixHash) {
        if self.known.insert(prefix) {
            self.listed.push_back(prefix);
        }
        while self.listed.len() > MAX_RECENT_PREFIXES {
            if let Some(oldest) = self.listed.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }

    /// Removes a list of documents that turned out not to be cached any more.
    fn forget(&mut self, prefix: PrefixHash) {
        if self.known.remove(&prefix) {
            self.listed.retain(|listed| *listed != prefix);
        }
    }

    /// Returns the number of leading tokens of a request that are presumably cached: by its last lookup, or because it
    /// begins with the documents of a recently admitted request.
    fn cached<T>(&self, waiter: &Waiter<T>) -> u32 {
        let mut prefixes = waiter.prefixes.iter().rev();
        let begun = prefixes.find(|(prefix, _)| self.known.contains(prefix));
        let end = begun.map_or(0, |(_, end)| *end);
        end.max(waiter.cached).min(waiter.tokens.saturating_sub(1))
    }
}

/// Maximum number of document lists in one [`RecentPrefixes`]: those of about a dozen requests. With 4,096, a small
/// cache has evicted most of them, and the corrections use up the [`RANKINGS`] of a step.
const MAX_RECENT_PREFIXES: usize = 64;

/// Hash of the first documents of a prompt, in order. A collision leads to a wrong rank and has no other effect.
type PrefixHash = u64;

struct Waiter<T> {
    arrival: u64,
    /// The caller's value. Boxed, so that the requests of a tenant are close together in memory: ranking reads all of
    /// them.
    item: Box<T>,
    tokens: u32,
    /// For each beginning of the prompt's list of documents, its hash and the token index after its last document.
    prefixes: Box<[(PrefixHash, u32)]>,
    /// Number of leading tokens found in the cache by the last lookup; 0 before the first.
    cached: u32,
    /// Number of later requests of the same tenant that were taken from the queue before this one.
    overtaken: u32,
}

/// Identifies a request in the queue until the queue changes. Take the requests of one [`Queue::head`] in its order.
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

/// Maximum number of times that one tenant's requests are ranked in one call of [`Queue::head`]. They are ranked again
/// when the cached prefix of the first one turns out to be evicted.
const RANKINGS: u32 = 4;

impl<T> Queue<T> {
    /// Returns an empty queue that orders each tenant's requests by `rule`.
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

    /// Returns the number of waiting requests: newly arrived ones and those that were put back.
    pub fn len(&self) -> usize {
        self.returned.len() + self.arrived
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a newly arrived request behind its tenant's other waiting requests.
    pub fn push(&mut self, entry: Entry, item: T) {
        self.shares.arrive(&entry.tenant);
        self.arrivals += 1;
        self.arrived += 1;
        let grouped = matches!(self.rule, Rule::Grouped { .. });
        let mut hash: PrefixHash = 0;
        let prefixes = entry
            .documents
            .iter()
            .filter(|_| grouped)
            .map(|(document, end)| {
                hash = extended(hash, *document);
                (hash, *end)
            });
        let waiter = Waiter {
            arrival: self.arrivals,
            item: Box::new(item),
            tokens: entry.tokens,
            prefixes: prefixes.collect(),
            cached: 0,
            overtaken: 0,
        };
        self.lanes.entry(entry.tenant).or_default().push(waiter);
    }

    /// Puts a request back that was taken from the queue. It comes before all others.
    pub fn put_back(&mut self, item: T) {
        self.returned.push_front(item);
    }

    /// Charges the tenant for `tokens` prompt tokens that are about to be computed, so that its next requests come
    /// later.
    pub fn charge_prompt(&mut self, tenant: &str, tokens: u32) {
        self.shares.charge(tenant, u64::from(tokens));
    }

    /// Charges the tenant for one generated token, so that its next requests come later.
    pub fn charge_token(&mut self, tenant: &str) {
        self.shares.charge(tenant, GENERATED_COST);
    }

    /// Returns tickets, which identify requests in the queue, for up to `most` requests in the order of admission,
    /// beginning with those that were put back.
    ///
    /// `room` returns how many newly arrived requests of a tenant may be admitted now. `look` returns the number of a
    /// request's tokens that are cached, and a detail that is returned with its ticket. `more` decides after each ticket
    /// whether to continue. Costs `O(waiting + most · log waiting)`, one call of `room` per tenant and about one of
    /// `look` per ticket.
    pub fn head<D>(
        &mut self,
        most: usize,
        room: impl Fn(&str) -> u32,
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
        // The lane with the smallest counter is on top. The counters are copies, which grow here as tickets are
        // created.
        let mut turns: BinaryHeap<Reverse<(u64, u64, usize)>> = BinaryHeap::new();
        let mut lanes: Vec<RankedLane<'_, T>> = Vec::new();
        for (tenant, lane) in &mut self.lanes {
            let oldest = lane.waiting.front().map_or(0, |waiter| waiter.arrival);
            turns.push(Reverse((self.shares.served(tenant), oldest, lanes.len())));
            lanes.push(RankedLane {
                tenant,
                lane,
                room: room(tenant),
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

    /// Returns the request that this ticket identifies, or `None` if it has left the queue.
    pub fn get(&self, Ticket(place): &Ticket) -> Option<&T> {
        match place {
            QueuePosition::Returned => self.returned.front(),
            QueuePosition::Arrived { tenant, arrival } => {
                let lane = self.lanes.get(tenant)?;
                let at = lane.position(*arrival)?;
                lane.waiting.get(at).map(|waiter| &*waiter.item)
            }
        }
    }

    /// Removes and returns the request that this ticket identifies; the earlier requests of its tenant count as
    /// overtaken by it. Returns `None` if it has left the queue.
    pub fn take(&mut self, Ticket(place): &Ticket) -> Option<T> {
        match place {
            QueuePosition::Returned => self.returned.pop_front(),
            QueuePosition::Arrived { tenant, arrival } => {
                let lane = self.lanes.get_mut(tenant)?;
                let at = lane.position(*arrival)?;
                for earlier in lane.waiting.range_mut(..at) {
                    earlier.overtaken += 1;
                }
                let waiter = lane.remove(at)?;
                for (prefix, _) in &waiter.prefixes {
                    lane.recent.add(*prefix);
                }
                self.left(tenant, 1);
                Some(*waiter.item)
            }
        }
    }

    /// Calls `look` for the next `most` newly arrived requests, and stores the number of cached tokens that it returns;
    /// for `None`, keeps the stored number. Successive calls visit the tenants in turn, so `len / most` calls look at
    /// each request once. Requests that were put back are skipped.
    pub fn sweep(&mut self, most: usize, mut look: impl FnMut(&mut T) -> Option<u32>) {
        for _ in 0..most.min(self.arrived) {
            let (tenant, after) = &self.swept;
            let here = self.lanes.get(tenant).and_then(|lane| {
                let waiting = &lane.waiting;
                let at = waiting.partition_point(|waiter| waiter.arrival <= *after);
                (at < waiting.len()).then(|| (tenant.clone(), at))
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
            if let Some(waiter) = lane.and_then(|lane| lane.waiting.get_mut(at)) {
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
            if !lane.waiting.iter().any(|waiter| gone(&waiter.item)) {
                continue;
            }
            let (leaving, staying): (VecDeque<_>, _) = std::mem::take(&mut lane.waiting)
                .into_iter()
                .partition(|waiter| gone(&waiter.item));
            lane.waiting = staying;
            left.push((tenant.clone(), leaving.len() as u32));
            for waiter in leaving {
                lane.forget(&waiter);
                out.push(*waiter.item);
            }
        }
        for (tenant, count) in left {
            self.left(&tenant, count);
        }
        out
    }

    /// Iterates over all waiting requests: those that were put back first, then the others by arrival.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let lanes = self.lanes.values().flat_map(|lane| &lane.waiting);
        let mut arrived: Vec<&Waiter<T>> = lanes.collect();
        arrived.sort_unstable_by_key(|waiter| waiter.arrival);
        self.returned
            .iter()
            .chain(arrived.into_iter().map(|waiter| &*waiter.item))
    }

    /// Iterates over all waiting requests, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let arrived = self.lanes.values_mut().flat_map(|lane| &mut lane.waiting);
        self.returned
            .iter_mut()
            .chain(arrived.map(|waiter| &mut *waiter.item))
    }

    /// Returns any one request for which `found` is true; `None` if there is none.
    pub fn find_mut(&mut self, mut found: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.iter_mut().find(|item| found(item))
    }

    /// Updates counts after `count` newly arrived requests of this tenant have left the queue, and removes the tenant's
    /// entry if it has no others.
    fn left(&mut self, tenant: &Arc<str>, count: u32) {
        self.arrived -= count as usize;
        for _ in 0..count {
            self.shares.leave(tenant);
        }
        if (self.lanes.get(tenant)).is_some_and(|lane| lane.waiting.is_empty()) {
            self.lanes.remove(tenant);
        }
    }
}

/// The newly arrived requests of one tenant, ranked, while [`Queue::head`] creates tickets for them; a ticket
/// identifies a request in the queue.
struct RankedLane<'q, T> {
    tenant: &'q Arc<str>,
    lane: &'q mut Lane<T>,
    /// Number of further requests of the tenant that may get a ticket.
    room: u32,
    /// Indices of the tenant's requests in the order in which the rule serves them; empty until they have been ranked.
    order: Vec<usize>,
    /// Number of leading entries of `order` whose requests already have a ticket.
    next: usize,
}

impl<T> RankedLane<'_, T> {
    /// Returns the tenant's next request: its arrival number, the number of tokens to compute, and the detail that
    /// `look` returned. Returns `None` after the last, or if no further one may get a ticket.
    ///
    /// If the first request has lost cached tokens since it was ranked, all requests of the tenant are ranked again, up
    /// to [`RANKINGS`] rankings in all. Later requests, whose ranks follow from those before them, keep their ranks
    /// until the next step.
    fn next<D>(
        &mut self,
        rule: Rule,
        most: usize,
        look: &mut impl FnMut(&T) -> (u32, D),
    ) -> Option<(u64, u32, D)> {
        self.room = self.room.checked_sub(1)?;
        let mut rankings = 0;
        loop {
            if self.order.is_empty() {
                self.order = self.lane.ranked(rule, most);
                rankings += 1;
            }
            let at = *self.order.get(self.next)?;
            let believed = self
                .lane
                .waiting
                .get(at)
                .map(|waiter| self.lane.recent.cached(waiter))?;
            let waiter = self.lane.waiting.get_mut(at)?;
            let (cached, detail) = look(&waiter.item);
            waiter.cached = cached;
            let lost = cached < believed;
            if lost {
                let gone = waiter.prefixes.iter().filter(|(_, end)| *end > cached);
                gone.for_each(|(prefix, _)| self.lane.recent.forget(*prefix));
            }
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

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            opening_with: FxHashMap::default(),
            recent: RecentPrefixes::default(),
        }
    }
}

impl<T> Lane<T> {
    fn push(&mut self, waiter: Waiter<T>) {
        for (prefix, _) in &waiter.prefixes {
            *self.opening_with.entry(*prefix).or_default() += 1;
        }
        self.waiting.push_back(waiter);
    }

    fn remove(&mut self, at: usize) -> Option<Waiter<T>> {
        let waiter = self.waiting.remove(at)?;
        self.forget(&waiter);
        Some(waiter)
    }

    /// Subtracts a request that has left the queue from the counts in `opening_with`.
    fn forget(&mut self, waiter: &Waiter<T>) {
        for (prefix, _) in &waiter.prefixes {
            if let MapEntry::Occupied(mut count) = self.opening_with.entry(*prefix) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }

    fn position(&self, arrival: u64) -> Option<usize> {
        self.waiting
            .binary_search_by_key(&arrival, |waiter| waiter.arrival)
            .ok()
    }

    /// Returns the indices of the `most` requests of this tenant that `rule` serves first, in that order.
    fn ranked(&self, rule: Rule, most: usize) -> Vec<usize> {
        if rule == Rule::Arrival {
            return (0..self.waiting.len().min(most)).collect();
        }
        let queued = |waiter: &Waiter<T>| {
            let cached = self.recent.cached(waiter);
            Queued {
                cached_tokens: u64::from(cached),
                computed_tokens: u64::from(waiter.tokens.saturating_sub(cached)),
                mates: self.mates(waiter, cached),
                overtaken: waiter.overtaken,
            }
        };
        let queue: Vec<Queued> = self.waiting.iter().map(queued).collect();
        order::first(&queue, rule, most)
    }

    /// Returns the number of other waiting requests of the tenant that begin with the same documents as this one, up to
    /// the first document that is not within the request's first `cached` tokens.
    fn mates(&self, waiter: &Waiter<T>, cached: u32) -> u32 {
        let prefixes = &waiter.prefixes;
        let cached = prefixes.partition_point(|(_, end)| *end <= cached);
        let next = prefixes.get(cached);
        let all = next.and_then(|(prefix, _)| self.opening_with.get(prefix));
        all.map_or(0, |all| all - 1)
    }
}

/// Returns the hash of a list of documents, given the hash `prefix` of all but the last, `document`.
fn extended(prefix: PrefixHash, document: Fingerprint) -> PrefixHash {
    let mut hasher = FxHasher::default();
    (prefix, document.0).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
