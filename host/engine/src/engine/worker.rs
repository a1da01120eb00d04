//! The engine's thread: moves messages between handles and core, and decides nothing.

use super::core::{Core, Sequence};
use super::feed::Feed;
use super::{Stats, SubmitError};
use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What handles and thread share.
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    /// Signalled when the inbox has something for the thread.
    wake: Condvar,
    feed: Arc<Feed>,
}

struct Inbox {
    /// Bounded together with the core's queue, see [`Shared::submit`].
    submitted: VecDeque<Sequence>,
    /// Whom to tell how many pages were freed.
    clears: Vec<SyncSender<u32>>,
    /// Nothing more is taken in.
    stopping: bool,
    /// The core's, as last published.
    stats: Stats,
}

impl Shared {
    pub(super) fn new(stats: Stats) -> Self {
        let inbox = Inbox {
            submitted: VecDeque::new(),
            clears: Vec::new(),
            stopping: false,
            stats,
        };
        Self {
            inbox: Mutex::new(inbox),
            wake: Condvar::new(),
            feed: Arc::new(Feed::new()),
        }
    }

    pub(super) fn submit(&self, sequence: Sequence, max_waiting: u32) -> Result<(), SubmitError> {
        let mut inbox = self.lock();
        if inbox.stopping {
            return Err(SubmitError::Stopped);
        }
        if inbox.waiting() >= max_waiting {
            return Err(SubmitError::QueueFull { limit: max_waiting });
        }
        inbox.submitted.push_back(sequence);
        self.wake.notify_one();
        Ok(())
    }

    pub(super) fn stats(&self) -> Stats {
        let inbox = self.lock();
        Stats {
            waiting: inbox.waiting(),
            ..inbox.stats
        }
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

    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.wake.notify_one();
    }

    /// A panic while the lock was held would have been in one of the few lines here; the inbox is valid after each.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the core's counters visible, then what happened in its cache, then its events.
    fn publish(&self, core: &mut Core) {
        self.lock().stats = core.stats();
        self.feed.publish(core.take_cache_events());
        core.send_events();
    }
}

impl Inbox {
    fn waiting(&self) -> u32 {
        self.stats.waiting + self.submitted.len() as u32
    }
}

/// Runs until told to stop and nothing is left to do.
pub(super) fn run(shared: &Shared, mut core: Core) {
    let _guard = CloseOnExit(shared);
    loop {
        let clears = {
            let mut inbox = shared.lock();
            while core.is_idle()
                && inbox.submitted.is_empty()
                && inbox.clears.is_empty()
                && !inbox.stopping
            {
                inbox = shared
                    .wake
                    .wait(inbox)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            core.enqueue(inbox.submitted.drain(..));
            inbox.stats = core.stats();
            if core.is_idle() && inbox.clears.is_empty() {
                if inbox.stopping {
                    return;
                }
                continue;
            }
            std::mem::take(&mut inbox.clears)
        };
        for reply in clears {
            let freed = core.clear_cache();
            shared.publish(&mut core);
            // Whoever asked may have gone.
            let _ = reply.send(freed);
        }
        core.prepare();
        shared.publish(&mut core);
        core.compute();
        shared.publish(&mut core);
    }
}

/// Leaves nobody waiting for a thread that has ended, be it by a panic: what was not taken in is dropped, which
/// callers see as the end.
struct CloseOnExit<'a>(&'a Shared);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        let mut inbox = self.0.lock();
        inbox.stopping = true;
        inbox.submitted.clear();
        inbox.clears.clear();
    }
}
