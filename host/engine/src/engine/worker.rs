//! The engine's thread: owns the device and moves messages between handles and core; it makes no decisions.
//!
//! While the device computes, the thread parks the core where others can reach it:
//!
//! ```text
//!   thread    prepare ─▶ park ─▶ device computes …………………… ─▶ take back ─▶ complete ─▶ …
//!   core      ▓▓▓▓▓▓▓▓▓▓    ▒▒▒▒▒▒▒▒▒ in `Shared` ▒▒▒▒▒▒▒▒▒       ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
//! ```
//!
//! The holder of the core is the engine. If a thread returns and does not find the core that it parked, the
//! [watchdog](super::watchdog) has abandoned the thread: it ends, and the results of its device are discarded. A thread
//! whose device is lost for good gives up the core to the watchdog itself, and ends.

use super::admission::Admission;
use super::core::{Core, Sequence};
use super::feed::Feed;
use super::parking::Parking;
use super::work::Answers;
use super::{Bounds, EngineConfig, Failure, Generation, Request, Stats, SubmitError};
use crate::backend::{Backend, BackendError};
use crate::cache::CacheStats;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

/// A function that returns the present time; tests replace it.
pub(super) type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The state of an engine that health checks report: serving, recovering, or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The engine serves requests, and its device works.
    Good,
    /// The device is stuck or lost, and a replacement is being made. Requests are accepted and wait.
    Recovering,
    /// The engine has ended: it refuses all requests.
    Ended {
        /// The reason that the engine ended, as a message.
        reason: String,
    },
}

/// State that an engine's handles, its thread and its watchdog share.
pub(super) struct Shared {
    /// Submitted requests, published counters and, while the device computes, the engine's state. Consistent after each
    /// line that changes it, so a panic under the lock does no harm.
    inbox: Mutex<Inbox>,
    /// Signalled when the engine's thread may have something to do.
    wake: Condvar,
    /// Signalled when the engine ends, and when a thread gives up its device.
    ended: Condvar,
    admission: Arc<Admission>,
    bell: Arc<AtomicU64>,
    bounds: Bounds,
    clock: Clock,
    feed: Arc<Feed>,
}

struct Inbox {
    /// Submitted requests that the engine's thread has not received yet. [`Shared::submit`] bounds their number.
    submitted: VecDeque<Sequence>,
    /// One channel for each unanswered request to clear the cache; the number of freed device pages is sent to it.
    clears: Vec<SyncSender<u32>>,
    /// True if the engine is to stop: further requests are refused.
    stopping: bool,
    /// The engine's gauges and counters as of the last step.
    stats: Stats,
    /// The place of the engine's state, the core, while the device computes, so that the watchdog can take it.
    parking: Parking<Box<Core>, ThreadId>,
    health: Health,
    /// The thread on which the engine runs now; `None` while there is none or it has been abandoned.
    thread: Option<JoinHandle<()>>,
}

/// Number of consecutive device losses after which the thread gives the device up, because it does not recover.
const MAX_LOSSES: u32 = 2;

/// Interval at which an idle engine checks whether callers have dropped speculative prefills that are computed and hold
/// pages.
const HELD_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Time after which an engine's thread looks for work again, if requests wait but nothing can be computed yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Interval at which a watchdog without a time limit for steps checks for devices given up; it is notified anyway.
const IDLE_WATCHDOG_INTERVAL: Duration = Duration::from_secs(60);

impl Shared {
    pub(super) fn new(backend: &dyn Backend, config: &EngineConfig, clock: Clock) -> Self {
        let stats = Stats {
            cache: CacheStats {
                pages: backend.shape().pages,
                ..CacheStats::default()
            },
            prefix_caching: config.prefix_caching,
            ..Stats::default()
        };
        let inbox = Inbox {
            submitted: VecDeque::new(),
            clears: Vec::new(),
            stopping: false,
            stats,
            parking: Parking::default(),
            health: Health::Good,
            thread: None,
        };
        Self {
            inbox: Mutex::new(inbox),
            wake: Condvar::new(),
            ended: Condvar::new(),
            admission: Admission::new(config, backend.shape().kv_tokens()),
            bell: Arc::default(),
            bounds: Bounds::of(backend),
            clock,
            feed: Arc::new(Feed::new()),
        }
    }

