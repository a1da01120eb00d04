//! The I/O thread, which waits for the disk so that no other thread has to, and the queues between it and the others.
//!
//! ```text
//!   reads   [page page …]      bounded by the requester       ─┐
//!   changes [write erase …]    writes bounded in bytes         ├─▶ I/O thread ─▶ answers, bounded in bytes
//! ```
//!
//! Reads go first, because a request waits for them. A read of a page that is still to be written waits for the write.
//! Reading pauses while too many answers have not been fetched. Erasures need no bound of their own, because a slot is
//! erased at most once after it was written.

use super::DiskStats;
use super::file::PageFile;
use super::index::Index;
use crate::cache::PageHash;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::OnceLock;

/// State that the I/O thread shares with the [`DiskStore`](super::DiskStore).
pub(super) struct Shared {
    /// Queues, index and counters. Never locked during a call that waits for the disk.
    pub(super) state: Mutex<WorkerState>,
    /// Signalled when the I/O thread may have something to do.
    work: Condvar,
    /// Signalled when the I/O thread has nothing left to do.
    idle: Condvar,
    /// Callback for answers to read requests. The I/O thread calls it, with no lock held, when answers have arrived.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

pub(super) struct WorkerState {
    pub(super) index: Index,
    pub(super) stats: DiskStats,
    reads: VecDeque<PageHash>,
    changes: VecDeque<Change>,
    answers: VecDeque<(PageHash, Option<Vec<u8>>)>,
    /// Number of answers that carry a page's bytes and have not been fetched.
    full_answers: usize,
    /// Number of writes in `changes`, which also has erasures.
    writes: usize,
    /// Buffers of finished writes, reused for later ones.
    spare: Vec<Vec<u8>>,
    /// Maximum number of pages that wait to be written, and of read pages that wait to be fetched, each.
    limit: usize,
    busy: bool,
    stopping: bool,
    /// True if answers have been added since the last call of `wake`.
    news: bool,
}

enum Change {
    Write {
        slot: u32,
        page: PageHash,
        parent: PageHash,
        stamp: u64,
        bytes: Vec<u8>,
    },
    Erase {
        slot: u32,
    },
    EraseAll,
}

enum Job {
    Read { page: PageHash, slot: u32 },
    Change(Change),
}

/// Maximum number of bytes of pages that wait to be written, and of read pages that wait to be fetched, each.
const MAX_WAITING_BYTES: usize = 64 << 20;

impl Shared {
    pub(super) fn new(index: Index, stats: DiskStats, page_bytes: usize) -> Self {
        let state = WorkerState {
            index,
            stats,
            reads: VecDeque::new(),
            changes: VecDeque::new(),
            answers: VecDeque::new(),
            full_answers: 0,
            writes: 0,
            spare: Vec::new(),
            limit: (MAX_WAITING_BYTES / page_bytes.max(1)).clamp(1, 1 << 12),
            busy: false,
            stopping: false,
            news: false,
        };
        Self {
            state: Mutex::new(state),
            work: Condvar::new(),
            idle: Condvar::new(),
            wake: OnceLock::new(),
        }
    }

    /// Registers the callback that is called when answers to read requests have arrived. Only the first one registered
    /// is called.
    pub(super) fn on_answer(&self, wake: Box<dyn Fn() + Send + Sync>) {
        let _ = self.wake.set(wake);
    }

    pub(super) fn request(&self, page: PageHash) {
        let mut state = self.state.lock();
        state.index.touch(page);
        state.reads.push_back(page);
        self.work.notify_one();
    }

    pub(super) fn completed(&self) -> Option<(PageHash, Option<Vec<u8>>)> {
        let mut state = self.state.lock();
        let answer = state.answers.pop_front()?;
        if answer.1.is_some() {
            state.full_answers -= 1;
            self.work.notify_one();
        }
        Some(answer)
    }

    pub(super) fn write(&self, page: PageHash, parent: PageHash, bytes: &[u8]) {
        let mut state = self.state.lock();
        if state.index.touch(page) {
            return;
        }
        if state.writes >= state.limit {
            state.stats.dropped += 1;
            return;
        }
        let Some(placed) = state.index.place(page, parent) else {
            state.stats.dropped += 1;
            return;
        };
        state.stats.evicted += u64::from(placed.evicted);
        let mut buffer = state.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        state.writes += 1;
        state.changes.push_back(Change::Write {
            slot: placed.slot,
            page,
            parent,
            stamp: placed.stamp,
            bytes: buffer,
        });
        self.work.notify_one();
    }

