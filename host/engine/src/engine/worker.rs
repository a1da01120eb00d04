//! The engine's thread: owns the device, moves messages between handles and core, and decides nothing.
//!
//! While the device computes, the thread lays the core down where others can reach it:
//!
//! ```text
//!   thread    prepare ─▶ park ─▶ device computes …………………… ─▶ take back ─▶ complete ─▶ …
//!   core      ▓▓▓▓▓▓▓▓▓▓    ▒▒▒▒▒▒▒▒▒ in `Shared` ▒▒▒▒▒▒▒▒▒       ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
//! ```
//!
//! Whoever holds the core is the engine. A thread that comes back and does not find what it parked has been given up by
//! the [watchdog](super::watchdog): it ends, and what its device computed concerns nobody. A thread whose device is gone for
//! good lays the core down for the watchdog itself, and ends.

use super::core::{Core, Sequence};
use super::feed::Feed;
use super::room::Room;
use super::work::Answers;
use super::{Bounds, EngineConfig, Failure, Generation, Request, Stats, SubmitError};
use crate::backend::{Backend, BackendError};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// What time it is.
pub(super) type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// How an engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It serves.
    Good,
    /// Its device is stuck, and a fresh one is being made. Requests are taken, and wait.
    Recovering,
    /// It serves no more.
    Ended {
        /// In words.
        reason: String,
    },
}

/// What handles, thread and watchdog share.
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    /// Signalled when the inbox has something for the thread.
    wake: Condvar,
    /// Signalled when the engine ends, and when a device is given up.
    ended: Condvar,
    room: Arc<Room>,
    bell: Arc<AtomicU64>,
    bounds: Bounds,
    clock: Clock,
    feed: Arc<Feed>,
}

struct Inbox {
    /// Bounded by the room, see [`Shared::submit`].
    submitted: VecDeque<Sequence>,
    /// Whom to tell how many pages were freed.
    clears: Vec<SyncSender<u32>>,
    /// Nothing more is taken in.
    stopping: bool,
    /// The core's, as last published.
    stats: Stats,
    /// The core, while the device computes.
    parked: Option<Parked>,
    health: Health,
    /// The thread that the engine runs on now.
    thread: Option<JoinHandle<()>>,
}

/// A core whose device is computing.
struct Parked {
    core: Box<Core>,
    since: Instant,
    /// Whose device it is: no other thread may take the core back.
    thread: ThreadId,
    /// Why the thread will not take it back either.
    given_up: Option<Failure>,
}

/// Times that a device may be lost without a step computed in between: the call after a loss finds a device that works, or
/// there is none to be found.
const MAX_LOSSES: u32 = 2;

/// How often a thread that can do nothing looks again whether it can.
const NOTHING_TO_DO: Duration = Duration::from_millis(1);

/// How often a watchdog looks that watches no clock: it is told.
const LONG: Duration = Duration::from_secs(60);

impl Shared {
    pub(super) fn new(backend: &dyn Backend, config: &EngineConfig, clock: Clock) -> Self {
        let stats = Stats {
            pages: backend.pages(),
            ..Stats::default()
        };
        let inbox = Inbox {
            submitted: VecDeque::new(),
            clears: Vec::new(),
            stopping: false,
            stats,
            parked: None,
            health: Health::Good,
            thread: None,
        };
        Self {
            inbox: Mutex::new(inbox),
            wake: Condvar::new(),
            ended: Condvar::new(),
            room: Room::new(config),
            bell: Arc::default(),
            bounds: Bounds::of(backend),
            clock,
            feed: Arc::new(Feed::new()),
        }
    }

