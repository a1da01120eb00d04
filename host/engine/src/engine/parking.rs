//! The place where the engine's thread leaves the engine's state (the core) while the device computes, and the rules
//! for taking it from there.
//!
//! ```text
//!   thread    park ──────────────▶ take back            only the core that it parked itself
//!                    │    └▶ give up ──┐
//!   watchdog         └ too long ago ───┴▶ take given up  the core of any owner
//! ```
//!
//! This module uses neither locks nor threads: [`Shared`](super::worker::Shared) keeps a [`Parking`] under its mutex,
//! and tests let `loom` try every order of operations of thread and watchdog.

use super::Failure;
use std::time::{Duration, Instant};

/// The place for the engine's state (`Core`) while the device of the thread that left it there (`Owner`) computes;
/// empty if no thread has left it.
#[derive(Debug)]
pub(super) struct Parking<Core, Owner>(Option<Parked<Core, Owner>>);

#[derive(Debug)]
struct Parked<Core, Owner> {
    core: Core,
    state: State<Owner>,
}

#[derive(Debug)]
enum State<Owner> {
    /// The owner's device has been computing since `since`. The owner may take the core (the engine's state) back;
    /// others only once the owner has been computing for too long.
    Computing { owner: Owner, since: Instant },
    /// The owner has abandoned its device for this reason, and does not come back for the core (the engine's state).
    GivenUp(Failure),
}

impl<Core, Owner> Default for Parking<Core, Owner> {
    fn default() -> Self {
        Self(None)
    }
}

impl<Core, Owner: PartialEq> Parking<Core, Owner> {
    /// Stores the core (the engine's state), so that it can be taken while the device of `owner` computes. `since` is
    /// the time at which the device began to compute.
    pub(super) fn park(&mut self, core: Core, owner: Owner, since: Instant) {
        let state = State::Computing { owner, since };
        self.0 = Some(Parked { core, state });
    }

    /// Stores a core (an engine's state) whose owner has abandoned its device because of `failure`, for the watchdog to
    /// take.
    pub(super) fn give_up(&mut self, core: Core, failure: Failure) {
        let state = State::GivenUp(failure);
        self.0 = Some(Parked { core, state });
    }

    /// Takes back the core (the engine's state) that the owner `own` stored. Returns `None` if it was taken meanwhile,
    /// even if another owner has stored it since.
    pub(super) fn take_back(&mut self, own: &Owner) -> Option<Core> {
        let is_own = |parked: &mut Parked<Core, Owner>| matches!(&parked.state, State::Computing { owner, .. } if owner == own);
        self.0.take_if(is_own).map(|parked| parked.core)
    }

    /// Takes the core (the engine's state) if its owner has abandoned its device, or has been computing for longer than
    /// `patience` (`None`: for no limit). Returns it with the reason; otherwise returns `None`.
    pub(super) fn take_given_up(
        &mut self,
        now: Instant,
        patience: Option<Duration>,
    ) -> Option<(Core, Failure)> {
        let failure = match &self.0.as_ref()?.state {
            State::GivenUp(failure) => failure.clone(),
            State::Computing { since, .. } => {
                let elapsed = now.saturating_duration_since(*since);
                let patience = patience.filter(|patience| elapsed > *patience)?;
                Failure::Stuck { patience }
            }
        };
        self.0.take().map(|parked| (parked.core, failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;
    use std::cell::Cell;
    use std::panic;
    use std::sync::Once;

    /// A core that counts its steps, and owners by their numbers.
    type Place = Parking<u32, u32>;

    const PATIENCE: Duration = Duration::from_secs(1);

    /// A way in which a thread takes its core back.
    type TakeBack = fn(&mut Place, &u32) -> Option<u32>;

    /// Simulates a step of `own`'s device. Returns the core after the step, if it is still that owner's.
    fn step(place: &Mutex<Place>, core: u32, own: u32, take_back: TakeBack) -> Option<u32> {
        let begun = Instant::now();
        place.lock().unwrap().park(core, own, begun);
        // The device computes, and the watchdog may find that it takes too long.
        let back = take_back(&mut place.lock().unwrap(), &own);
        back.map(|core| core + 1)
    }

    thread_local! {
        static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `model`, whose panic the test expects, without printing the panic. A modelled thread has a small stack:
    /// printing a backtrace there overflows it, and the locks of the printing thread, which all tests share, stay
    /// locked for ever.
    fn quietly(model: impl FnOnce()) {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let loud = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if !IS_QUIET.get() {
                    loud(info);
                }
            }));
        });
        struct Quiet;
        impl Drop for Quiet {
            fn drop(&mut self) {
                IS_QUIET.set(false);
            }
        }
        IS_QUIET.set(true);
        let _quiet = Quiet;
        model();
    }

    /// Models a thread whose step may be stuck, and a watchdog that continues with the core and a fresh device.
    fn a_step_is_given_up(take_back: TakeBack) {
        loom::model(move || {
            let place = Arc::new(Mutex::new(Place::default()));
            let first = thread::spawn({
                let place = Arc::clone(&place);
                move || step(&place, 0, 1, take_back)
            });
            let late = Instant::now() + 2 * PATIENCE;
            let given_up = place.lock().unwrap().take_given_up(late, Some(PATIENCE));
            let second = given_up.map(|(core, failure)| {
                assert_eq!(failure, Failure::Stuck { patience: PATIENCE });
                step(&place, core, 2, take_back)
                    .expect("another thread took the fresh device's core")
            });
            let first = first.join().unwrap();
            // One of them has the core, and its step was computed once.
            assert_eq!([first, second].iter().flatten().sum::<u32>(), 1);
            assert!(first.is_none() || second.is_none(), "both have the core");
            assert!(place.lock().unwrap().0.is_none());
        });
    }

    #[test]
    fn in_every_order_one_thread_has_the_core() {
        a_step_is_given_up(Place::take_back);
    }

    #[test]
    #[should_panic(expected = "another thread took the fresh device's core")]
    fn the_model_finds_a_thread_that_takes_a_core_that_is_not_its_own() {
        quietly(|| a_step_is_given_up(|place, _| place.0.take().map(|parked| parked.core)));
    }

    /// Models a thread that gives its core up by `tell`, and a watchdog that waits for that.
    fn a_device_is_given_up(tell: fn(&Mutex<Place>, &Condvar)) {
        loom::model(move || {
            let shared = Arc::new((Mutex::new(Place::default()), Condvar::new()));
            let lost = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let (place, given_up) = &*shared;
                    tell(place, given_up);
                }
            });
            let (place, given_up) = &*shared;
            let mut guard = place.lock().unwrap();
            let (core, failure) = loop {
                match guard.take_given_up(Instant::now(), None) {
                    Some(taken) => break taken,
                    None => guard = given_up.wait(guard).unwrap(),
                }
            };
            assert_eq!((core, failure), (7, failure_of_the_device()));
            drop(guard);
            lost.join().unwrap();
        });
    }

    fn failure_of_the_device() -> Failure {
        Failure::Device("lost".to_owned())
    }

    #[test]
    fn in_every_order_the_watchdog_hears_of_a_device_that_is_given_up() {
        a_device_is_given_up(|place, given_up| {
            place.lock().unwrap().give_up(7, failure_of_the_device());
            given_up.notify_all();
        });
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn the_model_finds_a_watchdog_that_is_told_too_early() {
        quietly(|| {
            a_device_is_given_up(|place, given_up| {
                given_up.notify_all();
                place.lock().unwrap().give_up(7, failure_of_the_device());
            });
        });
    }
}
