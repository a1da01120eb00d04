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
const MAX_LINKS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const LIMITS: BurstLimits = BurstLimits {
        max_wait_ms: 1_000,
        max_held: 3,
        min_tokens: 500,
    };

    /// An opening of documents of 300 tokens each, the first `resident` of which a cache is believed to hold.
    fn opening(tenant: &str, documents: &str, resident: u64) -> Opening {
        let mut chain = 0;
        let links = documents.bytes().zip(1..).map(|(document, count)| {
            chain = link(chain, document.into());
            (chain, count * 300)
        });
        Opening {
            tenant: tenant.into(),
            model: "m".into(),
            engine: EngineId(0),
            links: links.collect(),
            resident: resident * 300,
        }
    }

    fn enter(bursts: &mut Bursts<char>, now_ms: u64, opening: Opening, name: char) -> Entry {
        bursts.enter(now_ms, opening, || Some(name))
    }

    fn leads(entry: Entry) -> BurstTicket {
        match entry {
            Entry::Leads(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn held(entry: Entry) -> BurstTicket {
        match entry {
            Entry::Held(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn names(released: Vec<Released<char>>) -> String {
        released.into_iter().map(|it| it.waiter).collect()
    }

    #[test]
    fn followers_go_when_their_leader_is_answered_although_the_tree_believes_in_their_documents() {
        let mut bursts = Bursts::new(LIMITS);
        let leader = leads(enter(&mut bursts, 0, opening("t", "abc", 0), 'l'));
        // The tree has learnt the leader's documents by now.
        held(enter(&mut bursts, 10, opening("t", "abc", 3), 'x'));
        held(enter(&mut bursts, 20, opening("t", "abq", 2), 'y'));
        let released = bursts.answered(100, leader);
        let times: Vec<u64> = released.iter().map(|it| it.held_ms).collect();
        assert_eq!((names(released).as_str(), times), ("xy", vec![90, 80]));
        assert_eq!(bursts.flights.len(), 0);
        let late = enter(&mut bursts, 110, opening("t", "abc", 3), 'z');
        assert_eq!(late, Entry::Free);
    }

    #[test]
    fn no_request_waits_for_what_is_resident_or_short_or_of_another_tenant_model_or_engine() {
        let mut bursts = Bursts::new(LIMITS);
        leads(enter(&mut bursts, 0, opening("t", "abcd", 2), 'l'));
        // Two documents were resident before the leader; the third alone is too short.
        assert_eq!(
            enter(&mut bursts, 0, opening("t", "abc", 3), 'x'),
            Entry::Free
        );
        held(enter(&mut bursts, 0, opening("t", "abcd", 4), 'x'));
        leads(enter(&mut bursts, 0, opening("u", "abcd", 0), 'x'));
        let mut other = opening("t", "abcd", 0);
        other.model = "n".into();
        leads(enter(&mut bursts, 0, other, 'x'));
        let mut other = opening("t", "abcd", 0);
        other.engine = EngineId(1);
        leads(enter(&mut bursts, 0, other, 'x'));
        assert_eq!(
            enter(&mut bursts, 0, opening("t", "q", 0), 'x'),
            Entry::Free
        );
    }

    #[test]
    fn of_those_released_the_first_leads_what_is_left() {
        let mut bursts = Bursts::new(LIMITS);
        let leader = leads(enter(&mut bursts, 0, opening("t", "ab", 0), 'l'));
        let first = held(enter(&mut bursts, 1, opening("t", "abcd", 2), 'x'));
        held(enter(&mut bursts, 1, opening("t", "abcd", 4), 'y'));
        held(enter(&mut bursts, 1, opening("t", "abef", 2), 'z'));
        assert_eq!(names(bursts.answered(2, leader)), "xz");
        assert_eq!(names(bursts.answered(3, first)), "y");
        // A leader that fails is followed by one.
        let leader = leads(enter(&mut bursts, 4, opening("t", "gh", 0), 'l'));
        let next = held(enter(&mut bursts, 5, opening("t", "gh", 2), 'x'));
        held(enter(&mut bursts, 5, opening("t", "gh", 2), 'y'));
        assert_eq!(names(bursts.gone(6, leader)), "x");
        assert_eq!(names(bursts.gone(7, leader)), "", "it is gone");
        assert_eq!(names(bursts.answered(8, next)), "y");
    }

    #[test]
    fn waits_and_numbers_are_bounded() {
        let mut bursts = Bursts::new(LIMITS);
        let leader = leads(enter(&mut bursts, 0, opening("t", "ab", 0), 'l'));
        for (at, name) in "xyz".chars().enumerate() {
            held(enter(&mut bursts, at as u64, opening("t", "ab", 2), name));
        }
        let more = enter(&mut bursts, 5, opening("t", "ab", 2), 'w');
        assert_eq!(more, Entry::Full);
        assert_eq!(names(bursts.expire(999)), "");
        // The leader is late, so all go, and no request follows it any more.
        assert_eq!(names(bursts.expire(1_000)), "xyz");
        assert_eq!(names(bursts.answered(1_001, leader)), "");
        for at in 0..MAX_LEADERS + 5 {
            let entry = enter(&mut bursts, 0, opening(&at.to_string(), "ab", 0), 'l');
            assert_eq!(matches!(entry, Entry::Leads(_)), at < MAX_LEADERS);
        }
        let long = "ab".repeat(200);
        let record = opening("t", &long, 0);
        assert!(record.links.len() > MAX_LINKS, "only records are cut");
    }

    #[test]
    fn every_held_request_is_released_once_and_within_its_time() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut bursts = Bursts::new(LIMITS);
            let (mut tickets, mut waiting) = (Vec::new(), std::collections::BTreeMap::new());
            for now_ms in (0..20_000).step_by(50) {
                for released in bursts.expire(now_ms) {
                    assert!(waiting.remove(&released.waiter).is_some());
                }
                let mut out = Vec::new();
                let paths = ["abc", "abd", "ab", "efgh", "efg", "abcdef"];
                let path = paths[random.below(6) as usize];
                let opening = opening(["t", "u"][random.below(2) as usize], path, random.below(3));
                match bursts.enter(now_ms, opening, || Some(now_ms)) {
                    Entry::Held(ticket) => {
                        waiting.insert(now_ms, ticket);
                        tickets.push(ticket);
                    }
                    Entry::Leads(ticket) => tickets.push(ticket),
                    Entry::Free | Entry::Full => {}
                }
                if random.below(3) == 0 && !tickets.is_empty() {
                    let at = random.below(tickets.len() as u64) as usize;
                    let ticket = tickets.swap_remove(at);
                    waiting.retain(|_, held| *held != ticket);
                    out.extend(match random.below(2) {
                        0 if !bursts.is_held(ticket) => bursts.answered(now_ms, ticket),
                        _ => bursts.gone(now_ms, ticket),
                    });
                }
                for released in out {
                    assert!(waiting.remove(&released.waiter).is_some(), "released twice");
                }
                assert!(waiting.keys().all(|since| now_ms - since < 1_000));
                assert_eq!(waiting.len(), bursts.held());
                assert!(bursts.held() <= 3);
                for flight in &bursts.flights {
                    if let Role::Held { leader, .. } = flight.role {
                        let mut all = bursts.flights.iter();
                        assert!(
                            all.any(|it| it.ticket == leader && matches!(it.role, Role::Leads))
                        );
                    }
                }
            }
        }
    }
}