    pub(super) fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        let now = (self.clock)();
        if self.lock().stopping {
            return Err(SubmitError::Stopped);
        }
        let (sequence, generation) = request.admit(&self.room, self.bounds, &self.bell, now)?;
        let mut inbox = self.lock();
        if inbox.stopping {
            return Err(SubmitError::Stopped);
        }
        inbox.submitted.push_back(sequence);
        self.wake.notify_one();
        Ok(generation)
    }

    /// See [`Room::takes_guesses`].
    pub(super) fn takes_guesses(&self) -> bool {
        self.room.takes_guesses()
    }

    pub(super) fn stats(&self) -> Stats {
        let inbox = self.lock();
        Stats {
            waiting: inbox.stats.waiting + inbox.submitted.len() as u32,
            speculations_refused: self.room.refused_guesses(),
            ..inbox.stats
        }
    }

    pub(super) fn health(&self) -> Health {
        self.lock().health.clone()
    }

    pub(super) fn bell(&self) -> Arc<AtomicU64> {
        self.bell.clone()
    }

    pub(super) fn now(&self) -> Instant {
        (self.clock)()
    }

    pub(super) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    pub(super) fn clear_cache(&self) -> u32 {
        let (sender, receiver) = sync_channel(1);
        {
            let mut inbox = self.lock();
            if inbox.stopping {
                return 0;
            }
            inbox.clears.push(sender);
            self.wake.notify_one();
        }
        receiver.recv().unwrap_or(0)
    }

    /// Has the thread look again.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    /// Returns when the engine has ended.
    pub(super) fn join(&self) {
        let mut inbox = self.lock();
        while !matches!(inbox.health, Health::Ended { .. }) {
            inbox = self
                .ended
                .wait(inbox)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let thread = inbox.thread.take();
        drop(inbox);
        if let Some(thread) = thread {
            // A panic of the thread has been told to everybody who waits for an event.
            let _ = thread.join();
        }
    }

    /// Waits until a device is given up: by its own thread, or because a step has taken longer than `patience`. Takes the
    /// core, and says why. `None`: the engine has ended.
    pub(super) fn take_given_up(&self, patience: Option<Duration>) -> Option<(Box<Core>, Failure)> {
        let mut inbox = self.lock();
        loop {
            if matches!(inbox.health, Health::Ended { .. }) {
                return None;
            }
            let now = self.now();
            let failure = inbox.parked.as_ref().and_then(|parked| {
                let elapsed = now.saturating_duration_since(parked.since);
                let stuck = patience.filter(|patience| elapsed > *patience);
                let stuck = stuck.map(|patience| Failure::Stuck { patience });
                parked.given_up.clone().or(stuck)
            });
            if let Some(failure) = failure
                && let Some(parked) = inbox.parked.take()
            {
                inbox.health = Health::Recovering;
                // It is not waited for: it may never end.
                inbox.thread = None;
                return Some((parked.core, failure));
            }
            // Often enough to notice in time; with a clock of a test, often enough not to be waited for.
            let look_again = patience.map_or(LONG, |patience| {
                (patience / 4).clamp(NOTHING_TO_DO, Duration::from_millis(100))
            });
            let (guard, _) = self
                .ended
                .wait_timeout(inbox, look_again)
                .unwrap_or_else(PoisonError::into_inner);
            inbox = guard;
        }
    }

    /// A panic while the lock was held would have been in one of the few lines here; the inbox is valid after each.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the core's counters visible, then what happened in its cache, then its events.
    pub(super) fn publish(&self, core: &mut Core) {
        self.lock().stats = core.stats();
        self.feed.publish(core.take_cache_events());
        core.send_events();
    }

    fn park(&self, core: Box<Core>) {
        let since = self.now();
        let thread = std::thread::current().id();
        self.lock().parked = Some(Parked {
            core,
            since,
            thread,
            given_up: None,
        });
    }

    /// Leaves the core to the watchdog.
    fn give_up(&self, core: Box<Core>, failure: Failure) {
        let since = self.now();
        let mut inbox = self.lock();
        inbox.parked = Some(Parked {
            core,
            since,
            thread: std::thread::current().id(),
            given_up: Some(failure),
        });
        self.ended.notify_all();
    }

    fn unpark(&self) -> Option<Box<Core>> {
        let own = std::thread::current().id();
        let mut inbox = self.lock();
        let parked = inbox.parked.take_if(|parked| parked.thread == own);
        parked.map(|parked| parked.core)
    }

    /// Takes nothing in any more; returns what the thread has not seen yet.
    pub(super) fn close(&self) -> VecDeque<Sequence> {
        let mut inbox = self.lock();
        inbox.stopping = true;
        std::mem::take(&mut inbox.submitted)
    }

    /// The engine ends: nobody is left waiting for it, be it by a panic. What was not taken in is dropped, which
    /// callers see as the end.
    pub(super) fn end(&self, reason: &str) {
        let mut inbox = self.lock();
        inbox.stopping = true;
        inbox.submitted.clear();
        inbox.clears.clear();
        inbox.health = Health::Ended {
            reason: reason.to_owned(),
        };
        self.ended.notify_all();
    }
}

