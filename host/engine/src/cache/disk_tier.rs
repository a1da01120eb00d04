//! The interface to the disk tier below host memory: pages stored by their hash.
//!
//! The tree knows only what [`DiskTier::contains`] says about the disk. A page is found by the hash of everything up to
//! its end, so a restarted engine finds its pages again without a tree.
//!
//! ```text
//!   cache (engine's thread)   contains ─▶ index     request ─▶ queue ─▶ I/O thread ─▶ completed
//!   owner of the bytes                              write ───▶ queue ─▶ I/O thread
//! ```

use super::hash::PageHash;

/// A store of KV pages on disk, found by their hash. Only [`DiskTier::flush`] waits for the disk.
pub trait DiskTier: Send + Sync {
    /// Returns whether the store has the page, so that a read would probably succeed.
    fn contains(&self, page: PageHash) -> bool;

    /// Requests a page. [`DiskTier::completed`] answers each request once, in the order of the requests. The caller
    /// must bound the number of requests that are not answered yet.
    fn request(&self, page: PageHash);

    /// Removes and returns the next answer to a request: the page's hash with its bytes, or with `None` if the page is
    /// absent or could not be read whole. Returns `None` if no answer has arrived.
    fn completed(&self) -> Option<(PageHash, Option<Vec<u8>>)>;

    /// Registers `wake`, which another thread calls whenever answers to requests have arrived. Only the first call has
    /// an effect.
    fn on_completion(&self, wake: Box<dyn Fn() + Send + Sync>);

    /// Stores a page, evicting others if the store is full. A page that is already stored only counts as used. `parent`
    /// is the hash of the page before it, or the tenant's [root](PageHash::root): a page is evicted before the one that
    /// it follows. If pages are written faster than the disk takes them, further ones are dropped.
    fn write(&self, page: PageHash, parent: PageHash, bytes: &[u8]);

    /// Counts `pages` as used now, from the first up to the first one that is not stored, and returns their number. The
    /// default implementation only returns the number.
    fn touch(&self, pages: &[PageHash]) -> usize {
        pages
            .iter()
            .take_while(|page| self.contains(**page))
            .count()
    }

    /// Returns the number of pages that wait to be written to disk.
    fn backlog(&self) -> usize {
        0
    }

    /// Returns the counters of this store.
    fn counts(&self) -> DiskCounts {
        DiskCounts::default()
    }

    /// Waits until all requested reads and writes are done. For an orderly shutdown, not for a running engine. The
    /// default does nothing.
    fn flush(&self) {}

    /// Removes a page from the store, if it is there.
    fn remove(&self, page: PageHash);

    /// Removes all pages from the store.
    fn clear(&self);
}

/// Counters of a disk tier since it was opened, in pages except where stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Number of pages written to disk.
    pub written: u64,
    /// Pages that were not stored, because too many waited to be written or no room could be made in the file.
    pub dropped: u64,
    /// Pages that did not match their checksum when they were read; they count as absent.
    pub damaged: u64,
    /// System calls that failed, for instance because the disk is full. A page whose write failed is not stored.
    pub failed: u64,
}
