//! Requests that are guesses at one and the same request to come (RAGCache, section 5.3).
//!
//! While documents are still being searched for, the prompt that they would make is computed already, under an id that
//! all guesses share. At most one request of an id is here:
//!
//! ```text
//!   guess [D1 D3]  ── computing ──▶ superseded by the next guess; its pages stay cached
//!   guess [D1 D2]                   ── finds D1 cached, goes on ──▶ …
//!   the request itself, [D1 D2]                                     ── joins: takes the guess's place and progress
//! ```
//!
//! Both happen between two steps, so a step that is being computed is always finished ("after the current iteration").

use super::{Active, Core, Sequence};
use crate::engine::{Event, Failure};

impl Core {
    /// Lets a request that has just come meet an earlier one of its id. `None`: it has taken that one's place.
    pub(super) fn meet(&mut self, mut sequence: Sequence) -> Option<Sequence> {
        let Some(id) = sequence.speculation else {
            return Some(sequence);
        };
        let same_id =
            |other: &Sequence| other.speculation == Some(id) && other.salt == sequence.salt;
        if let Some(at) = self
            .running
            .iter()
            .position(|active| same_id(&active.sequence))
        {
            // Nothing of it has been answered: who asks for the same may have all of it.
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

    /// A running sequence goes on as `sequence`, whose prompt is the same.
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