    pub(super) fn remove(&self, page: PageHash) {
        let mut state = self.state.lock();
        if let Some(slot) = state.index.remove(page) {
            state.changes.push_back(Change::Erase { slot });
            self.work.notify_one();
        }
    }

    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        let slots = state.stats.slots;
        state.index = Index::new(slots, std::iter::empty());
        state.changes.clear();
        state.writes = 0;
        state.changes.push_back(Change::EraseAll);
        self.work.notify_one();
    }

    /// Blocks until all requested writes, erasures and reads have been done. Reads pause while too many answers have
    /// not been fetched, and are then not waited for.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        while state.busy || state.has_work() {
            self.idle.wait(&mut state);
        }
    }

    /// Makes the I/O thread end once all writes and erasures have been done.
    pub(super) fn stop(&self) {
        self.state.lock().stopping = true;
        self.work.notify_one();
    }
}

impl WorkerState {
    /// Returns the number of pages that wait to be written to disk.
    pub(super) fn backlog(&self) -> usize {
        self.writes
    }

    fn has_work(&self) -> bool {
        !self.changes.is_empty() || (self.may_read() && !self.reads.is_empty())
    }

    fn may_read(&self) -> bool {
        self.full_answers < self.limit && !self.stopping
    }

    fn next(&mut self) -> Option<Job> {
        while self.may_read()
            && let Some(&page) = self.reads.front()
        {
            match self.index.get(page) {
                Some(entry) if entry.written => {
                    self.reads.pop_front();
                    let slot = entry.slot;
                    return Some(Job::Read { page, slot });
                }
                // The page is about to be written: its write is among the changes.
                Some(_) => break,
                None => {
                    self.reads.pop_front();
                    self.answer(page, None);
                }
            }
        }
        let change = self.changes.pop_front()?;
        self.writes -= usize::from(matches!(change, Change::Write { .. }));
        Some(Job::Change(change))
    }

    fn answer(&mut self, page: PageHash, bytes: Option<Vec<u8>>) {
        self.full_answers += usize::from(bytes.is_some());
        self.answers.push_back((page, bytes));
        self.news = true;
    }

    fn failed(&mut self, error: &io::Error) {
        self.stats.failed += 1;
        self.stats.last_error = Some(error.to_string());
    }
}

/// The I/O thread: carries out reads, writes and erasures until [`Shared::stop`] was called and all writes are done.
pub(super) fn run(shared: &Shared, mut file: PageFile) {
    loop {
        let (job, news) = {
            let mut state = shared.state.lock();
            state.busy = false;
            loop {
                let job = state.next();
                let news = std::mem::take(&mut state.news);
                if job.is_some() || news {
                    state.busy = true;
                    break (job, news);
                }
                shared.idle.notify_all();
                if state.stopping {
                    break (None, false);
                }
                shared.work.wait(&mut state);
            }
        };
        if news && let Some(wake) = shared.wake.get() {
            wake();
        }
        match job {
            Some(Job::Read { page, slot }) => read(shared, &mut file, page, slot),
            Some(Job::Change(change)) => apply(shared, &mut file, change),
            None if news => {}
            None => break,
        }
    }
    if let Err(error) = file.sync() {
        shared.state.lock().failed(&error);
    }
}

fn read(shared: &Shared, file: &mut PageFile, page: PageHash, slot: u32) {
    let mut bytes = Vec::new();
    if file.read(slot, page, &mut bytes) {
        let mut state = shared.state.lock();
        state.stats.read += 1;
        state.answer(page, Some(bytes));
        return;
    }
    // The page is damaged, or its slot was given to another page meanwhile. Removes it if it is still in the slot.
    let mut state = shared.state.lock();
    if state
        .index
        .get(page)
        .is_some_and(|entry| entry.slot == slot)
    {
        state.stats.damaged += 1;
        state.index.remove(page);
        state.changes.push_front(Change::Erase { slot });
    }
    state.answer(page, None);
}

fn apply(shared: &Shared, file: &mut PageFile, change: Change) {
    match change {
        Change::Write {
            slot,
            page,
            parent,
            stamp,
            bytes,
        } => {
            let outcome = file.write(slot, page, parent, stamp, &bytes);
            let mut state = shared.state.lock();
            state.spare.push(bytes);
            match outcome {
                Ok(()) => {
                    state.stats.written += 1;
                    state.index.written(page, slot);
                }
                Err(error) => {
                    state.failed(&error);
                    if state
                        .index
                        .get(page)
                        .is_some_and(|entry| entry.slot == slot)
                    {
                        state.index.remove(page);
                    }
                }
            }
        }
        Change::Erase { slot } => {
            if let Err(error) = file.erase(slot) {
                shared.state.lock().failed(&error);
            }
        }
        Change::EraseAll => {
            if let Err(error) = file.erase_all() {
                shared.state.lock().failed(&error);
            }
        }
    }
}
