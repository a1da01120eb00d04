//! Checks of the invariants of the engine's state.

use super::*;

impl Core {
    /// Asserts every invariant of the engine's state.
    pub(in crate::engine) fn check(&self) {
        let held = self.held.iter().map(|held| &held.active);
        self.cache
            .check((self.running.iter().chain(held)).map(|active| &active.lease));
        if self.held.is_empty() && self.is_idle() {
            assert_eq!(self.cache.stats().in_use, 0);
        }
        assert!(self.running.len() + self.joined() <= self.limits.max_running as usize);
        for active in &self.running {
            let Sequence { kind, end, .. } = active.sequence;
            let length = active.sequence.length();
            assert!(active.computed < length);
            let is_scored = active.sequence.scores.is_some();
            assert!(length < end || ((kind == Kind::Prefill || is_scored) && length == end));
            let pages = active.lease.pages().len() as u32;
            assert!(active.computed + active.share <= pages * self.limits.page_tokens);
        }
        let planned: u32 = self.running.iter().map(|active| active.share).sum();
        assert!(planned <= self.max_prefill_step_tokens);
    }
}
