//! The seam to the tier below host memory: pages by their hash, somewhere slow.
//!
//! The tree knows nothing of what lies there but what [`DiskTier::contains`] says: a page is found by the hash of all
//! that precedes it, so a restarted engine finds its pages again without a tree.
//!
//! ```text
//!   cache (engine's thread)   contains ─▶ index     request ─▶ queue ─▶ I/O thread ─▶ completed
//!   whoever has the bytes                           write ───▶ queue ─▶ I/O thread
//! ```

use super::hash::PageHash;

/// Pages on disk. No call but [`DiskTier::flush`] waits for the disk.
pub trait DiskTier: Send + Sync {
    /// Whether a read would probably find the page.
    fn contains(&self, page: PageHash) -> bool;

    /// Asks for a page. [`DiskTier::completed`] answers each request once, in the order of the requests; the caller
    /// bounds how many it has open.
    fn request(&self, page: PageHash);

    /// The next answer that has come: the page's bytes, or `None` if it could not be read whole or is not there.
    fn completed(&self) -> Option<(PageHash, Option<Vec<u8>>)>;

    /// Has `wake` called, by another thread, whenever answers have come. Only the first call counts.
    fn on_completion(&self, wake: Box<dyn Fn() + Send + Sync>);

    /// Keeps a page, if there is room or something can make room. A page that is there already is only touched.
    /// `parent` is the page before it or the tenant's [root](PageHash::root): a page leaves before what it follows.
    /// When more is written than the disk can take, pages are dropped.
    fn write(&self, page: PageHash, parent: PageHash, bytes: &[u8]);

    /// What became of the pages so far.
    fn counts(&self) -> DiskCounts {
        DiskCounts::default()
    }

    /// Waits until everything that was asked for has been done: for an end in good order, not for a running engine.
    fn flush(&self) {}

    /// Forgets a page.
    fn remove(&self, page: PageHash);

    /// Forgets all pages.
    fn clear(&self);
}

/// What became of the pages that a tier was given, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Pages written.
    pub written: u64,
    /// Pages not written because too many were waiting.
    pub dropped: u64,
    /// Pages that did not fit their sum when they were read.
    pub damaged: u64,
    /// Calls that the disk refused, because it is full, say: each cost one page its place.
    pub failed: u64,
}
