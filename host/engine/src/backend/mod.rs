//! The seam between planning and arithmetic: a [`Step`] in, logits out.
//!
//! A backend owns the weights and the pool of KV pages. It knows neither requests nor prefixes: the planner says
//! which tokens to compute, where they stand in their sequence, and which pages hold the sequence.
//!
//! Results are *batch-invariant*: a token's logits depend on its sequence alone, bit for bit, never on which other
//! segments share the step nor on how its prefix was cut into steps. That is what makes an answer independent of
//! whether the cache was warm.

pub mod cpu;

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// A page of the backend's pool: room for the KV state of [`Backend::page_tokens`] consecutive tokens, all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

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

/// Which logits a segment asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// None: a prefill chunk that is not the prompt's last.
    None,
    /// The last token's, one row.
    Last,
    /// Every token's, `tokens.len()` rows (tests and scoring).
    All,
}

/// What one call of [`Backend::run`] computes.
#[derive(Clone, Debug, Default)]
pub struct Step {
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

    /// Computes `step`, writes the KV state of its tokens into their pages and the wanted logits into `logits`
    /// (cleared first): `[rows, vocabulary] f32`, row-major, rows in segment order.
    ///
    /// # Errors
    /// [`BackendError`] when the step is malformed (nothing was computed) or the device failed (pages written by
    /// this step are undefined, others untouched).
    fn run(&mut self, step: &Step, logits: &mut Vec<f32>) -> Result<(), BackendError>;

    /// Copies the KV state of the first `tokens` slots of page `from` to page `to` (copy-on-write).
    ///
    /// # Errors
    /// [`BackendError::Malformed`] when a page or the count is out of range, or `from == to`.
    fn copy_slots(&mut self, from: PageId, to: PageId, tokens: u32) -> Result<(), BackendError>;
}

/// Why a backend did not compute.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The caller's mistake: a token, position or page out of range. Names the value and the limit.
    #[error("malformed step: {0}")]
    Malformed(String),
    /// The device's: it may work again later, or not.
    #[error("device failed: {0}")]
    Device(String),
}
