//! The seam between planning and arithmetic: a [`Step`] in, logits out.
//!
//! A backend owns the weights and the pool of KV pages. It knows neither requests nor prefixes: the planner says
//! which tokens to compute, where they stand in their sequence, and which pages hold the sequence.
//!
//! On the CPU results are *batch-invariant*: a token's logits depend on its sequence alone, bit for bit, never on which
//! other segments share the step nor on how its prefix was cut into steps. That is what makes an answer independent of
//! whether the cache was warm. On CUDA they are so but for rounding, since the library that multiplies matrices chooses its
//! way by their rows.
//!
//! A backend may have a second, larger pool in the host's memory, whose pages nothing computes on. Whole pages move
//! between the two, and the host's can be read and written as bytes, which is how a disk comes in:
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

/// A page of the backend's pool: room for the KV state of [`Backend::page_tokens`] consecutive tokens, all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// A page of the backend's host pool: the same KV state, where nothing is computed on it. Pinned memory beside a device,
/// a plain second pool on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPageId(pub u32);

/// Copy a whole page from the host pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Read only; several loads may share it.
    pub from: HostPageId,
    /// Overwritten, all of it.
    pub to: PageId,
}

/// Copy a whole page to the host pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Read only; several stores may share it.
    pub from: PageId,
    /// Overwritten, all of it.
    pub to: HostPageId,
}

/// Contiguous tokens of one sequence, to be computed in one step.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The tokens to compute, at least one.
    pub tokens: Vec<TokenId>,
    /// Position of the first of them in its sequence; the KV state of positions `0..start` already stands in `pages`.
    pub start: u32,
    /// The sequence's page table: position `p` lives in `pages[p / page_tokens]`, slot `p % page_tokens`.
    /// Covers at least `start + tokens.len()` positions. Pages written in one step belong to one segment alone.
    pub pages: Vec<PageId>,
    /// Which of the tokens' logits are wanted.
    pub output: Output,
}

/// Which logits a segment asks for, or which token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// None: a prefill chunk that is not the prompt's last.
    None,
    /// The last token's, one row.
    Last,
    /// Every token's, `tokens.len()` rows (tests and scoring).
    All,
    /// No logits but the token after the last, chosen by the backend from the last one's ([`Sampling::choose`] says how);
    /// where [`Backend::draws`].
    ///
    /// [`Sampling::choose`]: crate::sampling::Sampling::choose
    Token(Draw),
}

/// What one call of [`Backend::run`] computes.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Pages that come back from the host pool, each `to` once. They stand there before any segment reads or writes
    /// them; how much of the copying a backend hides behind the arithmetic of earlier layers is its own affair.
    pub loads: Vec<Load>,
    /// Segments of different sequences, in the order in which their logits are returned.
    pub segments: Vec<Segment>,
}

/// Computes planned steps on pages and weights.
pub trait Backend: Send {
    /// Width of a row of logits.
    fn vocabulary(&self) -> u32;

    /// Positions that the model was made for: no sequence may be longer.
    fn max_positions(&self) -> u32;

    /// Tokens in a page.
    fn page_tokens(&self) -> u32;

    /// Pages in the pool; ids are `0..pages()`.
    fn pages(&self) -> u32;

    /// Pages in the host pool; ids are `0..host_pages()`. 0: there is none, and what is said of it below is an error.
    fn host_pages(&self) -> u32 {
        0
    }

    /// Bytes of a page, all layers of it; what they mean is the backend's own affair. 0 without a host pool.
    fn page_bytes(&self) -> usize {
        0
    }

    /// Carries out the loads of `step`, computes its segments, writes the KV state of its tokens into their pages and the wanted logits into `logits`
    /// (cleared first): `[rows, vocabulary] f32`, row-major, rows in segment order.
    ///
    /// # Errors
    /// [`BackendError`] when the step is malformed (nothing was loaded or computed), the device failed (pages written by
    /// this step are undefined, others untouched) or was lost (all pages are undefined).
    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError>;

    /// Whether it chooses tokens itself, which saves a row of logits on its way from a device: [`Output::Token`].
    fn draws(&self) -> bool {
        false
    }

    /// What the last [`Backend::run`] chose, in the order of the segments that asked for a token, or why it could not.
    fn drawn(&mut self) -> Vec<Result<TokenId, SamplingError>> {
        Vec::new()
    }

    /// Copies the KV state of the first `tokens` slots of page `from` to page `to` (copy-on-write).
    ///
    /// # Errors
    /// [`BackendError::Malformed`] when a page or the count is out of range, or `from == to`.
    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError>;

    /// Copies pages to the host pool, each `to` once, as earlier calls left them: later ones may overwrite them at once.
    /// May return before the copies have landed.
    ///
    /// # Errors
    /// [`BackendError`] as for [`Backend::run`]; the host pages `to` are undefined if the device failed or was lost.
    fn store(&mut self, stores: &[Store]) -> Result<(), BackendError> {
        match stores.first() {
            Some(store) => Err(BackendError::no_host_page(store.to, 0)),
            None => Ok(()),
        }
    }

    /// The bytes of a host page, [`Backend::page_bytes`] of them. Waits until a store to it has landed.
    ///
    /// # Errors
    /// [`BackendError::Malformed`] when there is no such page; `Device` or `Lost` when a store to it did not land.
    fn host_page(&mut self, page: HostPageId) -> Result<&[u8], BackendError> {
        Err(BackendError::no_host_page(page, 0))
    }

    /// As [`Backend::host_page`], to be overwritten. Also waits until loads from it have been carried out.
    ///
    /// # Errors
    /// As [`Backend::host_page`].
    fn host_page_mut(&mut self, page: HostPageId) -> Result<&mut [u8], BackendError> {
        Err(BackendError::no_host_page(page, 0))
    }
}

/// Why a backend did not compute.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The caller's mistake: a token, position or page out of range. Names the value and the limit.
    #[error("malformed call: {0}")]
    Malformed(String),
    /// The device's: it may work again later, or not.
    #[error("device failed: {0}")]
    Device(String),
    /// The device's memory with it: every page is undefined, host pages are as they were. The next call finds a device
    /// that works again, or fails as this one did, and then no later one will.
    #[error("device lost: {0}")]
    Lost(String),
}

impl BackendError {
    /// `page` is not below `pages`.
    pub fn no_host_page(page: HostPageId, pages: u32) -> Self {
        Self::Malformed(format!(
            "host page {} is not below the host pool's {pages}",
            page.0
        ))
    }
}
