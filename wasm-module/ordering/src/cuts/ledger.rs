//! Tracks positions of prompts (ends of blocks, identified by the hash of everything before): the probability that a
//! position recurs in a later prompt during its cache lifetime, and until when the upstream is believed to have the
//! prompt cached up to it.
//!
//! ```text
//!   position (hash) ── last seen, times seen, cached until         bounded; the least recently seen is forgotten
//!   class ── hits and passes, by age                              a class: kind of text, documents so far, times seen
//!
//!   age      0 ──┬── 1/128 ──┬── 1/64 ── … ──┬── 1/2 ──┬── 1 lifetime
//!   visits   came again here: hits; grew older than this: passes
//! ```
//!
//! Each visit of a position (its occurrence in a prompt) is a trial of its class. It is a hit if the position recurs
//! within its lifetime. Recent trials had little time so far, so hits are counted by age, and the probability is one
//! minus the product of the shares that passed each age without a hit (E. Kaplan, P. Meier: Nonparametric estimation
//! from incomplete observations, 1958). The shares by age are those of all positions of the same kind of text (tool,
//! system text, message, document or end of the prompt). A class scales them by the ratio of its hits to the expected
//! hits, since most classes are too small to fill every age. So no marker is needed to learn that one is worth its
//! price, and traffic without sharing is never marked: unknown positions count as improbable.

use super::layout::{Layout, MarkTtl, Part, Position};
use super::rules::CacheRules;
use crate::hash::KeyedMap;
use crate::recency::Recency;
use fxhash::FxHashMap;
use std::collections::VecDeque;

/// The tracked positions (ends of blocks) in the prompts of one tenant and model, and the statistics of classes of
/// similar positions.
#[derive(Debug)]
pub(super) struct Ledger {
    most: u32,
    slots: KeyedMap<u64, u32>,
    seen: Vec<Seen>,
    recency: Recency,
    classes: FxHashMap<Class, Trials>,
    /// Recent visits (occurrences of a position in a prompt), oldest first. A visit is a hit if the position recurs
    /// within its lifetime; older visits are dropped.
    visits: VecDeque<Visit>,
    /// For each age class (part of a cache lifetime), the number of visits (occurrences of a position) at the front of
    /// the queue that are older than the end of that class.
    passed: [usize; AGES],
}

/// A position (the end of a block or of a document in a text) that occurred in a forwarded prompt. `hash` is the hash
/// of the prompt up to it, `at_ms` the time of its latest occurrence, `live_until_ms` the time until which the upstream
/// is believed to have the prompt cached up to it, and `times` the number of occurrences so far, each within a cache
/// lifetime of the one before.
#[derive(Clone, Copy, Debug)]
struct Seen {
    hash: u64,
    at_ms: u64,
    times: u32,
    class: Class,
    live_until_ms: u64,
}

/// A visit: one occurrence of a position (end of a block) in a prompt. It is a hit if the position recurs within its
/// cache lifetime.
#[derive(Clone, Copy, Debug)]
struct Visit {
    slot: u32,
    hash: u64,
    at_ms: u64,
    times: u32,
}

/// A class of similar positions (ends of blocks), which share statistics: those with the same kind of text, the same
/// number of consecutive documents before them and the same number of occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Class {
    part: Part,
    depth: u8,
    times: u8,
}

/// The counts of visits (occurrences of positions) in one class of positions, by age: of those that became hits at that
/// age, because the position recurred, and of those that passed the age without a hit.
#[derive(Clone, Copy, Debug, Default)]
struct Trials {
    hits: [f64; AGES],
    passes: [f64; AGES],
}

/// The estimates for one position (end of a block) of a prompt: how likely it recurs, and until when it is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Knowledge {
    /// Estimated probability that a later request has the same prompt up to this position (end of a block), within one
    /// cache lifetime.
    pub(super) again: f64,
    /// Time in milliseconds, on the clock of [`CutOptions::now_ms`](super::CutOptions::now_ms), until which the
    /// upstream is believed to have the prompt cached up to this position; 0 if it is not believed to be cached.
    pub(super) live_until_ms: u64,
}

impl Trials {
    fn hit(&mut self, age: usize) {
        if let Some(hits) = self.hits.get_mut(age) {
            *hits += 1.0;
        }
    }

    fn pass(&mut self, age: usize) {
        if let Some(passes) = self.passes.get_mut(age) {
            *passes += 1.0;
        }
        let [first, ..] = self.passes;
        let [hits, ..] = self.hits;
        if first + hits >= WINDOW {
            for count in self.hits.iter_mut().chain(&mut self.passes) {
                *count /= 2.0;
            }
        }
    }

