//! Holds back requests of a burst: of several requests with the same uncached documents at the beginning, the first one
//! (the leader) computes them, and the others (followers) wait until its response begins.
//!
//! ```text
//!   request ─▶ enter ─┬─ its documents are resident, or few ───────▶ forwarded
//!                     ├─ it computes many that no leader computes ─▶ forwarded, as a leader
//!                     └─ a leader is computing them ─▶ held ─┬─ response begins ─▶ forwarded, a leader if more is left
//!                                                            ├─ leader fails ────▶ the first held one leads the rest
//!                                                            └─ wait expires ────▶ forwarded
//! ```
//!
//! The knowledge tree records documents as resident when they are forwarded, although the engine may still be computing
//! them. This module keeps the difference: for each leader, the tokens between what was resident before it and its end.
//!
//! Tenant, salt, model and engine are compared by value, documents by chained hashes; no text is kept. Only documents
//! are compared: whether a prompt's head is resident is unknown here. Requests and waiting times are bounded.

use crate::peer_update::{About, OrderingRecord};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The limits on holding back requests that would compute the same documents: on waiting times, on the number of
/// waiting requests, and on document tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstLimits {
    /// The maximum time in milliseconds that a request is held, and the maximum time after a leader is forwarded during
    /// which requests wait for it.
    pub max_wait_ms: u32,
    /// The maximum number of requests that are held at once, over all tenants and leaders (requests for which others
    /// wait).
    pub max_held: u32,
    /// The minimum number of document tokens that a leader computes, and the minimum number that a follower saves by
    /// waiting.
    pub min_tokens: u32,
}

impl Default for BurstLimits {
    fn default() -> Self {
        Self {
            max_wait_ms: 2_000,
            max_held: 256,
            min_tokens: 512,
        }
    }
}

/// The documents with which a forwarded prompt begins, to compare with those of other prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    about: About,
    /// For each document: a hash of the prompt up to and including this document, and the estimated tokens of all
    /// documents up to and including it.
    links: Vec<(u64, u64)>,
    /// Estimated tokens of the documents at the prompt's beginning that are believed resident in the engine's cache;
    /// [`Bursts::enter`] excludes those that a leader (the request for which others wait) is still computing.
    resident: u64,
}

impl Opening {
    /// Returns the documents with which the prompt of a request that is about to be forwarded begins; those after the
    /// 32nd are ignored.
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
            about: record.about.clone(),
            links,
            resident,
        }
    }

    /// Returns the estimated tokens of the documents with which both prompts begin; 0 for different engines, tenants,
    /// salts or models.
    fn shared(&self, other: &Self) -> u64 {
        if self.about != other.about {
            return 0;
        }
        let pairs = self.links.iter().zip(&other.links);
        let last = pairs.take_while(|(one, two)| one == two).last();
        last.map_or(0, |((_, tokens), _)| *tokens)
    }

    /// Returns the estimated tokens of those documents of this request that the engine must compute because they are
    /// not resident in its cache.
    fn computed(&self) -> u64 {
        let tokens = self.links.last().map_or(0, |(_, tokens)| *tokens);
        tokens.saturating_sub(self.resident)
    }
}

/// Identifies a request in [`Bursts`] that leads (computes documents for which others wait) or is held (waits for a
/// leader).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstTicket(u64);

/// The decision of [`Bursts::enter`] on whether to forward a request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The request is forwarded, and [`Bursts`] lets no other request wait for it.
    Free,
    /// The request is forwarded, and others may wait for it: call [`Bursts::answered`] when its response begins, or
    /// [`Bursts::gone`] if it ends without one.
    Leads(BurstTicket),
    /// The request is held until a method of [`Bursts`] returns it as [`Released`].
    Held(BurstTicket),
    /// The request would wait, but is forwarded: [`BurstLimits::max_held`] requests are held, or the caller could not
    /// provide a handle to resume it.
    Unheld,
}

/// The reason why a held request is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The response of the leader (the request for which it waited) began, so the shared documents are resident.
    Answered,
    /// The leader (the request for which it waited) failed, or its client disconnected.
    Failed,
    /// The request has waited, or the leader for which it waited has been in flight, for [`BurstLimits::max_wait_ms`].
    Expired,
}