    pub(super) fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        let now = (self.clock)();
        if self.inbox.lock().stopping {
            return Err(SubmitError::Stopped);
        }
        let (sequence, generation) =
            request.admit(&self.admission, self.bounds, &self.bell, now)?;
        let mut inbox = self.inbox.lock();
        if inbox.stopping {
            return Err(SubmitError::Stopped);
        }
        inbox.submitted.push_back(sequence);
        self.wake.notify_one();
        Ok(generation)
    }

    /// Returns whether a speculative prefill would be accepted now. Each `false` counts among the speculative requests
    /// refused so far.
    pub(super) fn takes_guesses(&self) -> bool {
        self.admission.takes_guesses()
    }

    pub(super) fn most_waiting(&self) -> u32 {
        self.admission.most_waiting()
    }

    pub(super) fn stats(&self) -> Stats {
        let inbox = self.inbox.lock();
        Stats {
            waiting: inbox.stats.waiting + inbox.submitted.len() as u32,
            speculations_refused: self.admission.refused_guesses(),
            ..inbox.stats
        }
    }

    pub(super) fn health(&self) -> Health {
        self.inbox.lock().health.clone()
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
            let mut inbox = self.inbox.lock();
            if inbox.stopping {
                return 0;
            }
            inbox.clears.push(sender);
            self.wake.notify_one();
        }
        receiver.recv().unwrap_or(0)
    }

    /// Wakes the engine's thread if it waits, so that it looks for work.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(super) fn stop(&self) {
        self.inbox.lock().stopping = true;
        self.wake.notify_one();
    }

    /// Waits until the engine has ended and its thread has exited.
    pub(super) fn join(&self) {
        let mut inbox = self.inbox.lock();
        while !matches!(inbox.health, Health::Ended { .. }) {
            self.ended.wait(&mut inbox);
        }
        let thread = inbox.thread.take();
        drop(inbox);
        if let Some(thread) = thread {
            // A panic of the thread has already been reported to every caller that waits for an event.
            let _ = thread.join();
        }
    }

    /// Waits until a thread gives up its device, or its step takes longer than `patience` (`None`: no limit). Takes the
    /// core, the engine's state, and returns it with the reason. Returns `None` when the engine has ended.
    pub(super) fn take_given_up(&self, patience: Option<Duration>) -> Option<(Box<Core>, Failure)> {
        let mut inbox = self.inbox.lock();
        loop {
            if matches!(inbox.health, Health::Ended { .. }) {
                return None;
            }
            if let Some(given_up) = inbox.parking.take_given_up(self.now(), patience) {
                inbox.health = Health::Recovering;
                // The thread is not joined, because it may never end.
                inbox.thread = None;
                return Some(given_up);
            }
            // A quarter of `patience` is soon enough. The upper bound keeps tests with their own clock from waiting.
            let look_again = patience.map_or(IDLE_WATCHDOG_INTERVAL, |patience| {
                (patience / 4).clamp(RETRY_INTERVAL, Duration::from_millis(100))
            });
            self.ended.wait_for(&mut inbox, look_again);
        }
    }

    /// Publishes the counters of the core (the engine's state), then the events of its cache, then the events of its
    /// requests.
    pub(super) fn publish(&self, core: &mut Core) {
        self.inbox.lock().stats = core.stats();
        self.feed.publish(core.take_cache_events());
        core.send_events();
    }

    fn park(&self, core: Box<Core>) {
        let since = self.now();
        let own = std::thread::current().id();
        self.inbox.lock().parking.park(core, own, since);
    }

    /// Leaves the core, the engine's state, to the watchdog, because the device is given up for the reason `failure`.
    fn give_up(&self, core: Box<Core>, failure: Failure) {
        self.inbox.lock().parking.give_up(core, failure);
        self.ended.notify_all();
    }

    fn unpark(&self) -> Option<Box<Core>> {
        let own = std::thread::current().id();
        self.inbox.lock().parking.take_back(&own)
    }

    /// Refuses further requests from now on, and returns the submitted ones that the engine's thread has not received
    /// yet.
    pub(super) fn close(&self) -> VecDeque<Sequence> {
        let mut inbox = self.inbox.lock();
        inbox.stopping = true;
        std::mem::take(&mut inbox.submitted)
    }

    /// Ends the engine, also after a panic, and wakes all threads that wait for it. Submitted requests that the
    /// engine's thread had not received are dropped; their callers receive [`Failure::Stopped`].
    pub(super) fn end(&self, reason: &str) {
        let mut inbox = self.inbox.lock();
        inbox.stopping = true;
        inbox.submitted.clear();
        inbox.clears.clear();
        inbox.health = Health::Ended {
            reason: reason.to_owned(),
        };
        self.ended.notify_all();
    }
}

