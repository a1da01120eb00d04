//! The waiting requests, and in what order they are to be admitted.
//!
//! ```text
//!   put_back ──▶ returned      those that have run before, oldest first          ┐
//!   push ──────▶ lane "a"      in order of arrival ── rule: which of its own? ┐  ├──▶ head: tickets, next first
//!                lane "b"      in order of arrival ── rule                    ├──┘
//!                  …                                  shares: whose turn?  ───┘
//! ```
//!
//! Fairness decides between tenants, the core's [`Rule`] within one. The rule's starvation window therefore counts
//! requests of the same tenant: none is overtaken by more of its later ones than the window says.
//!
//! The rules want to know how much of each prompt is cached, which changes with every step, and looking up a thousand
//! prompts in every step would cost more than the step. So an entry remembers what was found last. [`Queue::sweep`]
//! looks at a few entries a step, one after another, and [`Queue::head`] looks again at whatever it is about to
//! propose: a request is admitted for what is cached now, and ranked by what was cached at most a few dozen steps ago.

use super::Rule;
use super::shares::{GENERATED_COST, Shares};
use foreword_ordering::document::Fingerprint;
use foreword_ordering::schedule::{self, Queued};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The queue; `T` is whatever the caller wants back.
pub struct Queue<T> {
    rule: Rule,
    /// In the order in which they go on.
    returned: VecDeque<T>,
    /// By tenant, none empty.
    lanes: BTreeMap<Arc<str>, VecDeque<Waiter<T>>>,
    shares: Shares,
    /// Entries in all lanes.
    arrived: usize,
    /// Requests that ever arrived.
    arrivals: u64,
    /// Where the next sweep begins: after this arrival of this tenant.
    swept: (Arc<str>, u64),
}

/// What the queue is told of a request.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Whose it is.
    pub tenant: Arc<str>,
    /// Tokens in its prompt.
    pub tokens: u32,
    /// The documents that its prompt opens with, and where each ends, counted in tokens.
    pub documents: Box<[(Fingerprint, u32)]>,
}

struct Waiter<T> {
    arrival: u64,
    /// Elsewhere, so that those who wait stand close together: they are all ranked at once.
    item: Box<T>,
    tokens: u32,
    path: Box<[Fingerprint]>,
    ends: Box<[u32]>,
    /// Tokens found in the cache when last looked up.
    cached: u32,
    /// How many later ones of its tenant went before it.
    overtaken: u32,
}

/// A request's place, good until the queue changes; tickets of one [`Queue::head`] are to be taken in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket(Place);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// The first of them, once those before it have been taken.
    Returned,
    Arrived {
        tenant: Arc<str>,
        arrival: u64,
    },
}

/// Times that [`Queue::head`] ranks a tenant's requests anew because the cache has lost what one was ranked by.
const RANKINGS: u32 = 4;

impl<T> Queue<T> {
    /// An empty queue.
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

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.returned.len() + self.arrived
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A request arrives.
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

    /// A request that was taken comes back: it goes before all others.
    pub fn put_back(&mut self, item: T) {
        self.returned.push_front(item);
    }

    /// So many prompt tokens of this tenant are to be computed.
    pub fn charge_prompt(&mut self, tenant: &str, tokens: u32) {
        self.shares.charge(tenant, u64::from(tokens));
    }

    /// A token was generated for this tenant.
    pub fn charge_token(&mut self, tenant: &str) {
        self.shares.charge(tenant, GENERATED_COST);
    }

    /// The next requests to be admitted, first those that were put back; at most `most`. `look` is asked what is cached
    /// of each, with whatever else the caller wants to know of those that get a ticket; `more` is asked after each
    /// ticket whether to go on. Costs `O(waiting + most · log waiting)`, and hardly more than one look a ticket.
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
            tickets.push((Ticket(Place::Returned), detail));
            if !more {
                return tickets;
            }
        }
        if tickets.len() == most {
            return tickets;
        }
        // The lane with the smallest counter on top; as it is served here, its counter grows here.
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
            tickets.push((Ticket(Place::Arrived { tenant, arrival }), detail));
            if !more {
                break;
            }
            turns.push(Reverse((served + u64::from(computed), oldest, at)));
        }
        tickets
    }

    /// The request with this ticket.
    pub fn get(&self, Ticket(place): &Ticket) -> Option<&T> {
        match place {
            Place::Returned => self.returned.front(),
            Place::Arrived { tenant, arrival } => {
                let lane = self.lanes.get(tenant)?;
                let at = position(lane, *arrival)?;
                lane.get(at).map(|waiter| &*waiter.item)
            }
        }
    }

    /// Takes the request with this ticket out, to be admitted: it overtakes those of its tenant that came before it.
    pub fn take(&mut self, Ticket(place): &Ticket) -> Option<T> {
        match place {
            Place::Returned => self.returned.pop_front(),
            Place::Arrived { tenant, arrival } => {
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

    /// Looks at the next `most` of those that were not put back, in turn, so that every one is looked at once in
    /// `len / most` sweeps, and remembers what `look` finds cached; `None`: what was remembered.
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

    /// Takes out all that `gone` says, in no particular order. `O(waiting)`.
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

    /// Everything in it, those first that were put back, then by arrival.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let mut arrived: Vec<&Waiter<T>> = self.lanes.values().flatten().collect();
        arrived.sort_unstable_by_key(|waiter| waiter.arrival);
        self.returned
            .iter()
            .chain(arrived.into_iter().map(|waiter| &*waiter.item))
    }

    /// Everything in it, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let arrived = self.lanes.values_mut().flatten();
        self.returned
            .iter_mut()
            .chain(arrived.map(|waiter| &mut *waiter.item))
    }

    /// One that `found` says.
    pub fn find_mut(&mut self, mut found: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.iter_mut().find(|item| found(item))
    }

    /// So many have left this tenant's lane.
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

/// A tenant's requests while tickets are given out.
struct Lane<'q, T> {
    tenant: &'q Arc<str>,
    waiting: &'q mut VecDeque<Waiter<T>>,
    /// Positions in `waiting`, by the rule; empty: not ranked yet.
    order: Vec<usize>,
    /// How many of `order` have a ticket.
    next: usize,
}

impl<T> Lane<'_, T> {
    /// The next request of this lane: its arrival, the tokens to compute, and what a look at it said. Where the cache
    /// has lost what the first one was ranked by, all are ranked once more, a bounded number of times; later ones, whose
    /// ranks follow from those before, keep theirs until the next step.
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

/// The positions of the first `most` of `waiting` by `rule`.
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
    schedule::first(&queue, rule, most)
}

impl<T> Waiter<T> {
    /// The documents of which all is cached.
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
