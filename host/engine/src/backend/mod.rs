//! The interface between planning and arithmetic: a [`Step`] in, logits out.
//!
//! A backend owns the weights and the pool of KV pages. It knows neither requests nor prefixes: the planner says which
//! tokens to compute, their positions in the sequence, and which pages hold the sequence.
//!
//! On the CPU, results are *batch-invariant*: a token's logits depend on its sequence alone, bit for bit, never on
//! which other segments share the step nor on how its prefix was cut into steps. Whether the cache was warm therefore
//! cannot change an answer. On CUDA this holds except for rounding, because the library that multiplies matrices
//! chooses its algorithm by the number of rows.
//!
//! A backend may have a second, larger pool in host memory, whose pages nothing computes on. Whole pages move between
//! the two pools. Host pages can be read and written as bytes, which is how the disk tier is connected:
//!
//! ```text
//!              Step.loads                    host_page, host_page_mut
//!   pool  ◀──────────────────  host pool  ◀──────────────────────────▶  bytes
//!         ──────────────────▶
//!                store
//! ```

mod check;
pub mod cpu;
pub mod cuda;
#[cfg(test)]
mod tests;

use crate::TokenId;
use crate::sampling::{Draw, SamplingError};

/// Identifies a page of the backend's pool, on which the backend computes. A page is memory for the KV state of
/// [`BackendShape::page_tokens`] consecutive tokens in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// Identifies a page of the backend's host pool. Its pages hold the same KV state as those of the pool but are not
/// computed on: pinned host memory for a CUDA device, ordinary memory on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPageId(pub u32);

/// A copy of a whole page from the host pool to the pool, on which the backend computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Host page to read; several [`Load`]s may read the same page.
    pub from: HostPageId,
    /// Page of the pool that is overwritten whole.
    pub to: PageId,
}

/// A copy of a whole page from the pool, on which the backend computes, to the host pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Page to read; several [`Store`]s may read the same page.
    pub from: PageId,
    /// Page of the host pool that is overwritten whole.
    pub to: HostPageId,
}

/// Contiguous tokens of one sequence, to be computed in one step.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The tokens to compute, at least one.
    pub tokens: Vec<TokenId>,
    /// Position of the first token in its sequence; `pages` already hold the KV state of positions `0..start`, unless
    /// loads of the same step bring it.
    pub start: u32,
    /// The sequence's page table: the KV state of position `p` is in page `pages[p / page_tokens]`, at index
    /// `p % page_tokens`. The table covers at least `start + tokens.len()` positions. A page that a segment writes in a
    /// step is neither read nor written by another segment of the step.
    pub pages: Vec<PageId>,
    /// The result that the caller wants from the segment: nothing, rows of logits, or a sampled token.
    pub output: Output,
}

/// The result that a segment wants from a step: nothing, rows of logits, or a sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// Nothing. For a part of a prompt that is not its last, so that no token follows it yet.
    None,
    /// One row of logits (one logit for each token of the vocabulary), after the segment's last token.
    Last,
    /// `tokens.len()` rows of logits, one after every token of the segment (for tests and for scoring a prompt).
    All,
    /// No logits, but a token that the backend itself samples from the logits after the segment's last token, by these
    /// parameters, as [`Sampling::choose`] does. Allowed if [`BackendShape::draws`] is true.
    ///
    /// [`Sampling::choose`]: crate::sampling::Sampling::choose
    Token(Draw),
}

/// The input of one call of [`Backend::run`]: pages to load, and tokens of several sequences to compute.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Copies of whole pages from the host pool, each page `to` at most once. They are carried out before any segment
    /// reads or writes these pages. How much of the copying is overlapped with the computation of earlier layers is up
    /// to the backend.
    pub loads: Vec<Load>,
    /// Segments of different sequences. Their logits are returned in this order.
    pub segments: Vec<Segment>,
}

/// The dimensions of a backend: of its model's output, and of its two pools of KV pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendShape {
    /// Width of a row of logits: the number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Number of positions that the model supports; no sequence may be longer.
    pub max_positions: u32,
    /// Number of tokens whose KV state fits a page.
    pub page_tokens: u32,
    /// Number of pages in the pool on which the backend computes; their ids are `0..pages`.
    pub pages: u32,
    /// Number of pages in the host pool; their ids are `0..host_pages`. With 0, calls that use the host pool fail.
    pub host_pages: u32,
    /// Bytes of KV state in a page over all layers, in the backend's own format.
    pub page_bytes: usize,
    /// True if the backend supports [`Output::Token`]: it samples tokens itself, and no row of logits is transferred.
    pub draws: bool,
}

