//! Device failures: a failed call, a lost device, or a device that the engine abandons.
//!
//! | event | pages | sequences in the step | other running sequences |
//! | --- | --- | --- | --- |
//! | a call failed | those that it was to write are undefined | requeued at the head | untouched |
//! | the device was lost, or replaced | all are undefined | requeued at the head | requeued at the head |
//! | a call was malformed | unchanged | fail, because the same call would be malformed again | untouched |
//!
//! A request that returns to the queue keeps its tokens. Before its first token its prompt is computed again; later it
//! continues from its last token. In both cases it starts from the prefix that is still cached (RAGCache, section 6).
//! Its tokens stay the same, because they depend on the sequence alone. A request during which the device fails again
//! and again may be the cause, so it fails after [`EngineConfig::max_retries`](super::EngineConfig).

use super::speculation::HeldPrefill;
use super::tiers::pools;
use super::{Active, Core, Sequence};
use crate::backend::{Backend, BackendError};
use crate::engine::{Bounds, Event, Failure};

impl Core {
    /// Handles the error that the device returned for the work prepared last, by the table in the [module](self).
    pub(super) fn handle_failure(&mut self, error: &BackendError) {
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

    /// Continues on `backend`, another device, whose pages hold nothing yet: the cache starts empty. Running sequences
    /// return to the queue; `failure` is the reason that the old device was given up.
    ///
    /// # Errors
    /// Returns a message when the new device's dimensions differ from the old one's.
    pub(in crate::engine) fn replace_device(
        &mut self,
        backend: &dyn Backend,
        failure: &Failure,
    ) -> Result<(), String> {
        let (old, new) = (self.bounds, Bounds::of(backend));
        let page_tokens = backend.shape().page_tokens;
        if old != new || page_tokens != self.limits.page_tokens {
            return Err(format!(
                "the new device has {new:?} and pages of {page_tokens} tokens, the old one {old:?} and {}",
                self.limits.page_tokens
            ));
        }
        self.cache.start_over(pools(backend), &self.cache_config);
        // Remembered lookups refer to the old cache.
        for sequence in self.waiting.iter_mut() {
            sequence.lookup = None;
        }
        self.lose_leases(failure);
        Ok(())
    }

    /// Ends every waiting and running request with `failure`.
    pub(in crate::engine) fn fail_all(&mut self, failure: &Failure) {
        self.stop_fetching(|_| true);
        let running = self.take_all();
        // The leases need not be closed, because nothing is computed any more.
        let running = running.into_iter().map(|active| active.sequence);
        let sequences: Vec<Sequence> = running.chain(self.waiting.extract(|_| true)).collect();
        for sequence in sequences {
            self.end(&sequence, Event::Failed(failure.clone()));
        }
    }

    /// Returns all running sequences to the queue and drops their leases (holds on pages), because the device's pages
    /// are lost. Those with too many faults end with `failure`.
    fn lose_leases(&mut self, failure: &Failure) {
        self.totals.devices_lost += 1;
        for active in self.take_all().into_iter().rev() {
            self.retry(active.sequence, active.touched, failure);
        }
    }

    /// Puts a sequence back at the head of the queue. If `suspect`, counts a fault first, and ends the sequence with
    /// `failure` if it has more than `max_retries` faults.
    fn retry(&mut self, mut sequence: Sequence, suspect: bool, failure: &Failure) {
        sequence.faults += u32::from(suspect);
        if sequence.faults > self.max_retries {
            self.end(&sequence, Event::Failed(failure.clone()));
        } else {
            self.totals.retries += 1;
            self.put_back(sequence);
        }
    }

    /// Removes and returns all running sequences, and the requests that have joined a speculative prefill with a
    /// computed prompt. Drops the other computed speculative prefills.
    fn take_all(&mut self) -> Vec<Active> {
        let mut all = self.take_running(|_| true);
        let joined = self.held.drain(..).filter(HeldPrefill::is_joined);
        all.extend(joined.map(|held| held.active));
        all
    }

    fn take_running(&mut self, which: impl Fn(&Active) -> bool) -> Vec<Active> {
        self.running
            .extract_if(.., |active| which(active))
            .collect()
    }
}