    /// Returns, for each age class (part of a cache lifetime), the probability that a visit (occurrence of a position)
    /// which has reached that age becomes a hit in it, smoothed with [`PRIOR_WEIGHT`] visits of probability
    /// [`FIRST_GUESS`].
    fn hazards(&self) -> [f64; AGES] {
        let mut hazards = [FIRST_GUESS; AGES];
        for ((hazard, hits), passes) in hazards.iter_mut().zip(self.hits).zip(self.passes) {
            *hazard = (hits + *hazard * PRIOR_WEIGHT) / (hits + passes + PRIOR_WEIGHT);
        }
        hazards
    }

    /// Returns the ratio of this class's hits (visits after which the position recurred) to the number that `hazards`,
    /// the probabilities of a hit by age, predict. It is smoothed with [`RATIO_WEIGHT`] hits.
    fn ratio(&self, hazards: &[f64; AGES]) -> f64 {
        let at_risk = self
            .hits
            .iter()
            .zip(self.passes)
            .map(|(hits, passes)| hits + passes);
        let expected: f64 = at_risk
            .zip(hazards)
            .map(|(count, hazard)| count * hazard)
            .sum();
        let hits: f64 = self.hits.iter().sum();
        (hits + FIRST_RATIO * RATIO_WEIGHT) / (expected + RATIO_WEIGHT)
    }
}

impl Class {
    fn of(position: &Position, times: u32) -> Self {
        Self {
            part: position.part,
            depth: u8::try_from(position.depth)
                .unwrap_or(u8::MAX)
                .min(MOST_DEPTH),
            times: u8::try_from(times).unwrap_or(u8::MAX).min(MOST_TIMES),
        }
    }

    /// Returns the class that stands for all positions (ends of blocks) of a [`Part`], whatever the number of documents
    /// before them and of their occurrences.
    fn broad(part: Part) -> Self {
        Self {
            part,
            depth: 0,
            times: 0,
        }
    }
}

impl Ledger {
    pub(super) fn new(most: u32) -> Self {
        Self {
            most,
            slots: KeyedMap::default(),
            seen: Vec::new(),
            recency: Recency::default(),
            classes: FxHashMap::default(),
            visits: VecDeque::new(),
            passed: [0; AGES],
        }
    }

    fn seen(&self, hash: u64) -> Option<&Seen> {
        self.seen.get(*self.slots.get(&hash)? as usize)
    }

    /// Returns the estimates for each position (end of a block) of a prompt, in order, at the time `now_ms`.
    pub(super) fn of(&self, layout: &Layout, rules: &CacheRules, now_ms: u64) -> Vec<Knowledge> {
        let mut least = 1.0_f64;
        let positions = layout.positions.iter();
        positions
            .map(|position| {
                let seen = self.seen(position.hash);
                let recent = seen.filter(|seen| now_ms < seen.at_ms.saturating_add(rules.ttl_ms));
                let times = recent.map_or(0, |seen| seen.times).saturating_add(1);
                // If a position recurs, so does everything before it.
                least = least.min(self.again(position, times));
                let live = seen.map(|seen| seen.live_until_ms);
                Knowledge {
                    again: least,
                    live_until_ms: live.filter(|live| *live > now_ms).unwrap_or(0),
                }
            })
            .collect()
    }

    /// Returns the estimated probability that a position (end of a block) that has occurred `times` times occurs again
    /// in a later prompt during its cache lifetime.
    fn again(&self, position: &Position, times: u32) -> f64 {
        let trials = |class| self.classes.get(&class).copied().unwrap_or_default();
        let hazards = trials(Class::broad(position.part)).hazards();
        let ratio = trials(Class::of(position, times)).ratio(&hazards);
        let pass = |hazard: &f64| 1.0 - (ratio * hazard).min(1.0);
        1.0 - hazards.iter().map(pass).product::<f64>()
    }

    /// Adjusts the records to a clock that was set back to `now_ms`, so that this prolongs no lifetime: times of
    /// occurrences later than `now_ms` become `now_ms`, and the end of such a position's cache lifetime is moved back
    /// by the same difference. Takes time in proportion to the number of adjusted times.
    pub(super) fn set_back(&mut self, now_ms: u64) {
        for slot in self.recency.iter_newest() {
            match self.seen.get_mut(slot as usize) {
                Some(seen) if seen.at_ms > now_ms => {
                    let ahead_ms = seen.at_ms - now_ms;
                    seen.live_until_ms = seen.live_until_ms.saturating_sub(ahead_ms);
                    seen.at_ms = now_ms;
                }
                _ => break,
            }
        }
        let visits = self.visits.iter_mut().rev();
        for visit in visits.take_while(|visit| visit.at_ms > now_ms) {
            visit.at_ms = now_ms;
        }
    }

