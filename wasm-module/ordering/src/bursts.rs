//! Leaders and followers: of several requests that open alike with documents that no cache holds yet, the first one
//! computes them, and the others wait until its response begins.
//!
//! ```text
//!   request ─▶ enter ─┬─ its documents are held, or few ───────────▶ forwarded
//!                     ├─ it computes many that no leader computes ─▶ forwarded, as a leader
//!                     └─ a leader is computing them ─▶ held ─┬─ the response begins ─▶ forwarded, a leader if more is left
//!                                                            ├─ the leader fails ────▶ the first held one leads the rest
//!                                                            └─ the wait expires ────▶ forwarded
//! ```
//!
//! The knowledge tree records documents when they are forwarded, so what it believes resident includes what is still being
//! computed. The difference is here: a leader covers the tokens from what was resident before it to its end.
//!
//! Tenant, model and engine are compared as they are, documents by chained hashes; no text is kept. Only documents count:
//! a prompt's head may be resident although this process has not seen it. Everything is bounded, in number and in time.

use crate::engines::EngineId;
use crate::peer_update::OrderingRecord;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The limits of [`Bursts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstLimits {
    /// Longest wait of a request, in milliseconds; a leader attracts followers as long.
    pub max_wait_ms: u32,
    /// Most requests held at once, of all leaders.
    pub max_held: u32,
    /// Fewest tokens of documents that a follower must save.
    pub min_tokens: u32,
}

/// The documents of a prompt as forwarded, from its first one on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    tenant: Box<str>,
    model: Box<str>,
    engine: EngineId,
    /// For each document the hash of all up to it and what stands before them, and their tokens.
    links: Vec<(u64, u64)>,
    /// Tokens of documents that are believed to be resident, not only in flight.
    resident: u64,
}

impl Opening {
    /// Returns the opening of a forwarded request.
    #[must_use]
    pub fn of(record: &OrderingRecord) -> Self {
        let (mut chain, mut tokens, mut resident) = (0, 0_u64, 0);
        let mut links = Vec::new();
        let mut is_resident = true;
        for run in &record.runs {
            let begin = tokens;
            chain = link(chain, run.scope.0);
            for (document, more) in run.documents.iter().take(MAX_LINKS - links.len()) {
                chain = link(chain, document.0);
                tokens = tokens.saturating_add(u64::from(*more));
                links.push((chain, tokens));
            }
            if is_resident {
                resident = begin.saturating_add(u64::from(run.matched)).min(tokens);
                is_resident = resident == tokens;
            }
        }
        Self {
            tenant: record.tenant.clone(),
            model: record.model.clone(),
            engine: record.engine,
            links,
            resident,
        }
    }

    /// Returns the tokens of the documents with which both begin, on one engine and for one tenant and model.
    fn shared(&self, other: &Self) -> u64 {
        if self.engine != other.engine || self.tenant != other.tenant || self.model != other.model {
            return 0;
        }
        let pairs = self.links.iter().zip(&other.links);
        let last = pairs.take_while(|(one, two)| one == two).last();
        last.map_or(0, |((_, tokens), _)| *tokens)
    }

    fn tokens(&self) -> u64 {
        self.links.last().map_or(0, |(_, tokens)| *tokens)
    }
}

/// Identifies a request in [`Bursts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstTicket(u64);

/// What [`Bursts::enter`] decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The request is forwarded, and no other waits for it.
    Free,
    /// The request is forwarded; others may wait for it, so its response must be reported.
    Leads(BurstTicket),
    /// The request waits until it is released.
    Held(BurstTicket),
    /// The request would wait, but as many as allowed are held, or its shell cannot resume it: it is forwarded.
    Full,
}

/// Why a request is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Its leader's response began.
    Answered,
    /// Its leader failed or disconnected.
    Failed,
    /// The wait expired.
    Expired,
}

/// A request that is forwarded now.
#[derive(Debug)]
pub struct Released<W> {
    /// Resumes the request.
    pub waiter: W,
    /// Why it is released.
    pub why: Release,
    /// How long it was held, in milliseconds.
    pub held_ms: u64,
}

/// The requests in flight that lead or are held, in order of arrival. `W` resumes a held request.
#[derive(Debug)]
pub struct Bursts<W> {
    limits: BurstLimits,
    last: u64,
    flights: Vec<Flight<W>>,
}

#[derive(Debug)]
struct Flight<W> {
    ticket: BurstTicket,
    opening: Opening,
    since_ms: u64,
    role: Role<W>,
}

#[derive(Debug)]
enum Role<W> {
    Leads,
    Held { waiter: W, leader: BurstTicket },
}

impl<W> Bursts<W> {
    /// Returns the state without requests.
    #[must_use]
    pub fn new(limits: BurstLimits) -> Self {
        Self {
            limits,
            last: 0,
            flights: Vec::new(),
        }
    }

    /// Decides on a request that would be forwarded now. `waiter` is called if it is to be held, and returns `None` if it
    /// cannot be resumed.
    pub fn enter(
        &mut self,
        now_ms: u64,
        mut opening: Opening,
        waiter: impl FnOnce() -> Option<W>,
    ) -> Entry {
        // What a leader computes is not resident yet, although its record says so.
        for flight in &self.flights {
            if matches!(flight.role, Role::Leads)
                && opening.shared(&flight.opening) > flight.opening.resident
            {
                opening.resident = opening.resident.min(flight.opening.resident);
            }
        }
        let role = match self.leader_of(&opening) {
            Some(leader) => {
                let held = self.held();
                let waiter = (held < self.limits.max_held as usize)
                    .then(waiter)
                    .flatten();
                match waiter {
                    Some(waiter) => Role::Held { waiter, leader },
                    None => return Entry::Full,
                }
            }
            None if self.leads(&opening) => Role::Leads,
            None => return Entry::Free,
        };
        self.last = self.last.wrapping_add(1);
        let ticket = BurstTicket(self.last);
        let entry = match role {
            Role::Leads => Entry::Leads(ticket),
            Role::Held { .. } => Entry::Held(ticket),
        };
        self.flights.push(Flight {
            ticket,
            opening,
            since_ms: now_ms,
            role,
        });
        entry
    }