/// Starts an engine thread that owns the core (the engine's state) and the device. The engine ends if the system cannot
/// create the thread.
pub(super) fn start(shared: &Arc<Shared>, core: Box<Core>, backend: Box<dyn Backend>) {
    let mut inbox = shared.inbox.lock();
    inbox.health = Health::Good;
    let thread = std::thread::Builder::new()
        .name("engine".to_owned())
        .spawn({
            let shared = shared.clone();
            // The thread cannot end before this function releases the lock.
            move || run(&shared, core, backend)
        });
    match thread {
        Ok(thread) => inbox.thread = Some(thread),
        Err(error) => {
            drop(inbox);
            shared.end(&format!(
                "no thread could be started for the engine: {error}"
            ));
        }
    }
}

/// The engine's thread: runs until the engine is to stop and has no requests left, until the watchdog has taken the
/// core (the engine's state), or until it gives up a device that is lost.
fn run(shared: &Shared, mut core: Box<Core>, mut backend: Box<dyn Backend>) {
    let mut guard = EndOnExit(Some(shared));
    // Reused across steps for its allocation.
    let mut answers = Answers::default();
    let mut losses = 0;
    while let Some(clears) = receive(shared, &mut core) {
        for reply in clears {
            let freed = core.clear_cache();
            shared.publish(&mut core);
            // The caller may no longer wait.
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
            // The device's memory may be needed for another one.
            drop(backend);
            shared.give_up(core, Failure::Device(reason));
            guard.0 = None;
            return;
        }
    }
    core.save_all(&mut *backend);
}

/// Moves submitted requests to the core (the engine's state), and waits until there is something to do. Returns the
/// channels of requests to clear the cache, or `None` when the engine is to stop and has no requests left.
fn receive(shared: &Shared, core: &mut Core) -> Option<Vec<SyncSender<u32>>> {
    let mut inbox = shared.inbox.lock();
    loop {
        core.enqueue(inbox.submitted.drain(..));
        inbox.stats = core.stats();
        if !core.is_idle() || !inbox.clears.is_empty() {
            return Some(std::mem::take(&mut inbox.clears));
        }
        if inbox.stopping {
            return None;
        }
        let held = core.holds_guesses().then_some(HELD_POLL_INTERVAL);
        let Some(wait) = [core.replication_wait(), held].into_iter().flatten().min() else {
            shared.wake.wait(&mut inbox);
            continue;
        };
        if shared.wake.wait_for(&mut inbox, wait).timed_out() {
            // Idle: the next step only copies pages to disk or releases dropped speculative prefills.
            return Some(Vec::new());
        }
    }
}

impl Shared {
    /// Waits for at most [`RETRY_INTERVAL`] if the core (the engine's state) has requests of which nothing can be
    /// computed yet.
    fn rest(&self, core: &Core) {
        let mut inbox = self.inbox.lock();
        if !core.is_idle() && inbox.submitted.is_empty() && inbox.clears.is_empty() {
            self.wake.wait_for(&mut inbox, RETRY_INTERVAL);
        }
    }
}

/// Ends the engine when its thread ends, for instance by a panic, unless the thread has given up the engine's state to
/// the watchdog.
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