    /// Records a forwarded prompt: its positions (ends of blocks) and until when they are cached. `marks` are the cache
    /// markers in effect and `read` is the last position that the upstream is believed to have read from its cache
    /// (`None` if it read nothing), both as indices in the layout's `positions`.
    pub(super) fn take(
        &mut self,
        layout: &Layout,
        marks: &[(usize, MarkTtl)],
        read: Option<usize>,
        rules: &CacheRules,
        now_ms: u64,
    ) {
        self.age_visits(rules, now_ms);
        let mut marks = marks.iter().peekable();
        for (at, position) in layout.positions.iter().enumerate() {
            let marked = marks.next_if(|(marked, _)| *marked == at);
            let is_kept = position.tokens >= u64::from(rules.minimum_tokens);
            let until = marked
                .map(|(_, ttl)| *ttl)
                .or((read == Some(at)).then_some(MarkTtl::Default))
                .filter(|_| is_kept)
                .map_or(0, |ttl| {
                    now_ms.saturating_add(match ttl {
                        MarkTtl::Default => rules.ttl_ms,
                        MarkTtl::Long => rules.long_ttl_ms,
                    })
                });
            self.visit(position, until, rules, now_ms);
        }
    }

    /// Updates the statistics of queued visits (occurrences of positions) for the time `now_ms`: a visit that has
    /// reached the end of an age class (part of a cache lifetime) without a hit counts as a pass of it. Drops visits
    /// past the last age class, and the oldest ones beyond the queue's bound.
    fn age_visits(&mut self, rules: &CacheRules, now_ms: u64) {
        for age in 0..AGES {
            let end = ends_at(age, rules);
            let mut passed = self.passed.get(age).copied().unwrap_or_default();
            while let Some(visit) = self.visits.get(passed).copied()
                && now_ms >= visit.at_ms.saturating_add(end)
            {
                passed += 1;
                let seen = self.seen.get(visit.slot as usize).copied();
                let seen = seen.filter(|seen| seen.hash == visit.hash && seen.times == visit.times);
                if let Some(seen) = seen {
                    for class in [seen.class, Class::broad(seen.class.part)] {
                        self.classes.entry(class).or_default().pass(age);
                    }
                }
            }
            if let Some(place) = self.passed.get_mut(age) {
                *place = passed;
            }
        }
        // Visits past the last age are complete. Beyond the bound, the oldest are dropped too.
        let over = self.passed.last().copied().unwrap_or_default();
        let most = self.most as usize * VISITS_EACH;
        let over = over.max(self.visits.len().saturating_sub(most));
        self.visits.drain(..over.min(self.visits.len()));
        for passed in &mut self.passed {
            *passed = passed.saturating_sub(over);
        }
    }

    fn visit(&mut self, position: &Position, until: u64, rules: &CacheRules, now_ms: u64) {
        let slot = self.slots.get(&position.hash).copied();
        let mut times = 1;
        let mut live_until_ms = until;
        if let Some(seen) = slot.and_then(|slot| self.seen.get(slot as usize).copied()) {
            live_until_ms = until.max(seen.live_until_ms);
            let old_ms = now_ms.saturating_sub(seen.at_ms);
            if let Some(age) = (0..AGES).find(|age| old_ms < ends_at(*age, rules)) {
                times = seen.times.saturating_add(1);
                for class in [seen.class, Class::broad(seen.class.part)] {
                    self.classes.entry(class).or_default().hit(age);
                }
            }
        }
        let slot = match slot {
            Some(slot) => {
                self.recency.touch(slot);
                slot
            }
            None => self.room(position.hash),
        };
        if let Some(seen) = self.seen.get_mut(slot as usize) {
            *seen = Seen {
                hash: position.hash,
                at_ms: now_ms,
                times,
                class: Class::of(position, times),
                live_until_ms,
            };
        }
        self.visits.push_back(Visit {
            slot,
            hash: position.hash,
            at_ms: now_ms,
            times,
        });
    }

