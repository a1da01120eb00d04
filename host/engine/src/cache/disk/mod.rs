//! The disk tier: pages in one memory-mapped file, found by their hash, that outlive the process.
//!
//! ```text
//!   index   which page is in which slot      memory      engine's thread and I/O thread, under a lock held briefly
//!   worker  queues and the thread            memory
//!   file    slots, written and mapped        disk        I/O thread alone
//!   format  the bytes, their sums                        no I/O
//! ```
//!
//! Owned here: the file, its thread, and which pages leave it when it is full. Not known here: tokens, trees and what a
//! page's bytes mean. A page's hash covers model, tenant and all tokens up to its end, so whoever can name a page may
//! have it, and a restarted engine finds its pages without a tree and without a prompt in clear on the disk.
//!
//! What can go wrong, and what happens then:
//!
//! | | |
//! | --- | --- |
//! | the process is killed, at any point | a slot without a whole record is free |
//! | the machine loses power | as above; a page that does not fit its sum is not there |
//! | bits flip | the page or its record does not fit its sum and is not there |
//! | another model, format, page size or capacity; a truncated file | the file is replaced by an empty one, and the reason told |
//! | the disk is full or fails | the page is not kept; counted, and the last error told |
//! | a second process opens the file, by whatever name | an error: it is in use |
//! | a symbolic link, another user's file, one that others may read | an error that says so: it is left as it is |
//!
//! **The file is as confidential as the prompts**: keys and values can be turned back into text. It is created for its
//! owner alone (mode 0600) and it is not encrypted; put it on an encrypted volume or leave the tier off. Erased pages
//! lose their record at once and their bytes when the slot is used again.

mod file;
mod format;
mod index;
#[cfg(test)]
mod tests;
mod worker;

pub use file::Origin;

use super::{DiskCounts, DiskTier, PageHash};
use file::PageFile;
use format::Shape;
use index::Index;
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use worker::Shared;

/// Pages in a file. Dropping it writes what is still to be written and waits for that.
pub struct DiskStore {
    shared: Arc<Shared>,
    origin: Origin,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a file is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Bytes that the file may have.
    pub capacity: u64,
    /// Of all that a page's bytes depend on beside its tokens: a file with another one is discarded.
    pub identity: u128,
    /// Bytes of a page.
    pub page_bytes: usize,
}

/// Gauges and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Pages that the file has room for.
    pub slots: u32,
    /// Pages that are there or on their way.
    pub pages: u32,
    /// Pages read whole, so far.
    pub read: u64,
    /// Pages written, so far.
    pub written: u64,
    /// Pages not written because too many were waiting, so far.
    pub dropped: u64,
    /// Pages that went to make room, so far.
    pub evicted: u64,
    /// Pages that did not fit their sum when they were read, so far.
    pub damaged: u64,
    /// Calls that the disk refused, so far.
    pub failed: u64,
    /// Why it refused the last of them.
    pub last_error: Option<String>,
}

/// Why there is no disk tier.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file could not be opened or made.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process works with the file.
    #[error("{}: it is in use by another process", .0.display())]
    InUse(PathBuf),
    /// What is there is not a file that this tier made for its user alone.
    #[error("{}: {reason}; remove it or name another file", path.display())]
    Refused {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The capacity has no room for a page.
    #[error("{capacity} bytes of disk have no room for a page of {page_bytes} bytes")]
    TooSmall {
        /// The configured [`DiskConfig::capacity`].
        capacity: u64,
        /// The configured [`DiskConfig::page_bytes`].
        page_bytes: usize,
    },
}

impl DiskStore {
    /// Opens the file at `path` and starts its thread. A file that was made for something else is replaced; see
    /// [`DiskStore::origin`].
    ///
    /// # Errors
    /// [`DiskError`]; nothing was changed then.
    pub fn open(path: &Path, config: &DiskConfig) -> Result<Self, DiskError> {
        let shape = Shape::fit(config.identity, config.page_bytes, config.capacity).ok_or(
            DiskError::TooSmall {
                capacity: config.capacity,
                page_bytes: config.page_bytes,
            },
        )?;
        let (file, origin) = PageFile::open(path, shape)?;
        Self::start(file, origin).map_err(|source| DiskError::Io {
            path: path.to_owned(),
            source,
        })
    }

    fn start(file: PageFile, origin: Origin) -> io::Result<Self> {
        let shape = file.shape();
        let stats = DiskStats {
            slots: shape.slots,
            ..DiskStats::default()
        };
        let index = Index::new(shape.slots, file.records());
        let shared = Arc::new(Shared::new(index, stats, shape.page_bytes as usize));
        let thread = std::thread::Builder::new().name("disk".to_owned()).spawn({
            let shared = shared.clone();
            move || worker::run(&shared, file)
        })?;
        Ok(Self {
            shared,
            origin,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Where the file came from, for the log.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Gauges and counters now.
    pub fn stats(&self) -> DiskStats {
        let state = self.shared.state.lock();
        DiskStats {
            pages: state.index.len(),
            ..state.stats.clone()
        }
    }
}

impl DiskTier for DiskStore {
    fn contains(&self, page: PageHash) -> bool {
        self.shared.state.lock().index.get(page).is_some()
    }

    fn request(&self, page: PageHash) {
        self.shared.request(page);
    }

    fn completed(&self) -> Option<(PageHash, Option<Vec<u8>>)> {
        self.shared.completed()
    }

    fn on_completion(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.shared.on_answer(wake);
    }

    fn write(&self, page: PageHash, parent: PageHash, bytes: &[u8]) {
        self.shared.write(page, parent, bytes);
    }

    fn touch(&self, pages: &[PageHash]) -> usize {
        let mut state = self.shared.state.lock();
        pages
            .iter()
            .take_while(|page| state.index.touch(**page))
            .count()
    }

    fn backlog(&self) -> usize {
        self.shared.state.lock().backlog()
    }

    fn counts(&self) -> DiskCounts {
        let state = self.shared.state.lock();
        DiskCounts {
            written: state.stats.written,
            dropped: state.stats.dropped,
            damaged: state.stats.damaged,
            failed: state.stats.failed,
        }
    }

    fn flush(&self) {
        self.shared.flush();
    }

    fn remove(&self, page: PageHash) {
        self.shared.remove(page);
    }

    fn clear(&self) {
        self.shared.clear();
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.shared.stop();
        let thread = self.thread.get_mut();
        // Whoever is woken by the thread may be the last to let go.
        let current = std::thread::current().id();
        if let Some(thread) = thread
            .take()
            .filter(|thread| thread.thread().id() != current)
        {
            // Had it panicked, pages would be missing, which is all that its end can cost.
            let _ = thread.join();
        }
    }
}
