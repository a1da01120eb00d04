//! Speculative prefills, called guesses here: prompts that one later request may have (RAGCache, section 5.3).
//!
//! While a search for documents continues, the engine already computes the prompt of the documents found so far, under
//! an id that all guesses share. At most one request of an id is in the engine:
//!
//! ```text
//!   guess [D1 D3]  ── computing ──▶ superseded by the next guess; its pages stay cached
//!   guess [D1 D2]                   ── finds D1 cached, continues ──▶ …
//!   the request itself, [D1 D2]                                     ── joins: takes the guess's place and progress
//! ```
//!
//! A guess whose prompt is computed is held with the logits of its last token, so that the request's first token needs
//! no further step. It keeps its pages until its caller drops it, its deadline passes, or a request lacks pages.
//!
//! Superseding and joining happen between two steps, so a step in progress is always finished ("after the current
//! iteration").

use super::{Active, Core, Sequence};
use crate::engine::{Event, Failure, FinishReason, Kind};

/// A speculative prefill (guess) whose prompt is computed and whose pages are kept, or the anticipated request that has
/// taken its place.
pub(super) struct HeldPrefill {
    pub(super) active: Active,
    /// The logits of the prompt's last token, from which the first token of the answer is sampled.
    logits: Vec<f32>,
}

impl HeldPrefill {
    /// Returns true if the anticipated request has arrived and has taken over this prefill, so that the next step
    /// samples the request's first token. Returns false as long as this is a speculative prefill that waits for the
    /// request.
    pub(super) fn is_joined(&self) -> bool {
        self.active.sequence.kind == Kind::Answer
    }
}

/// Maximum number of speculative prefills (guesses) of one engine whose prompts are computed and whose pages are kept
/// in use for the anticipated request. A further one ends when its prompt is computed; its pages stay cached, but can
/// be evicted.
const MAX_HELD: usize = 8;

impl Core {
    /// Reports a speculative prefill (guess) as finished, and keeps its pages and `logits` for the anticipated request,
    /// unless [`MAX_HELD`] guesses are already kept.
    pub(super) fn hold(&mut self, mut active: Active, logits: &[f32]) {
        if self.held.len() == MAX_HELD {
            return self.finish(active, FinishReason::Prefilled);
        }
        self.cache
            .commit(&mut active.lease, &active.sequence.tokens, active.computed);
        self.end(&active.sequence, Event::Finished(FinishReason::Prefilled));
        let logits = logits.to_vec();
        self.held.push(HeldPrefill { active, logits });
    }

    /// Releases the pages of computed speculative prefills for which `which` is true and which no request has joined;
    /// their KV state stays cached. Returns true if there was one.
    pub(super) fn release_held(&mut self, which: impl Fn(&Sequence) -> bool) -> bool {
        let is_meant = |held: &mut HeldPrefill| !held.is_joined() && which(&held.active.sequence);
        let released: Vec<HeldPrefill> = self.held.extract_if(.., is_meant).collect();
        let is_any = !released.is_empty();
        for held in released {
            self.close(held.active);
        }
        is_any
    }

    /// Returns the number of computed speculative prefills whose anticipated requests have arrived and taken their
    /// places.
    pub(super) fn joined(&self) -> usize {
        self.held.iter().filter(|held| held.is_joined()).count()
    }

    /// Samples the first token of each request that has taken the place of a computed speculative prefill, and
    /// continues or ends the request.
    pub(super) fn continue_joined(&mut self) {
        let joined = self.held.extract_if(.., |held| held.is_joined());
        for mut held in joined.collect::<Vec<_>>() {
            self.advance(held.active, Some(&mut held.logits));
        }
    }

    /// Lets a new request take over the progress of the earlier one with its speculation id and salt, and returns
    /// `None`, if their prompts are equal (and, if the earlier one's prompt is computed, the new one can run at once).
    /// Otherwise ends the earlier one, if there is one, and returns the new request for the queue.
    pub(super) fn join_speculation(&mut self, mut sequence: Sequence) -> Option<Sequence> {
        if sequence.speculation.is_none() {
            return Some(sequence);
        }
        self.stop_fetching(|guess| guess.has_speculation_of(&sequence));
        let same_id = |other: &Sequence| other.has_speculation_of(&sequence);
        let is_guess = |held: &HeldPrefill| !held.is_joined() && same_id(&held.active.sequence);
        if let Some(at) = self.held.iter().position(is_guess) {
            let has_slot = self.running.len() + self.joined() < self.limits.max_running as usize;
            let held = &mut self.held[at].active;
            let is_same = held.sequence.tokens == sequence.tokens;
            if has_slot && is_same && sequence.kind == Kind::Answer {
                self.totals.speculations_joined += 1;
                sequence.started = true;
                sequence.place = None;
                // A request's cached tokens never include the last one of its prompt.
                let cached_tokens = held.computed.saturating_sub(1);
                let events = sequence.events.clone();
                held.sequence = sequence;
                self.outbox.push((events, Event::Started { cached_tokens }));
                return None;
            }
            let held = self.held.remove(at);
            self.close(held.active);
        } else if let Some(at) = self
            .running
            .iter()
            .position(|active| same_id(&active.sequence))
        {
            // The guess has produced no tokens yet, so a request for the same prompt can take it over whole.
            let joins = self.running[at].sequence.tokens == sequence.tokens;
            if joins {
                self.totals.speculations_joined += 1;
                self.next_deadline = super::earlier(self.next_deadline, sequence.deadline);
                sequence.place = None;
                self.take_over(at, sequence);
                return None;
            }
            let active = self.running.remove(at);
            let superseded = self.close(active);
            self.supersede(&superseded);
        } else if let Some(earlier) = self.waiting.find_mut(same_id) {
            let joins = earlier.tokens == sequence.tokens && !earlier.started;
            if joins {
                self.totals.speculations_joined += 1;
                self.next_deadline = super::earlier(self.next_deadline, sequence.deadline);
                let replaced = std::mem::replace(earlier, sequence);
                self.end(&replaced, Event::Failed(Failure::Superseded));
                return None;
            }
            for superseded in self.waiting.extract(same_id) {
                self.supersede(&superseded);
            }
        }
        Some(sequence)
    }

    /// Replaces the running sequence with index `at` by `sequence`, whose prompt is the same, and keeps the pages that
    /// were computed. The replaced request ends as superseded.
    fn take_over(&mut self, at: usize, mut sequence: Sequence) {
        let Active {
            sequence: running,
            computed,
            ..
        } = &mut self.running[at];
        sequence.started = true;
        sequence.faults = running.faults;
        let cached_tokens = *computed;
        let replaced = std::mem::replace(running, sequence);
        let events = running.events.clone();
        self.end(&replaced, Event::Failed(Failure::Superseded));
        self.outbox.push((events, Event::Started { cached_tokens }));
    }

    fn supersede(&mut self, sequence: &Sequence) {
        self.totals.speculations_superseded += 1;
        self.end(sequence, Event::Failed(Failure::Superseded));
    }
}