    /// Returns the index in `seen` at which a new position (end of a block) with this hash is to be stored. If the
    /// maximum number of positions is tracked already, first evicts the one that occurred least recently.
    fn room(&mut self, hash: u64) -> u32 {
        let oldest = self.recency.oldest();
        let slot = match oldest.filter(|_| self.seen.len() >= self.most as usize) {
            Some(oldest) => {
                self.recency.remove(oldest);
                if let Some(seen) = self.seen.get(oldest as usize) {
                    self.slots.remove(&seen.hash);
                }
                oldest
            }
            None => {
                self.seen.push(Seen {
                    hash,
                    at_ms: 0,
                    times: 0,
                    class: Class::broad(Part::Message),
                    live_until_ms: 0,
                });
                u32::try_from(self.seen.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.recency.add(slot);
        self.slots.insert(hash, slot);
        slot
    }
}

/// Returns the time in milliseconds from a visit (occurrence of a position) to the end of the age class (part of a
/// cache lifetime) with the index `age`.
fn ends_at(age: usize, rules: &CacheRules) -> u64 {
    rules.ttl_ms >> (AGES - 1).saturating_sub(age)
}

/// Number of age classes into which a cache lifetime is divided. Each class is as long as all earlier ones together;
/// the last one ends with the lifetime.
const AGES: usize = 8;

/// Number of visits (occurrences of positions) counted in a [`Class`] at which all counts of the class are halved, so
/// that older visits count less.
const WINDOW: f64 = 1_024.0;

/// Weight of [`FIRST_GUESS`] in the estimated probability of a hit, as a number of visits (occurrences of a position).
const PRIOR_WEIGHT: f64 = 8.0;

/// The probability of a hit (that a position recurs) in each age class (part of a cache lifetime) that is assumed
/// before any position of the class has occurred: too low for any marker.
const FIRST_GUESS: f64 = 0.01;

/// The ratio that is assumed before any position of a [`Class`] has occurred: of the hits (positions that recurred) to
/// the predicted number of hits.
const FIRST_RATIO: f64 = 0.25;
/// Weight of [`FIRST_RATIO`] in the estimated ratio, as a number of hits (positions that recurred).
const RATIO_WEIGHT: f64 = 2.0;

/// The maximum number of consecutive documents that a [`Class`] distinguishes; positions (ends of blocks) after more
/// documents count as after this many.
const MOST_DEPTH: u8 = 24;

/// The maximum number of occurrences of a position that a [`Class`] distinguishes; more occurrences count as this many.
const MOST_TIMES: u8 = 4;

/// The maximum number of visits (occurrences of a position) in the queue of a [`Ledger`], for each position that it may
/// track.
const VISITS_EACH: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuts::CacheKind;

    fn position(hash: u64) -> Position {
        Position {
            hash,
            tokens: 2_000,
            part: Part::Document,
            depth: 1,
            step: 1,
            mark: None,
            ends_message: false,
            place: None,
        }
    }

    fn layout(hash: u64) -> Layout {
        Layout {
            positions: vec![position(hash)],
            ..Layout::default()
        }
    }

    fn take(ledger: &mut Ledger, hash: u64, now_ms: u64) {
        let rules = CacheKind::Anthropic.rules("");
        ledger.set_back(now_ms);
        ledger.take(&layout(hash), &[], None, &rules, now_ms);
    }

    #[test]
    fn the_estimate_is_the_share_that_comes_again_in_time_even_while_most_are_young() {
        // Every third position recurs ten seconds later; a new one every second.
        let mut ledger = Ledger::new(10_000);
        for second in 0..1_200_u64 {
            take(&mut ledger, second, second * 1_000);
            if second >= 10 && second % 3 == 0 {
                take(&mut ledger, second - 10, second * 1_000);
            }
            if [120, 600, 1_199].contains(&second) {
                let again = ledger.again(&position(0), 1);
                assert!((0.27..0.40).contains(&again), "{again} at {second} s");
            }
        }
    }

    #[test]
    fn what_never_comes_again_or_comes_too_late_is_improbable() {
        let mut ledger = Ledger::new(10_000);
        let rules = CacheKind::Anthropic.rules("");
        for hash in 0..500 {
            take(&mut ledger, hash, hash * 1_000);
        }
        for hash in 0..500 {
            take(&mut ledger, hash, hash * 1_000 + 2 * rules.ttl_ms);
        }
        assert!(ledger.again(&position(0), 1) < 0.1);
        assert!(Ledger::new(9).again(&position(0), 1) < 0.2);
    }

    #[test]
    fn after_the_clock_is_set_back_what_no_longer_comes_again_is_improbable() {
        let mut ledger = Ledger::new(10_000);
        let ahead_ms = 86_400_000;
        for second in 0..500 {
            take(&mut ledger, 7, ahead_ms + second * 1_000);
        }
        for second in 0..5_000 {
            take(&mut ledger, 1_000 + second, second * 1_000);
        }
        let again = ledger.again(&position(0), 1);
        assert!(again < 0.1, "{again}");
    }

    #[test]
    fn memory_is_bounded_and_the_least_recently_seen_position_goes() {
        let mut ledger = Ledger::new(100);
        for hash in 0..1_000 {
            take(&mut ledger, 7_777, hash);
            take(&mut ledger, hash, hash);
        }
        assert_eq!((ledger.seen.len(), ledger.slots.len()), (100, 100));
        assert!(ledger.visits.len() <= 200 + 2);
        assert!(ledger.seen(7_777).is_some() && ledger.seen(0).is_none());
        assert!(ledger.seen(999).is_some());
    }
}
