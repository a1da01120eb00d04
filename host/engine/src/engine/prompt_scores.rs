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

/// The log-probabilities of one prompt's tokens that have been computed so far, and those still to compute.
pub(super) struct PromptScores {
    /// Number of most likely tokens whose log-probabilities are reported with each token.
    top: u32,
    /// Number of tokens in the prompt.
    tokens: u32,
    /// Number of leading positions of the prompt whose rows of logits are not needed, because the tokens after them are
    /// not scored.
    unscored: u32,
    /// Log-probabilities of the scored tokens so far; the first is that of the token with index `unscored + 1`.
    found: Vec<Logprobs>,
}

/// The rows of one segment's logits that score tokens of the prompt, and the tokens that they score.
#[derive(Debug)]
pub(super) struct ScoredRows {
    /// Number of rows of the segment before the first one that scores a token.
    skipped: usize,
    /// The tokens of the prompt that are scored, one for each of the segment's rows after the first `skipped`.
    targets: Vec<TokenId>,
    top: u32,
}

impl PromptScores {
    /// Returns scores, none computed yet, for the last `last` tokens of a prompt of `tokens` tokens. The prompt's first
    /// token is never scored, because no row of logits precedes it. With each token, `top` most likely ones are
    /// reported.
    pub(super) fn new(top: u32, tokens: u32, last: u32) -> Self {
        Self {
            top,
            tokens,
            unscored: tokens.saturating_sub(1).saturating_sub(last),
            found: Vec::new(),
        }
    }

    /// Returns which rows of logits score tokens when the positions `positions` are computed, or `None` if none does.
    /// After a preemption, positions whose rows were used before are computed again, but not used again.
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

    /// Returns the number of leading positions that may come from the cache, because their logits are not needed.
    pub(super) fn unscored(&self) -> u32 {
        self.unscored
    }

    /// Returns the log-probabilities, one entry for each scored token, in order.
    pub(super) fn into_found(self) -> Vec<Logprobs> {
        self.found
    }
}

impl ScoredRows {
    /// Computes the log-probabilities of the tokens to score from the segment's rows of logits `[tokens, vocabulary]`.
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

/// Maximum number of logits that one step computes for scoring prompts: 32 MiB of f32.
const MAX_SCORED_LOGITS: u32 = 1 << 23;

/// Returns the maximum number of tokens that one step may compute for scoring prompts, given the vocabulary's size.
pub(super) fn max_scored_tokens(vocabulary: u32) -> u32 {
    (MAX_SCORED_LOGITS / vocabulary.max(1)).max(1)
}
