//! Log-probabilities of tokens from a row of logits, for clients that need the model's confidence.

use super::{SamplingError, most_likely};
use crate::TokenId;

/// Log-probabilities that the model itself assigns to a token and its alternatives: natural logarithms of the softmax
/// of the row of logits, at temperature 1, before penalties, grammar, top-k and top-p change it.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Log-probability of the chosen token, or of the prompt's token that was scored.
    pub chosen: f32,
    /// Number of tokens of the vocabulary that are at least as likely as the chosen one, itself included: 1 for the
    /// likeliest.
    pub rank: u32,
    /// The most likely tokens with their log-probabilities, as many as were requested, likeliest first, the lower id
    /// first among equals. The chosen token need not be among them.
    pub top: Vec<(TokenId, f32)>,
}

impl Logprobs {
    /// Computes log-probabilities as [`Logprobs::of`] does, after checking that softmax is defined for the logits.
    ///
    /// # Errors
    /// Returns a [`SamplingError`] if a logit is NaN or plus infinity, or all are minus infinity.
    pub(crate) fn checked(
        logits: &[f32],
        token: TokenId,
        count: u32,
    ) -> Result<Self, SamplingError> {
        most_likely(logits)?;
        Ok(Self::of(logits, token, count))
    }

    /// Computes the log-probabilities of `token` and of the `count` most likely tokens in a row of logits, of which
    /// none may be NaN or plus infinity, and one must be finite. Costs `O(vocabulary)`.
    pub(super) fn of(logits: &[f32], token: TokenId, count: u32) -> Self {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // Relative to the largest, so that nothing overflows.
        let total: f64 = logits.iter().map(|l| f64::from(l - most).exp()).sum();
        let log_total = f64::from(most) + total.ln();
        #[expect(clippy::cast_possible_truncation, reason = "a logprob needs no f64")]
        let logprob = |logit: f32| (f64::from(logit) - log_total) as f32;

        let chosen = logits.get(token as usize).copied();
        let chosen = chosen.unwrap_or(f32::NEG_INFINITY);
        let rank = logits.iter().filter(|&&logit| logit >= chosen).count();
        Self {
            chosen: logprob(chosen),
            rank: rank as u32,
            top: likeliest(logits, count)
                .into_iter()
                .map(|id| (id, logprob(logits[id as usize])))
                .collect(),
        }
    }
}

/// Returns the `count` tokens with the highest logits, highest first, the lower id first among equals.
fn likeliest(logits: &[f32], count: u32) -> Vec<TokenId> {
    if count == 0 {
        return Vec::new();
    }
    let mut ranked: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    let by_rank = |a: &TokenId, b: &TokenId| {
        let logit = |id: &TokenId| logits[*id as usize];
        logit(b).total_cmp(&logit(a)).then(a.cmp(b))
    };
    let count = ranked.len().min(count as usize);
    if (1..ranked.len()).contains(&count) {
        ranked.select_nth_unstable_by(count - 1, by_rank);
    }
    ranked.truncate(count);
    ranked.sort_unstable_by(by_rank);
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_softmax() {
        let row: Vec<f32> = [0.5_f32, 0.125, 0.25, 0.125]
            .map(|p| p.ln() + 300.0)
            .to_vec();
        let logprobs = Logprobs::of(&row, 2, 3);
        let near = |logprob: f32, p: f32| (logprob.exp() - p).abs() < 1e-4;
        assert!(near(logprobs.chosen, 0.25), "{logprobs:?}");
        assert_eq!(logprobs.rank, 2);
        assert_eq!(Logprobs::of(&row, 3, 0).rank, 4, "equals count");
        let ids: Vec<TokenId> = logprobs.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [0, 2, 1], "the lower id among equals");
        assert!(
            near(logprobs.top[0].1, 0.5) && near(logprobs.top[2].1, 0.125),
            "{logprobs:?}"
        );
    }

    #[test]
    fn none_or_all_may_be_asked_for() {
        let row = [0.0, 1.0];
        assert_eq!(Logprobs::of(&row, 0, 0).top, []);
        assert_eq!(Logprobs::of(&row, 0, 9).top.len(), 2);
        assert_eq!(
            Logprobs::of(&[f32::NEG_INFINITY, 0.0], 0, 1).chosen,
            f32::NEG_INFINITY
        );
    }
}
