//! The gate: the phase of the server's life cycle and the number of requests in flight, which change under one lock.
//!
//! ```text
//!   Loading ──▶ Open ──▶ Stopping ──▶ Cut ──▶ Closed
//!   refuse      admit     refuse,      abort       close the
//!               (bounded) wait for     those       listener
//!                         those inside inside
//! ```
//!
//! The gate knows nothing of HTTP or of the engine. Its limit bounds memory: a request is admitted, and counts as in
//! flight, when its body is complete, until its answer is complete or dropped. While the body arrives, the request only
//! counts as *arriving*, so a client that does not send its body blocks no other; [`connections`](crate::connections)
//! bounds the memory of such bodies. A request that arrived in phase `Open` may still be admitted in `Stopping`.

use crate::connections::Closing;
use crate::failure::{Failure, SOON};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The phase of the server's life cycle. Phases only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The model is being loaded.
    Loading,
    /// Requests are served.
    Open,
    /// No request is admitted; those in flight finish.
    Stopping,
    /// Requests still in flight are aborted.
    Cut,
    /// The server is closed: its connections end.
    Closed,
}

/// Admits requests: tracks the server's phase, and limits the number of requests in flight.
#[derive(Debug)]
pub struct Gate {
    state: watch::Sender<GateState>,
    /// Maximum number of requests in flight at once.
    limit: u32,
}

#[derive(Clone, Copy, Debug)]
struct GateState {
    phase: Phase,
    inside: u32,
    /// Number of requests whose bodies are still arriving, which do not count as in flight.
    arriving: u32,
    /// Time when a request was last admitted or ended, or when the gate was created.
    moved: Instant,
}

impl Gate {
    /// Returns a gate that will admit at most `limit` requests in flight at once; none while the server is loading its
    /// model, the first phase.
    pub fn new(limit: u32) -> Arc<Self> {
        Arc::new(Self {
            state: watch::Sender::new(GateState {
                phase: Phase::Loading,
                inside: 0,
                arriving: 0,
                moved: Instant::now(),
            }),
            limit,
        })
    }

    /// Returns the maximum number of requests in flight at once.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the current phase of the server's life cycle.
    pub fn phase(&self) -> Phase {
        self.state.borrow().phase
    }

    /// Returns the number of requests in flight, without those whose bodies are still arriving.
    pub fn inside(&self) -> u32 {
        self.state.borrow().inside
    }

    /// Returns whether the maximum number of requests is in flight and none was admitted or ended within the last
    /// `time`.
    pub fn is_exhausted(&self, time: Duration) -> bool {
        let state = self.state.borrow();
        state.inside >= self.limit && state.moved.elapsed() >= time
    }

    /// Advances the server to `phase`; does nothing if it is already in that phase or a later one.
    pub fn advance(&self, phase: Phase) {
        self.state.send_if_modified(|state| {
            let later = phase > state.phase;
            if later {
                state.phase = phase;
            }
            later
        });
    }

    /// Admits a request whose body is complete; it is in flight until the result is dropped.
    ///
    /// # Errors
    /// Returns [`Failure::Loading`], [`Failure::Stopping`], or [`Failure::QueueFull`] if the maximum number of requests
    /// is in flight.
    pub fn enter(self: &Arc<Self>) -> Result<Pass, Failure> {
        self.arrive()?.enter()
    }

    /// Returns the maximum number of choices that one request may have.
    pub fn most_choices(&self) -> u32 {
        self.limit - self.limit / 4
    }

    /// Admits another choice of a request that is in flight, as [`Gate::enter`] does, but leaves a quarter of the places
    /// to requests: a few with many choices would take all.
    ///
    /// # Errors
    /// Returns the errors of [`Gate::enter`].
    pub fn enter_another(self: &Arc<Self>) -> Result<Pass, Failure> {
        if self.inside() >= self.most_choices() {
            return Err(self.full());
        }
        self.enter()
    }

    /// Registers a request whose body is still arriving; [`Arrival::enter`] admits it afterwards.
    ///
    /// # Errors
    /// Returns the errors of [`Gate::enter`], so that the body of a refused request need not be read.
    pub fn arrive(self: &Arc<Self>) -> Result<Arrival, Failure> {
        let mut outcome = Err(Failure::Stopping);
        self.state.send_if_modified(|state| {
            outcome = match state.phase {
                Phase::Loading => Err(Failure::Loading),
                Phase::Open if state.inside >= self.limit => Err(self.full()),
                Phase::Open => {
                    state.arriving += 1;
                    Ok(())
                }
                Phase::Stopping | Phase::Cut | Phase::Closed => Err(Failure::Stopping),
            };
            false // nobody waits for an arrival
        });
        outcome.map(|()| Arrival {
            gate: Arc::clone(self),
            state: self.state.subscribe(),
        })
    }

    fn full(&self) -> Failure {
        Failure::QueueFull {
            limit: self.limit,
            retry_after: SOON,
        }
    }

