//! A grammar that an answer must follow, and the answer's position in it.
//!
//! The grammar runs on `llguidance`'s Earley parser over a trie of the vocabulary's bytes. [`crate::text::Grammars`]
//! builds it, off the engine's thread. Here it computes a mask before each choice and consumes each chosen token. Its
//! cost per step is bounded; exceeding the bound fails the sequence, not the engine.

use super::SamplingError;
use crate::TokenId;
use llguidance::Matcher;
use std::fmt;

/// A grammar that an answer must follow, with the answer's position in it. A clone continues from the same position
/// independently.
#[derive(Clone)]
pub struct Constraint(Matcher);

impl Constraint {
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self(matcher)
    }

    /// Sets the logits of all tokens to minus infinity that the grammar does not allow next. Stop tokens are allowed if
    /// and only if the answer is complete.
    pub(super) fn mask(
        &mut self,
        logits: &mut [f32],
        stop_tokens: &[TokenId],
    ) -> Result<(), SamplingError> {
        let mut allowed = self.0.compute_mask().map_err(failed)?;
        let complete = self.0.is_accepting().map_err(failed)?;
        for token in stop_tokens
            .iter()
            .filter(|token| (**token as usize) < logits.len())
        {
            allowed.set(*token as usize, complete);
        }
        // The mask is one wider than the row: its last entry is the grammar's own end token.
        allowed.iter_unset_entries(|token| {
            if let Some(logit) = logits.get_mut(token) {
                *logit = f32::NEG_INFINITY;
            }
        });
        Ok(())
    }

    /// Advances the position in the grammar by `token`, which must be allowed. Returns true if the answer is complete
    /// and no token can follow.
    pub(super) fn push(&mut self, token: TokenId) -> Result<bool, SamplingError> {
        self.0.consume_token(token).map_err(failed)?;
        Ok(self.0.is_stopped())
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}

fn failed(error: impl fmt::Display) -> SamplingError {
    SamplingError::Constraint {
        reason: error.to_string(),
    }
}