/// A request that was held and must be forwarded now.
#[derive(Debug)]
pub struct Released<W> {
    /// The handle that the `waiter` of [`Bursts::enter`] returned for the request, with which the caller resumes it.
    pub waiter: W,
    /// The reason why the request is forwarded now.
    pub why: Release,
    /// Time from the arrival of the request to its release, in milliseconds.
    pub held_ms: u64,
}

/// The requests in flight that lead (compute documents for which others wait) or are held (wait for a leader). A `W` is
/// the caller's handle to resume a held request.
#[derive(Debug)]
pub struct Bursts<W> {
    limits: BurstLimits,
    last: u64,
    leaders: Vec<Flight>,
    /// The requests that are held (wait for a leader), in order of arrival.
    held: Vec<Held<W>>,
}

#[derive(Debug)]
struct Flight {
    ticket: BurstTicket,
    opening: Opening,
    since_ms: u64,
}

#[derive(Debug)]
struct Held<W> {
    flight: Flight,
    waiter: W,
    leader: BurstTicket,
}

impl<W> Bursts<W> {
    /// Returns a state without leaders (requests for which others wait) and without held requests.
    #[must_use]
    pub fn new(limits: BurstLimits) -> Self {
        Self {
            limits,
            last: 0,
            leaders: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Decides whether a request whose prompt begins with `opening` is forwarded now or held. To hold it, calls
    /// `waiter` for the handle that resumes it; if that returns `None`, the request is forwarded.
    pub fn enter(
        &mut self,
        now_ms: u64,
        mut opening: Opening,
        waiter: impl FnOnce() -> Option<W>,
    ) -> Entry {
        // The record counts documents as resident that a leader is still computing.
        for leader in &self.leaders {
            if opening.shared(&leader.opening) > leader.opening.resident {
                opening.resident = opening.resident.min(leader.opening.resident);
            }
        }
        self.last = self.last.wrapping_add(1);
        let ticket = BurstTicket(self.last);
        let flight = Flight {
            ticket,
            opening,
            since_ms: now_ms,
        };
        let Some(leader) = self.leader_of(&flight.opening) else {
            return match self.lead(flight) {
                true => Entry::Leads(ticket),
                false => Entry::Free,
            };
        };
        let has_room = self.held.len() < self.limits.max_held as usize;
        let Some(waiter) = has_room.then(waiter).flatten() else {
            return Entry::Unheld;
        };
        self.held.push(Held {
            flight,
            waiter,
            leader,
        });
        Entry::Held(ticket)
    }

    /// Returns whether the request with this ticket is held (waits for a leader) at the moment.
    #[must_use]
    pub fn is_held(&self, ticket: BurstTicket) -> bool {
        self.held.iter().any(|it| it.flight.ticket == ticket)
    }

    /// Records that the response of a leader (the request for which others wait) has begun, so the documents that it
    /// computed are resident in the engine's cache. Returns the held requests to forward now.
    pub fn answered(&mut self, now_ms: u64, ticket: BurstTicket) -> Vec<Released<W>> {
        self.end(now_ms, ticket, Release::Answered)
    }

    /// Records that a request ended without a response: a leader (the request for which others wait) that failed, or a
    /// held request whose client disconnected. Returns the held requests to forward now. No effect on a leader after
    /// [`Bursts::answered`].
    pub fn gone(&mut self, now_ms: u64, ticket: BurstTicket) -> Vec<Released<W>> {
        self.held.retain(|it| it.flight.ticket != ticket);
        self.end(now_ms, ticket, Release::Failed)
    }

    /// Removes and returns the held requests that have waited for [`BurstLimits::max_wait_ms`], and those whose leader
    /// has been in flight that long. Also removes these leaders (requests for which others wait).
    pub fn expire(&mut self, now_ms: u64) -> Vec<Released<W>> {
        let limit = u64::from(self.limits.max_wait_ms);
        let is_late = |flight: &mut Flight| {
            // A clock that was set back must not prolong the wait.
            flight.since_ms = flight.since_ms.min(now_ms);
            now_ms.saturating_sub(flight.since_ms) >= limit
        };
        let late = self.leaders.extract_if(.., is_late);
        let late: Vec<BurstTicket> = late.map(|leader| leader.ticket).collect();
        let over = self.held.extract_if(.., |it| {
            is_late(&mut it.flight) || late.contains(&it.leader)
        });
        over.map(|it| it.flight.released(it.waiter, now_ms, Release::Expired))
            .collect()
    }

    /// Removes all leaders (requests for which others wait) and held requests, and returns the handles of the held
    /// requests instead of releasing them as [`Released`].
    pub fn abandon(&mut self) -> impl Iterator<Item = W> {
        self.leaders.clear();
        std::mem::take(&mut self.held)
            .into_iter()
            .map(|it| it.waiter)
    }

    /// Removes a leader; without effect if `ticket` is not a leader's. A request that waited for it now waits for
    /// another leader if one computes its documents. Otherwise it is returned for release with the reason `why`, and
    /// becomes a leader itself if it computes enough.
    fn end(&mut self, now_ms: u64, ticket: BurstTicket, why: Release) -> Vec<Released<W>> {
        let Some(at) = self.leaders.iter().position(|it| it.ticket == ticket) else {
            return Vec::new();
        };
        let ended = self.leaders.swap_remove(at);
        let mut out = Vec::new();
        for mut it in std::mem::take(&mut self.held) {
            if it.leader == ticket {
                let opening = &mut it.flight.opening;
                if why == Release::Answered {
                    opening.resident = opening.resident.max(opening.shared(&ended.opening));
                }
                // A follower that was released just before may lead this one.
                let Some(next) = self.leader_of(opening) else {
                    out.push(it.flight.released(it.waiter, now_ms, why));
                    self.lead(Flight {
                        since_ms: now_ms,
                        ..it.flight
                    });
                    continue;
                };
                it.leader = next;
            }
            self.held.push(it);
        }
        out
    }

    /// Returns the leader (a request for which others wait) that computes the largest number of those document tokens
    /// which the request with this opening needs and which are not resident; on a tie, the earliest one. `None` if no
    /// leader computes at least `min_tokens` of them, or if they are less than half of all document tokens that the
    /// leader computes: its response would begin too late.
    fn leader_of(&self, opening: &Opening) -> Option<BurstTicket> {
        let saved = |leader: &Flight| {
            let shared = opening.shared(&leader.opening);
            let saved = shared.saturating_sub(opening.resident);
            let is_enough = saved >= u64::from(self.limits.min_tokens)
                && saved.saturating_mul(2) >= leader.opening.computed();
            is_enough.then_some((saved, leader.ticket))
        };
        let leaders = self.leaders.iter().filter_map(saved);
        let most = leaders.max_by_key(|(saved, ticket)| (*saved, !ticket.0));
        most.map(|(_, leader)| leader)
    }

    /// Makes a request a leader, for which requests with the same text wait, if it computes at least `min_tokens` and
    /// fewer than [`MAX_LEADERS`] requests lead. Returns whether it leads.
    fn lead(&mut self, flight: Flight) -> bool {
        let leads = flight.opening.computed() >= u64::from(self.limits.min_tokens)
            && self.leaders.len() < MAX_LEADERS;
        if leads {
            self.leaders.push(flight);
        }
        leads
    }
}

impl Flight {
    fn released<W>(&self, waiter: W, now_ms: u64, why: Release) -> Released<W> {
        Released {
            waiter,
            why,
            held_ms: now_ms.saturating_sub(self.since_ms),
        }
    }
}

fn link(chain: u64, next: u64) -> u64 {
    xxh3_64_with_seed(&next.to_le_bytes(), chain)
}

/// The maximum number of leaders (requests for which others may wait) at a time, over all tenants. Beyond it, a request
/// is forwarded without becoming a leader, so no other one waits for it.
const MAX_LEADERS: usize = 256;
/// The maximum number of documents at the beginning of a prompt that are compared; later ones are ignored.
const MAX_LINKS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Fingerprint;
    use crate::engines::EngineId;
    use crate::feed::TenantKey;
    use crate::peer_update::SentRun;
    use crate::random::Random;
    use crate::tree::Scope;

    const LIMITS: BurstLimits = BurstLimits {
        max_wait_ms: 1_000,
        max_held: 3,
        min_tokens: 500,
    };

    /// Returns the beginning of a prompt: documents of 300 tokens each, of which the first `resident` are believed to
    /// be cached.
    fn opening(tenant: &str, documents: &str, resident: u64) -> Opening {
        let mut chain = 0;
        let links = documents.bytes().zip(1..).map(|(document, count)| {
            chain = link(chain, document.into());
            (chain, count * 300)
        });
        Opening {
            about: About {
                tenant: tenant.into(),
                key: TenantKey::default(),
                model: "m".into(),
                engine: EngineId(0),
            },
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
        assert!(bursts.leaders.is_empty() && bursts.held.is_empty());
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
        other.about.model = "n".into();
        leads(enter(&mut bursts, 0, other, 'x'));
        let mut other = opening("t", "abcd", 0);
        other.about.engine = EngineId(1);
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
        assert_eq!(more, Entry::Unheld);
        assert_eq!(names(bursts.expire(999)), "");
        // The leader is late, so all go, and no request follows it any more.
        assert_eq!(names(bursts.expire(1_000)), "xyz");
        assert_eq!(names(bursts.answered(1_001, leader)), "");
        for at in 0..MAX_LEADERS + 5 {
            let entry = enter(&mut bursts, 0, opening(&at.to_string(), "ab", 0), 'l');
            assert_eq!(matches!(entry, Entry::Leads(_)), at < MAX_LEADERS);
        }
    }

    #[test]
    fn no_request_waits_for_a_leader_that_computes_mostly_other_documents() {
        let mut bursts = Bursts::new(LIMITS);
        leads(enter(&mut bursts, 0, opening("t", "abcdef", 0), 'l'));
        leads(enter(&mut bursts, 0, opening("t", "ab", 2), 'x'));
        held(enter(&mut bursts, 0, opening("t", "abc", 3), 'y'));
    }

    #[test]
    fn a_clock_that_is_set_back_prolongs_no_wait() {
        let mut bursts = Bursts::new(LIMITS);
        leads(enter(&mut bursts, 9_000_000, opening("t", "ab", 0), 'l'));
        held(enter(&mut bursts, 9_000_000, opening("t", "ab", 2), 'x'));
        assert_eq!(names(bursts.expire(100)), "");
        assert_eq!(names(bursts.expire(1_100)), "x");
    }

    #[test]
    fn tickets_are_not_used_again_after_a_panic() {
        let mut bursts = Bursts::new(LIMITS);
        let old = leads(enter(&mut bursts, 0, opening("t", "ab", 0), 'l'));
        held(enter(&mut bursts, 0, opening("t", "ab", 2), 'x'));
        assert_eq!(bursts.abandon().collect::<String>(), "x");
        leads(enter(&mut bursts, 0, opening("t", "ab", 0), 'm'));
        held(enter(&mut bursts, 0, opening("t", "ab", 2), 'y'));
        assert_eq!(names(bursts.gone(1, old)), "");
    }

    #[test]
    fn an_opening_has_the_first_documents_of_all_runs_and_what_was_resident_of_them() {
        let run = |scope: u64, documents: std::ops::Range<u64>, matched: u32| SentRun {
            scope: Scope(scope),
            before: 0,
            matched,
            documents: documents.map(|it| (Fingerprint(it), 10)).collect(),
            order: None,
            is_ranked: false,
        };
        let of = |runs: Vec<SentRun>| {
            Opening::of(&OrderingRecord {
                about: About {
                    tenant: "t".into(),
                    key: TenantKey::of("t"),
                    model: "m".into(),
                    engine: EngineId(0),
                },
                tokens: 0,
                runs,
                chat: None,
                forms: Vec::new(),
                claims: Vec::new(),
                context: None,
            })
        };
        // The first run is resident, half of the second one is.
        let whole = of(vec![run(1, 0..3, 30), run(2, 3..43, 200)]);
        assert_eq!((whole.links.len(), whole.resident), (MAX_LINKS, 230));
        assert_eq!(whole.computed(), MAX_LINKS as u64 * 10 - 230);
        // What follows something that is not resident is computed.
        assert_eq!(of(vec![run(1, 0..3, 20), run(2, 3..5, 20)]).resident, 20);
        // The same documents behind another text are others.
        assert_eq!(whole.shared(&of(vec![run(9, 0..3, 30)])), 0);
        assert_eq!(
            whole.shared(&of(vec![run(1, 0..3, 0), run(2, 7..9, 0)])),
            30
        );
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
                    Entry::Free | Entry::Unheld => {}
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
                assert_eq!(waiting.len(), bursts.held.len());
                assert!(bursts.held.len() <= 3);
                for held in &bursts.held {
                    let mut leaders = bursts.leaders.iter();
                    assert!(leaders.any(|leader| leader.ticket == held.leader));
                }
            }
        }
    }
}
