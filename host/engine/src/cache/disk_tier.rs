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

/// A store of pages on disk. Only [`DiskTier::flush`] waits for the disk.
pub trait DiskTier: Send + Sync {
    /// Returns whether a read would probably find the page.
    fn contains(&self, page: PageHash) -> bool;

    /// Requests a page. [`DiskTier::completed`] answers each request once, in the order of the requests. The caller
    /// bounds the number of its unanswered requests.
    fn request(&self, page: PageHash);

    /// Returns the next completed read: the page's bytes, or `None` in their place if the page is absent or could not
    /// be read whole.
    fn completed(&self) -> Option<(PageHash, Option<Vec<u8>>)>;

    /// Registers `wake`, which another thread calls whenever reads have completed. Only the first call has an effect.
    fn on_completion(&self, wake: Box<dyn Fn() + Send + Sync>);

    /// Stores a page, evicting others if the tier is full. A page that is already stored is only marked as used.
    /// `parent` is the page before it or the tenant's [root](PageHash::root): a page is evicted before the one that it
    /// follows. Pages are dropped when they are written faster than the disk takes them.
    fn write(&self, page: PageHash, parent: PageHash, bytes: &[u8]);

    /// Marks those of `pages` as used that are stored, up to the first that is not, and returns their number. The
    /// default implementation only counts them.
    fn touch(&self, pages: &[PageHash]) -> usize {
        pages
            .iter()
            .take_while(|page| self.contains(**page))
            .count()
    }

    /// Returns the number of pages that wait to be written.
    fn backlog(&self) -> usize {
        0
    }

    /// Returns the tier's counters.
    fn counts(&self) -> DiskCounts {
        DiskCounts::default()
    }

    /// Waits until all requested reads and writes are done. For an orderly shutdown, not for a running engine.
    fn flush(&self) {}

    /// Removes a page, if it is stored.
    fn remove(&self, page: PageHash);

    /// Removes all pages.
    fn clear(&self);
}

/// Counters of a disk tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Number of pages written.
    pub written: u64,
    /// Pages dropped because too many waited to be written, or no slot could be freed.
    pub dropped: u64,
    /// Pages that did not match their checksum when they were read.
    pub damaged: u64,
    /// System calls that failed, for instance because the disk is full. A page whose write failed is not stored.
    pub failed: u64,
}
