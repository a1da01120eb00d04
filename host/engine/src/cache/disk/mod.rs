//! The disk tier: pages in one memory-mapped file, found by their hash, that outlive the process.
//!
//! ```text
//!   index   which page is in which slot      memory      engine's thread and I/O thread, under a lock held briefly
//!   worker  queues and the thread            memory
//!   file    slots, written and mapped        disk        I/O thread alone
//!   format  the bytes, their sums                        no I/O
//! ```
//!
//! Owned here: the file, its thread, and which pages are evicted from it when it is full. Not known here: tokens, trees
//! and the meaning of a page's bytes. A page's hash covers model, tenant and all tokens up to its end, so it also
//! authorises: a restarted engine finds its pages without a tree and without a prompt in clear on the disk.
//!
//! Faults and their effects:
//!
//! | | |
//! | --- | --- |
//! | the process is killed, at any point | a slot without a whole record is free |
//! | the machine loses power | as above; a page that does not match its sum counts as absent |
//! | bits flip | the page or its record does not match its sum and counts as absent |
//! | another model, format, page size or capacity; a truncated file | recreated empty, see [`DiskStore::origin`] |
//! | the disk is full or fails | the page is not stored; [`DiskStats`] counts it and has the last error |
//! | a second process opens the file, by whatever name | [`DiskError::InUse`] |
//! | a symbolic link, another user's file, one that others may read | [`DiskError::Refused`]; the file stays as it is |
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

/// A file of KV pages with its I/O thread. Dropping it writes the pages that wait to be written, and blocks until then.
pub struct DiskStore {
    shared: Arc<Shared>,
    origin: Origin,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The size of a disk store and the kind of pages that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Maximum size of the file in bytes.
    pub capacity: u64,
    /// Hash of everything that a page's bytes depend on besides its tokens. A file that was made for another identity
    /// is replaced by an empty one.
    pub identity: u128,
    /// Number of bytes in one page.
    pub page_bytes: usize,
}

/// Gauges and counters of one disk store. Counters count from its opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Number of pages that the file has room for.
    pub slots: u32,
    /// Pages stored now, including those that wait to be written.
    pub pages: u32,
    /// Number of pages read from the file whose checksums were right.
    pub read: u64,
    /// Number of pages written to the file.
    pub written: u64,
    /// Pages that were not stored, because too many waited to be written or no room could be made in the file.
    pub dropped: u64,
    /// Pages evicted from the file to make room for others.
    pub evicted: u64,
    /// Pages that did not match their checksum when they were read; they count as absent.
    pub damaged: u64,
    /// Number of system calls on the file that failed.
    pub failed: u64,
    /// Message of the last system call that failed; `None` if none has.
    pub last_error: Option<String>,
}

/// The reason that a disk store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file could not be opened or created.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file that could not be opened or created.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another process uses the file with this path.
    #[error("{}: it is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The existing file is not a regular file of this process's user with mode 0600.
    #[error("{}: {reason}; remove it or name another file", path.display())]
    Refused {
        /// Path of the file that was refused because of its kind, owner or mode.
        path: PathBuf,
        /// A sentence that says which of the file's kind, owner and mode is refused.
        reason: String,
    },
    /// The configured capacity is too small for one page.
    #[error("{capacity} bytes of disk have no room for a page of {page_bytes} bytes")]
    TooSmall {
        /// The configured [`DiskConfig::capacity`], in bytes.
        capacity: u64,
        /// The configured [`DiskConfig::page_bytes`], the bytes of one page.
        page_bytes: usize,
    },
}

impl DiskStore {
    /// Opens or creates the file at `path` and starts its I/O thread. A file made for another identity, page size or
    /// capacity is replaced by an empty one; see [`DiskStore::origin`].
    ///
    /// # Errors
    /// [`DiskError`]; an existing file is then unchanged, unless it was replaced and only the thread failed to start.
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

    /// Returns whether the file was created, restored or replaced when it was opened, for the log.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the store's gauges and counters now.
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
        // The thread itself drops the store if its callback held the last handle, and must not join itself.
        let current = std::thread::current().id();
        if let Some(thread) = thread
            .take()
            .filter(|thread| thread.thread().id() != current)
        {
            // If the thread panicked, pages are missing, and nothing else is wrong.
            let _ = thread.join();
        }
    }
}
