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

/// Identifies a page of the backend's pool: memory for the KV state of [`BackendShape::page_tokens`] consecutive tokens
/// in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// Identifies a page of the backend's host pool, which holds the same KV state but is not computed on. The host pool is
/// pinned memory for a device, or a second pool on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPageId(pub u32);

/// A copy of a whole page from the host pool to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Page to read; several loads may share it.
    pub from: HostPageId,
    /// Page that is overwritten whole.
    pub to: PageId,
}

/// A copy of a whole page from the pool to the host pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Page to read; several stores may share it.
    pub from: PageId,
    /// Host page that is overwritten whole.
    pub to: HostPageId,
}

/// Contiguous tokens of one sequence, to be computed in one step.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The tokens to compute, at least one.
    pub tokens: Vec<TokenId>,
    /// Position of the first token in its sequence; `pages` already hold the KV state of positions `0..start`.
    pub start: u32,
    /// The sequence's page table: position `p` lives in `pages[p / page_tokens]`, slot `p % page_tokens`. It covers at
    /// least `start + tokens.len()` positions. A page that is written in a step belongs to one segment alone.
    pub pages: Vec<PageId>,
    /// The result that the segment asks for.
    pub output: Output,
}

/// The result of a segment: rows of logits, or a sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// Nothing, for a prefill chunk that is not the prompt's last.
    None,
    /// One row of logits, for the last token.
    Last,
    /// `tokens.len()` rows of logits, one for every token (tests and scoring).
    All,
    /// No logits, but a token that the backend samples from the last token's logits, as [`Sampling::choose`] does.
    /// Allowed where [`BackendShape::draws`] is true.
    ///
    /// [`Sampling::choose`]: crate::sampling::Sampling::choose
    Token(Draw),
}

/// The input of one call of [`Backend::run`].
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Pages to load from the host pool, each `to` at most once. They are loaded before any segment reads or writes
    /// them. How much of the copying is overlapped with the computation of earlier layers is up to the backend.
    pub loads: Vec<Load>,
    /// Segments of different sequences, in the order in which their logits are returned.
    pub segments: Vec<Segment>,
}

/// The dimensions of a backend: of its model's output, and of its pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendShape {
    /// Width of a row of logits: the number of tokens in the vocabulary.
    pub vocabulary: u32,
    /// Number of positions that the model supports; no sequence may be longer.
    pub max_positions: u32,
    /// Number of tokens in a page.
    pub page_tokens: u32,
    /// Number of pages in the pool; ids are `0..pages`.
    pub pages: u32,
    /// Number of pages in the host pool; ids are `0..host_pages`. With 0, calls that use the host pool fail.
    pub host_pages: u32,
    /// Bytes of a page over all layers, in the backend's own format.
    pub page_bytes: usize,
    /// True if the backend supports [`Output::Token`]: it samples on the device, and no row of logits is transferred.
    pub draws: bool,
}

impl BackendShape {
    /// Returns the number of tokens whose KV state the pool can hold.
    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.pages) * u64::from(self.page_tokens)
    }

    /// Returns the maximum number of tokens in a sequence: the smaller of the model's positions and the pool's tokens.
    pub fn longest_sequence(&self) -> u32 {
        self.kv_tokens().min(self.max_positions.into()) as u32
    }
}

/// Computes planned steps on pages and weights.
pub trait Backend: Send {
    /// Returns the backend's dimensions, which never change.
    fn shape(&self) -> BackendShape;

    /// Carries out the loads of `step` and computes its segments. Writes the KV state of its tokens to their pages and
    /// the wanted logits to `logits` (cleared first): `[rows, vocabulary] f32`, row-major, rows in segment order.
    ///
    /// # Errors
    /// Returns a [`BackendError`] when the step is malformed (nothing was loaded or computed), the device failed (pages
    /// written by this step are undefined, others untouched) or was lost (all pages are undefined).
    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError>;

    /// Returns one result for each segment that asked the last [`Backend::run`] for a token, in segment order: the
    /// sampled token, or the reason that sampling failed. Empty for a backend that samples none.
    fn drawn(&mut self) -> Vec<Result<TokenId, SamplingError>> {
        Vec::new()
    }

    /// Copies the KV state of the first `tokens` slots of page `from` to page `to` (copy-on-write).
    ///
    /// # Errors
    /// Returns [`BackendError::Malformed`] when a page or the count is out of range, or `from == to`.
    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError>;

    /// Copies pages to the host pool, each `to` at most once, with the content that earlier calls left. Later calls may
    /// overwrite the pages at once. May return before the copies are complete.
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

    /// Returns the [`BackendShape::page_bytes`] bytes of a host page. Waits until a store to it is complete.
    ///
    /// # Errors
    /// Returns [`BackendError::Malformed`] when there is no such page, and `Device` or `Lost` when a store to it
    /// failed.
    fn host_page(&mut self, page: HostPageId) -> Result<&[u8], BackendError> {
        Err(BackendError::no_host_page(page, 0))
    }

    /// Returns a host page as [`Backend::host_page`] does, to be overwritten. Also waits until loads from it have been
    /// carried out.
    ///
    /// # Errors
    /// Returns the same errors as [`Backend::host_page`].
    fn host_page_mut(&mut self, page: HostPageId) -> Result<&mut [u8], BackendError> {
        Err(BackendError::no_host_page(page, 0))
    }
}

/// The reason that a call of a [`Backend`] failed.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The caller made a mistake: a token, position or page is out of range. The message names the value and the limit.
    #[error("malformed call: {0}")]
    Malformed(String),
    /// The device failed. It may or may not work again later.
    #[error("device failed: {0}")]
    Device(String),
    /// The device has lost its memory: every page is undefined, and host pages are unchanged. The next call either
    /// finds a device that works again, or fails in the same way, and then no later call will succeed.
    #[error("device lost: {0}")]
    Lost(String),
}

impl BackendError {
    /// Returns the error for a host page that is not below `pages`.
    pub fn no_host_page(page: HostPageId, pages: u32) -> Self {
        Self::Malformed(format!(
            "host page {} is not below the host pool's {pages}",
            page.0
        ))
    }
}
