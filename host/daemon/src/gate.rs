//! Who may come in: the server's phase and the number of requests inside, changed together.
//!
//! ```text
//!   Loading ──▶ Open ──▶ Stopping ──▶ Cut ──▶ Closed
//!   refuse      let in    refuse,      tell those   drop the
//!               (bounded) wait for     inside to    listener
//!                         those inside end
//! ```
//!
//! The gate knows nothing of HTTP or of the engine. Its bound is what keeps memory bounded: a request holds a place
//! from before its body is read until its answer is complete or dropped.

use crate::failure::{Failure, SOON};
use std::sync::Arc;
use tokio::sync::watch;

/// Where the server stands in its life. Phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The model is being read.
    Loading,
    /// Requests are served.
    Open,
    /// No request is let in; those inside finish.
    Stopping,
    /// Those still inside must end now.
    Cut,
    /// Nothing is served any more.
    Closed,
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    state: watch::Sender<State>,
    /// Requests that may be inside at once.
    limit: u32,
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    inside: u32,
}

impl Gate {
    /// A gate in phase `Loading` that will let in `limit` requests at once.
    pub fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::new(State {
                phase: Phase::Loading,
                inside: 0,
            }),
            limit,
        })
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        self.state.borrow().phase
    }

    /// The number of requests inside now.
    pub fn inside(&self) -> u32 {
        self.state.borrow().inside
    }

    /// Goes on to `phase`; does nothing when it is already there or beyond.
    pub fn advance(&self, phase: Phase) {
        self.state.send_if_modified(|state| {
            let later = phase > state.phase;
            if later {
                state.phase = phase;
            }
            later
        });
    }

    /// Lets one request in.
    ///
    /// # Errors
    /// [`Failure::Loading`], [`Failure::Stopping`], or [`Failure::QueueFull`] when the house is full.
    pub fn enter(self: &Arc<Self>) -> Result<Pass, Failure> {
        let mut outcome = Err(Failure::Stopping);
        self.state.send_if_modified(|state| {
            outcome = match state.phase {
                Phase::Loading => Err(Failure::Loading),
                Phase::Open if state.inside >= self.limit => Err(Failure::QueueFull {
                    limit: self.limit,
                    retry_after: SOON,
                }),
                Phase::Open => {
                    state.inside += 1;
                    Ok(())
                }
                Phase::Stopping | Phase::Cut | Phase::Closed => Err(Failure::Stopping),
            };
            false // nobody waits for an arrival
        });
        outcome.map(|()| Pass {
            gate: Arc::clone(self),
            state: self.state.subscribe(),
        })
    }

    /// Returns once the phase is `phase` or later.
    pub async fn reached(&self, phase: Phase) {
        // The sender is `self`: it outlives this wait.
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| state.phase >= phase)
            .await;
    }

    /// Returns once nobody is inside.
    pub async fn emptied(&self) {
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| state.inside == 0)
            .await;
    }
}

/// A place inside; given back when dropped.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    state: watch::Receiver<State>,
}

impl Pass {
    /// Returns when the holder must end now.
    pub async fn cut(&mut self) {
        let _ = self.state.wait_for(|state| state.phase >= Phase::Cut).await;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.state.send_if_modified(|state| {
            state.inside -= 1;
            state.inside == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_open_gate_lets_in_and_only_up_to_its_limit() {
        let gate = Gate::new(2);
        assert!(matches!(gate.enter(), Err(Failure::Loading)));
        gate.advance(Phase::Open);
        let first = gate.enter().unwrap();
        let _second = gate.enter().unwrap();
        assert!(matches!(
            gate.enter(),
            Err(Failure::QueueFull { limit: 2, .. })
        ));
        drop(first);
        let _third = gate.enter().unwrap();
        gate.advance(Phase::Stopping);
        assert!(matches!(gate.enter(), Err(Failure::Stopping)));
    }

    #[test]
    fn phases_do_not_go_back() {
        let gate = Gate::new(1);
        gate.advance(Phase::Stopping);
        gate.advance(Phase::Open);
        assert_eq!(gate.phase(), Phase::Stopping);
    }

    #[tokio::test]
    async fn emptied_waits_for_the_last_pass() {
        let gate = Gate::new(2);
        gate.advance(Phase::Open);
        let passes = [gate.enter().unwrap(), gate.enter().unwrap()];
        let waiter = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move {
                gate.emptied().await;
                gate.inside()
            }
        });
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(passes);
        assert_eq!(waiter.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_cut_reaches_those_inside() {
        let gate = Gate::new(1);
        gate.advance(Phase::Open);
        let mut pass = gate.enter().unwrap();
        gate.advance(Phase::Cut);
        pass.cut().await;
    }
}
