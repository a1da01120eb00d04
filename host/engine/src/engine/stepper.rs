//! The engine without its thread: whoever holds it says when the next step is, and what time it is.

use super::core::Core;
use super::room::Room;
use super::work::Answers;
use super::{Bounds, EngineConfig, Generation, Request, Stats, SubmitError};
use crate::backend::Backend;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Everything that [`Engine`](super::Engine) decides and computes, one step a call, for simulations with a clock of
/// their own and for measuring steps. There is no watchdog: a step that sticks sticks here.
pub struct Stepper {
    core: Core,
    backend: Box<dyn Backend>,
    answers: Answers,
    room: Arc<Room>,
    bell: Arc<AtomicU64>,
    bounds: Bounds,
}

impl Stepper {
    /// An engine on `backend` with nothing to do.
    pub fn new(backend: Box<dyn Backend>, config: &EngineConfig) -> Self {
        let bell = Arc::new(AtomicU64::new(0));
        Self {
            core: Core::new(&*backend, config, bell.clone()),
            bounds: Bounds::of(&*backend),
            backend,
            answers: Answers::default(),
            room: Room::new(config),
            bell,
        }
    }

    /// Queues a request that comes at `now`.
    ///
    /// # Errors
    /// As [`Engine::submit`](super::Engine::submit).
    pub fn submit(&mut self, request: Request, now: Instant) -> Result<Generation, SubmitError> {
        let (sequence, generation) = request.admit(&self.room, self.bounds, &self.bell, now)?;
        self.core.enqueue([sequence]);
        Ok(generation)
    }

    /// Decides and computes one step at `now`; the events that it causes can be received afterwards.
    pub fn step(&mut self, now: Instant) {
        let work = self.core.prepare(now);
        let outcome = work.run(&mut *self.backend, &mut self.answers);
        self.core
            .complete(&work, outcome.map(|()| &mut self.answers));
        self.core.send_events();
        // Nobody follows its cache.
        let _ = self.core.take_cache_events();
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    /// Gauges and counters now.
    pub fn stats(&self) -> Stats {
        Stats {
            speculations_refused: self.room.refused_guesses(),
            ..self.core.stats()
        }
    }

    /// Asserts every invariant of the engine's state; costs as much as the pool is large.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn check(&self) {
        self.core.check();
    }
}