impl BackendShape {
    /// Returns the number of tokens whose KV state the pool can hold, without the host pool.
    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.pages) * u64::from(self.page_tokens)
    }

    /// Returns the maximum number of tokens in a sequence: the smaller of the model's positions and the tokens whose KV
    /// state the pool can hold.
    pub fn longest_sequence(&self) -> u32 {
        self.kv_tokens().min(self.max_positions.into()) as u32
    }
}

/// Computes planned steps: carries out the arithmetic of a model on its weights and on pages of KV state.
pub trait Backend: Send {
    /// Returns the dimensions of the backend's model and pools, which never change.
    fn shape(&self) -> BackendShape;

    /// Carries out the loads of `step` and computes its segments. Writes the KV state of the segments' tokens to their
    /// pages, and the logits that the segments want to `logits` (cleared first): `[rows, vocabulary] f32`, row-major,
    /// rows in the order of the segments.
    ///
    /// # Errors
    /// Returns a [`BackendError`] when the step is malformed (nothing was loaded or computed), the device failed (pages
    /// written by this step are undefined, others untouched) or was lost (all pages are undefined).
    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError>;

    /// Returns one result for each segment of the last [`Backend::run`] with [`Output::Token`], in the order of the
    /// segments: the sampled token, or the reason that sampling failed. The default, for a backend that samples none,
    /// is empty.
    fn drawn(&mut self) -> Vec<Result<TokenId, SamplingError>> {
        Vec::new()
    }

    /// Copies the KV state of the first `tokens` tokens in page `from` to page `to` of the pool (copy-on-write).
    ///
    /// # Errors
    /// Returns [`BackendError::Malformed`] when a page or the count is out of range, or `from == to`.
    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError>;

    /// Copies pages of the pool to the host pool, each host page `to` at most once. A page is copied with the content
    /// that earlier calls left, and later calls may overwrite it at once. May return before the copies are complete.
    ///
    /// # Errors
    /// Returns a [`BackendError`] as [`Backend::run`] does; the host pages `to` are undefined if the device failed or
    /// was lost.
    fn store(&mut self, stores: &[Store]) -> Result<(), BackendError> {
        match stores.first() {
            Some(store) => Err(BackendError::no_host_page(store.to, 0)),
            None => Ok(()),
        }
    }

    /// Returns the [`BackendShape::page_bytes`] bytes of a host page. Waits until a copy to it from the pool is
    /// complete.
    ///
    /// # Errors
    /// Returns [`BackendError::Malformed`] when there is no such page, and `Device` or `Lost` when a store to it
    /// failed.
    fn host_page(&mut self, page: HostPageId) -> Result<&[u8], BackendError> {
        Err(BackendError::no_host_page(page, 0))
    }

    /// Returns a host page's bytes as [`Backend::host_page`] does, but writable. Also waits until copies from the page
    /// to the pool have been carried out.
    ///
    /// # Errors
    /// Returns the same errors as [`Backend::host_page`].
    fn host_page_mut(&mut self, page: HostPageId) -> Result<&mut [u8], BackendError> {
        Err(BackendError::no_host_page(page, 0))
    }
}

/// The reason that a call of a [`Backend`] failed, which tells which pages are still valid.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The caller made a mistake: a token, position or page is out of range. The message names the value and the limit.
    #[error("malformed call: {0}")]
    Malformed(String),
    /// The device failed. It may or may not work again later.
    #[error("device failed: {0}")]
    Device(String),
    /// The device has lost its memory: every page of the pool is undefined, and host pages are unchanged. The next call
    /// either finds a device that works again, or fails in the same way, and then no later call will succeed.
    #[error("device lost: {0}")]
    Lost(String),
}

impl BackendError {
    /// Returns the error for a host page whose id is not below `pages`, the number of pages in the host pool.
    pub fn no_host_page(page: HostPageId, pages: u32) -> Self {
        Self::Malformed(format!(
            "host page {} is not below the host pool's {pages}",
            page.0
        ))
    }
}
