//! The engine without its thread: the caller decides when each step happens, and at what time.

use super::admission::Admission;
use super::core::Core;
use super::work::Answers;
use super::{Bounds, EngineConfig, Generation, Request, Stats, SubmitError};
use crate::backend::Backend;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// An [`Engine`](super::Engine) that computes one step per call, for simulations with their own clock and for measuring
/// steps. It has no watchdog, so a stuck step blocks the caller.
pub struct Stepper {
    core: Core,
    backend: Box<dyn Backend>,
    answers: Answers,
    admission: Arc<Admission>,
    bell: Arc<AtomicU64>,
    bounds: Bounds,
}

impl Stepper {
    /// Returns an engine without requests on `backend`.
    pub fn new(backend: Box<dyn Backend>, config: &EngineConfig) -> Self {
        let bell = Arc::new(AtomicU64::new(0));
        Self {
            core: Core::new(&*backend, config, bell.clone()),
            bounds: Bounds::of(&*backend),
            admission: Admission::new(config, backend.shape().kv_tokens()),
            backend,
            answers: Answers::default(),
            bell,
        }
    }

    /// Queues a request that arrives at `now`.
    ///
    /// # Errors
    /// The errors of [`Engine::submit`](super::Engine::submit).
    pub fn submit(&mut self, request: Request, now: Instant) -> Result<Generation, SubmitError> {
        let (sequence, generation) =
            request.admit(&self.admission, self.bounds, &self.bell, now)?;
        self.core.enqueue([sequence]);
        Ok(generation)
    }

    /// Decides what to compute at time `now`, and computes one step. The events that it causes can be received
    /// afterwards.
    pub fn step(&mut self, now: Instant) {
        let work = self.core.prepare(now);
        self.core.send_events();
        let outcome = work.run(&mut *self.backend, &mut self.answers);
        self.core
            .complete(&work, outcome.map(|()| &mut self.answers));
        self.core.send_events();
        // No reader follows this engine's cache.
        let _ = self.core.take_cache_events();
    }

    /// Returns whether the engine has no request, neither waiting nor running.
    pub fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    /// Returns the engine's gauges and counters now.
    pub fn stats(&self) -> Stats {
        Stats {
            speculations_refused: self.admission.refused_guesses(),
            ..self.core.stats()
        }
    }

    /// Asserts every invariant of the engine's state. The cost is proportional to the number of pages in the pools.
    ///
    /// # Panics
    /// Panics when an invariant does not hold.
    #[cfg(any(test, feature = "invariants"))]
    pub fn check(&self) {
        self.core.check();
    }
}