/// Starts a thread for this core and this device; the engine ends should the system refuse one.
pub(super) fn start(shared: &Arc<Shared>, core: Box<Core>, backend: Box<dyn Backend>) {
    let mut inbox = shared.lock();
    inbox.health = Health::Good;
    let thread = std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn({
            let shared = shared.clone();
            // Waits for the lock that is held here before it can end.
            move || run(&shared, core, backend)
        });
    match thread {
        Ok(thread) => inbox.thread = Some(thread),
        Err(error) => {
            drop(inbox);
            shared.end(&format!("there is no thread for the engine: {error}"));
        }
    }
}

/// Runs until told to stop and nothing is left to do, or until the core is taken away.
fn run(shared: &Shared, mut core: Box<Core>, mut backend: Box<dyn Backend>) {
    let mut guard = EndOnExit(Some(shared));
    // Kept for its allocation.
    let mut answers = Answers::default();
    let mut losses = 0;
    while let Some(clears) = receive(shared, &mut core) {
        for reply in clears {
            let freed = core.clear_cache();
            shared.publish(&mut core);
            // Whoever asked may have gone.
            let _ = reply.send(freed);
        }
        let work = core.prepare(shared.now());
        shared.publish(&mut core);
        if work.is_empty() {
            shared.rest(&core);
            continue;
        }
        shared.park(core);
        let outcome = work.run(&mut *backend, &mut answers);
        match shared.unpark() {
            Some(parked) => core = parked,
            None => {
                guard.0 = None;
                return;
            }
        }
        let lost = match &outcome {
            Ok(()) => {
                losses = 0;
                None
            }
            Err(error @ BackendError::Lost(_)) => {
                losses += 1;
                Some(error.to_string())
            }
            Err(_) => None,
        };
        core.complete(&work, outcome.map(|()| &mut answers));
        shared.publish(&mut core);
        if let Some(reason) = lost
            && losses == MAX_LOSSES
        {
            // Its memory may be another's.
            drop(backend);
            shared.give_up(core, Failure::Device(reason));
            guard.0 = None;
            return;
        }
    }
    core.save_all(&mut *backend);
}

/// Waits for something to do and takes in what has come; `None`: nothing will come any more.
fn receive(shared: &Shared, core: &mut Core) -> Option<Vec<SyncSender<u32>>> {
    let mut inbox = shared.lock();
    loop {
        core.enqueue(inbox.submitted.drain(..));
        inbox.stats = core.stats();
        if !core.is_idle() || !inbox.clears.is_empty() {
            return Some(std::mem::take(&mut inbox.clears));
        }
        if inbox.stopping {
            return None;
        }
        inbox = shared
            .wake
            .wait(inbox)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

impl Shared {
    /// Waits a little if something waits in the core that cannot run yet.
    fn rest(&self, core: &Core) {
        let inbox = self.lock();
        if !core.is_idle() && inbox.submitted.is_empty() && inbox.clears.is_empty() {
            let _ = self
                .wake
                .wait_timeout(inbox, NOTHING_TO_DO)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends the engine when its thread ends, unless the thread has been given up.
struct EndOnExit<'a>(Option<&'a Shared>);

impl Drop for EndOnExit<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.end(if std::thread::panicking() {
                "the engine's thread panicked"
            } else {
                "the engine was stopped"
            });
        }
    }
}
