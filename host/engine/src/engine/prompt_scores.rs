//! Log-probabilities of a prompt's own tokens, for clients that score a text or compare given answers.
//!
//! ```text
//!   position    0    1    2    3
//!   token       t0   t1   t2   t3
//!   row         r0   r1   r2   r3        r0 scores t1, r1 scores t2, r2 scores t3; r3 chooses the first token after t3
//! ```
//!
//! A cached position has no row, so such a request computes its prompt starting at the first row that scores a token;
//! earlier rows need no logits. A row is as wide as the vocabulary: a step computes at most [`MAX_SCORED_LOGITS`] for
//! all its scored segments, and the rows are reduced to log-probabilities before the next step. Only a [`Logprobs`] per
//! position is stored.

use crate::TokenId;
use crate::sampling::{Logprobs, SamplingError};
use rayon::prelude::*;
use std::ops::Range;

/// The log-probabilities of a sequence's prompt that have been computed so far.
pub(super) struct PromptScores {
    /// Number of alternatives for each token.
    top: u32,
    /// Tokens in the prompt.
    tokens: u32,
    /// Number of leading positions whose rows score no token.
    unscored: u32,
    /// Log-probabilities of the tokens behind the first `unscored + 1`.
    found: Vec<Logprobs>,
}

/// The rows of one segment that score tokens.
#[derive(Debug)]
pub(super) struct ScoredRows {
    /// Rows of the segment before the first one that scores a token.
    skipped: usize,
    /// The tokens that the rows score, one a row.
    targets: Vec<TokenId>,
    top: u32,
}

impl PromptScores {
    /// Returns empty scores of the last `last` tokens of a prompt of `tokens` tokens. The first token of the prompt is
    /// never scored, because no row precedes it.
    pub(super) fn new(top: u32, tokens: u32, last: u32) -> Self {
        Self {
            top,
            tokens,
            unscored: tokens.saturating_sub(1).saturating_sub(last),
            found: Vec::new(),
        }
    }

    /// Returns the rows that computing `positions` must yield, or `None` if it yields none. After a preemption,
    /// positions that have been scored are computed again but not scored again.
    pub(super) fn rows(&self, tokens: &[TokenId], positions: Range<u32>) -> Option<ScoredRows> {
        let first = positions.start.max(self.unscored + self.found.len() as u32);
        let end = positions.end.min(self.tokens - 1);
        (first < end).then(|| ScoredRows {
            skipped: (first - positions.start) as usize,
            targets: tokens[first as usize + 1..=end as usize].to_vec(),
            top: self.top,
        })
    }

    pub(super) fn extend(&mut self, found: Vec<Logprobs>) {
        self.found.extend(found);
    }

    /// Returns the number of leading positions that may be cached, and of which no logits are needed.
    pub(super) fn unscored(&self) -> u32 {
        self.unscored
    }

    /// Returns one entry for each token that is scored.
    pub(super) fn into_found(self) -> Vec<Logprobs> {
        self.found
    }
}

impl ScoredRows {
    /// Reduces the segment's rows `[tokens, vocabulary]` to log-probabilities.
    ///
    /// # Errors
    /// Returns a [`SamplingError`] if a row contains NaN or plus infinity, or only minus infinity.
    pub(super) fn score(
        &self,
        rows: &[f32],
        vocabulary: usize,
    ) -> Result<Vec<Logprobs>, SamplingError> {
        let rows = &rows[self.skipped * vocabulary..][..self.targets.len() * vocabulary];
        rows.par_chunks_exact(vocabulary)
            .zip(&self.targets)
            .map(|(row, &target)| Logprobs::checked(row, target, self.top))
            .collect()
    }
}

/// Maximum number of logits that the scored segments of a step yield: 32 MiB.
const MAX_SCORED_LOGITS: u32 = 1 << 23;

/// Returns the maximum number of tokens that the scored segments of a step may have.
pub(super) fn max_scored_tokens(vocabulary: u32) -> u32 {
    (MAX_SCORED_LOGITS / vocabulary.max(1)).max(1)
}