    /// Returns the number of requests held.
    fn held(&self) -> usize {
        let held = |flight: &&Flight<W>| matches!(flight.role, Role::Held { .. });
        self.flights.iter().filter(held).count()
    }

    /// Returns whether the request is held.
    #[must_use]
    pub fn is_held(&self, ticket: BurstTicket) -> bool {
        let mut flights = self.flights.iter();
        flights.any(|it| it.ticket == ticket && matches!(it.role, Role::Held { .. }))
    }

    /// Handles the beginning of a leader's response: its documents are resident.
    pub fn answered(&mut self, now_ms: u64, ticket: BurstTicket) -> Vec<Released<W>> {
        self.end(now_ms, ticket, Release::Answered)
    }

    /// Handles the failure or the end of a request: a leader whose response did not begin, or a held one whose client
    /// disconnected. Without effect once it was answered.
    pub fn gone(&mut self, now_ms: u64, ticket: BurstTicket) -> Vec<Released<W>> {
        self.end(now_ms, ticket, Release::Failed)
    }

    /// Releases requests whose wait has expired, and those whose leader takes longer than that.
    pub fn expire(&mut self, now_ms: u64) -> Vec<Released<W>> {
        let limit = u64::from(self.limits.max_wait_ms);
        let is_late = |since_ms: u64| now_ms.saturating_sub(since_ms) >= limit;
        let late = self.flights.iter().filter(|it| is_late(it.since_ms));
        let late: Vec<BurstTicket> = late.map(|it| it.ticket).collect();
        let is_over = |flight: &Flight<W>| match flight.role {
            Role::Leads => late.contains(&flight.ticket),
            Role::Held { leader, .. } => late.contains(&flight.ticket) || late.contains(&leader),
        };
        let over = self.flights.extract_if(.., |flight| is_over(flight));
        let over = over.filter_map(|flight| released(now_ms, flight, Release::Expired));
        over.collect()
    }

    fn end(&mut self, now_ms: u64, ticket: BurstTicket, why: Release) -> Vec<Released<W>> {
        let Some(at) = self.flights.iter().position(|it| it.ticket == ticket) else {
            return Vec::new();
        };
        let ended = self.flights.remove(at);
        let mut out = Vec::new();
        let mut at = 0;
        while let Some(flight) = self.flights.get_mut(at) {
            at += 1;
            match &flight.role {
                Role::Held { leader, .. } if *leader == ticket => {}
                _ => continue,
            }
            if why == Release::Answered {
                let shared = flight.opening.shared(&ended.opening);
                flight.opening.resident = flight.opening.resident.max(shared);
            }
            let opening = flight.opening.clone();
            // One that was released before it may lead it now.
            if let Some(next) = self.leader_of(&opening) {
                let flight = self.flights.get_mut(at - 1);
                if let Some(Role::Held { leader, .. }) = flight.map(|flight| &mut flight.role) {
                    *leader = next;
                }
                continue;
            }
            at -= 1;
            let flight = self.flights.remove(at);
            let leads = self.leads(&opening).then_some(Flight {
                ticket: flight.ticket,
                opening,
                since_ms: now_ms,
                role: Role::Leads,
            });
            out.extend(released(now_ms, flight, why));
            if let Some(leads) = leads {
                self.flights.insert(at, leads);
                at += 1;
            }
        }
        out
    }

    /// Returns the leader that computes most of what an opening lacks, if that is enough to wait for.
    fn leader_of(&self, opening: &Opening) -> Option<BurstTicket> {
        let leaders = self.flights.iter();
        let leaders = leaders.filter(|flight| matches!(flight.role, Role::Leads));
        let saved = |flight: &Flight<W>| {
            let shared = opening.shared(&flight.opening);
            shared.saturating_sub(opening.resident)
        };
        let most = leaders.map(|flight| (saved(flight), flight.ticket));
        let (saved, leader) = most.max_by_key(|(saved, ticket)| (*saved, !ticket.0))?;
        (saved >= u64::from(self.limits.min_tokens)).then_some(leader)
    }

    /// Returns whether a request computes enough to lead, and there is room for a leader.
    fn leads(&self, opening: &Opening) -> bool {
        let computed = opening.tokens().saturating_sub(opening.resident);
        let leaders = self.flights.len().saturating_sub(self.held());
        computed >= u64::from(self.limits.min_tokens) && leaders < MAX_LEADERS
    }
}

fn released<W>(now_ms: u64, flight: Flight<W>, why: Release) -> Option<Released<W>> {
    match flight.role {
        Role::Leads => None,
        Role::Held { waiter, .. } => Some(Released {
            waiter,
            why,
            held_ms: now_ms.saturating_sub(flight.since_ms),
        }),
    }
}

fn link(chain: u64, next: u64) -> u64 {
    xxh3_64_with_seed(&next.to_le_bytes(), chain)
}

/// Most leaders of all tenants; further requests are forwarded without leading.
const MAX_LEADERS: usize = 256;
/// Most documents compared of a prompt; later ones do not count.
const MAX_LINKS: usize = 128;
