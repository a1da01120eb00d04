//! When the device fails, is lost, or is given up.
//!
//! | what happened | pages | those in the step | the others |
//! | --- | --- | --- | --- |
//! | a call failed | those that it was to write are undefined | wait ahead of all others | untouched |
//! | the device was lost, or replaced | all are undefined | wait ahead of all others | wait ahead of all others |
//! | a call was malformed | as they were | fail: it would be as malformed again | untouched |
//!
//! A request that waits again keeps its tokens. Before its first token its prompt is computed again, later it goes on
//! from what it has, each from what the cache still holds of it (RAGCache, section 6); its tokens are the same, since
//! they depend on the sequence alone. A request under which the device fails again and again may be the reason: after
//! [`EngineConfig::max_retries`](super::EngineConfig) it fails.

use super::tiers::pools;
use super::{Active, Core, Sequence};
use crate::backend::{Backend, BackendError};
use crate::engine::{Bounds, Event, Failure};

impl Core {
    /// Deals with a device that did not compute the prepared work.
    pub(super) fn suffer(&mut self, error: &BackendError) {
        let failure = Failure::Device(error.to_string());
        match error {
            BackendError::Malformed(_) => {
                for active in self.take_running(|active| active.touched) {
                    self.cache.abandon(active.lease);
                    self.end(&active.sequence, Event::Failed(failure.clone()));
                }
                self.cache.failed();
            }
            BackendError::Device(_) => {
                let hit = self.take_running(|active| active.touched);
                for active in hit.into_iter().rev() {
                    self.cache.abandon(active.lease);
                    self.retry(active.sequence, active.touched, &failure);
                }
                self.cache.failed();
            }
            BackendError::Lost(_) => {
                self.cache.lose_device();
                self.lose_leases(&failure);
            }
        }
        for active in &mut self.running {
            active.share = 0;
        }
    }

    /// Goes on with another device, of which no page holds anything yet. Whoever was being computed waits again.
    ///
    /// # Errors
    /// In words, when the requests that were taken in for the old device do not fit the new one.
    pub(in crate::engine) fn replace_device(
        &mut self,
        backend: &dyn Backend,
        failure: &Failure,
    ) -> Result<(), String> {
        let (old, new) = (self.bounds, Bounds::of(backend));
        let page_tokens = backend.page_tokens();
        if old != new || page_tokens != self.limits.page_tokens {
            return Err(format!(
                "the new device has {new:?} and pages of {page_tokens} tokens, the old one {old:?} and {}",
                self.limits.page_tokens
            ));
        }
        self.cache.start_over(pools(backend), &self.cache_config);
        // What was seen, was seen in the old one.
        for sequence in self.waiting.iter_mut() {
            sequence.sighting = None;
        }
        self.lose_leases(failure);
        Ok(())
    }

    /// Ends everything that was taken in.
    pub(in crate::engine) fn fail_all(&mut self, failure: &Failure) {
        self.stop_fetching();
        let running = self.take_running(|_| true);
        // The leases need no end: nothing is computed any more.
        let running = running.into_iter().map(|active| active.sequence);
        let sequences: Vec<Sequence> = running.chain(self.waiting.extract(|_| true)).collect();
        for sequence in sequences {
            self.end(&sequence, Event::Failed(failure.clone()));
        }
    }

    /// Lets whoever was being computed wait again. Their leases are void.
    fn lose_leases(&mut self, failure: &Failure) {
        self.totals.devices_lost += 1;
        let running = self.take_running(|_| true);
        for active in running.into_iter().rev() {
            self.retry(active.sequence, active.touched, failure);
        }
    }

    /// Lets a sequence wait again. It counts as a fault of the `suspect` ones only.
    fn retry(&mut self, mut sequence: Sequence, suspect: bool, failure: &Failure) {
        sequence.faults += u32::from(suspect);
        if sequence.faults > self.max_retries {
            self.end(&sequence, Event::Failed(failure.clone()));
        } else {
            self.totals.retries += 1;
            self.put_back(sequence);
        }
    }

    fn take_running(&mut self, which: impl Fn(&Active) -> bool) -> Vec<Active> {
        self.running
            .extract_if(.., |active| which(active))
            .collect()
    }
}