    /// Waits until the server's phase is `phase` or a later one.
    pub async fn reached(&self, phase: Phase) {
        // The sender is `self`, which outlives this wait.
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| state.phase >= phase)
            .await;
    }

    /// Waits until no request is in flight or arriving.
    pub async fn emptied(&self) {
        let _ = self
            .state
            .subscribe()
            .wait_for(|state| state.inside + state.arriving == 0)
            .await;
    }
}

impl Closing for Gate {
    async fn closed(&self) {
        self.reached(Phase::Closed).await;
    }
}

/// A registered request whose body is still arriving. It does not count as in flight.
#[derive(Debug)]
pub struct Arrival {
    gate: Arc<Gate>,
    state: watch::Receiver<GateState>,
}

impl Arrival {
    /// Waits until the request must be aborted: until the server's phase is `Cut`.
    pub async fn cut(&mut self) {
        let _ = self.state.wait_for(|state| state.phase >= Phase::Cut).await;
    }

    /// Admits the request after its body has arrived; it is in flight until the result is dropped.
    ///
    /// # Errors
    /// Returns [`Failure::Stopping`] if the server already aborts its requests (from phase `Cut` on), and
    /// [`Failure::QueueFull`] if the maximum number of requests is in flight.
    pub fn enter(self) -> Result<Pass, Failure> {
        let gate = &self.gate;
        let mut outcome = Err(Failure::Stopping);
        gate.state.send_if_modified(|state| {
            outcome = if state.phase >= Phase::Cut {
                Err(Failure::Stopping)
            } else if state.inside >= gate.limit {
                Err(gate.full())
            } else {
                state.inside += 1;
                state.moved = Instant::now();
                Ok(())
            };
            false
        });
        outcome.map(|()| Pass {
            gate: Arc::clone(gate),
            state: self.state.clone(),
        })
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.gate.state.send_if_modified(|state| {
            state.arriving -= 1;
            state.inside + state.arriving == 0
        });
    }
}

/// An admitted request's share of the limit of requests in flight. Dropping it ends the request for the gate.
#[derive(Debug)]
pub struct Pass {
    gate: Arc<Gate>,
    state: watch::Receiver<GateState>,
}

impl Pass {
    /// Waits until the request must be aborted: until the server's phase is `Cut`.
    pub async fn cut(&mut self) {
        let _ = self.state.wait_for(|state| state.phase >= Phase::Cut).await;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.state.send_if_modified(|state| {
            state.inside -= 1;
            state.moved = Instant::now();
            state.inside + state.arriving == 0
        });
    }
}

/// Time for which a resource (connections, requests in flight, or permits of workers) must be used up, without any of
/// it becoming free, until `/readyz` returns 503.
pub const EXHAUSTED_AFTER: Duration = Duration::from_secs(10);

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
    fn other_choices_leave_a_quarter_to_requests() {
        let gate = Gate::new(8);
        gate.advance(Phase::Open);
        let mut inside = vec![gate.enter().unwrap()];
        while let Ok(pass) = gate.enter_another() {
            inside.push(pass);
        }
        assert_eq!(gate.inside(), 6);
        inside.extend([gate.enter().unwrap(), gate.enter().unwrap()]);
        assert!(matches!(gate.enter(), Err(Failure::QueueFull { .. })));
    }

    #[tokio::test]
    async fn who_arrives_takes_no_place_and_may_enter_while_the_server_stops() {
        let gate = Gate::new(1);
        gate.advance(Phase::Open);
        let [first, second, third, late] = [(); 4].map(|()| gate.arrive().unwrap());
        assert_eq!(gate.inside(), 0);
        let pass = first.enter().unwrap();
        // Other requests took the places.
        assert!(matches!(second.enter(), Err(Failure::QueueFull { .. })));
        assert!(matches!(gate.arrive(), Err(Failure::QueueFull { .. })));
        gate.advance(Phase::Stopping);
        drop(pass);
        let pass = third.enter().unwrap();
        gate.advance(Phase::Cut);
        assert!(matches!(late.enter(), Err(Failure::Stopping)));
        drop(pass);
        gate.emptied().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_house_is_exhausted_when_nobody_leaves_for_a_while() {
        let gate = Gate::new(2);
        gate.advance(Phase::Open);
        let first = gate.enter().unwrap();
        let time = Duration::from_secs(10);
        tokio::time::sleep(time).await;
        assert!(!gate.is_exhausted(time));
        let _second = gate.enter().unwrap();
        tokio::time::sleep(time / 2).await;
        // One leaves and another one enters: the gate is not exhausted.
        drop(first);
        let _third = gate.enter().unwrap();
        tokio::time::sleep(time / 2).await;
        assert!(!gate.is_exhausted(time));
        tokio::time::sleep(time / 2).await;
        assert!(gate.is_exhausted(time));
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
        let inside = tokio::spawn(async move { pass.cut().await });
        tokio::task::yield_now().await;
        assert!(!inside.is_finished(), "nothing is cut yet");
        gate.advance(Phase::Cut);
        let told = tokio::time::timeout(Duration::from_secs(60), inside).await;
        told.expect("the cut is told within a minute").unwrap();
    }
}
