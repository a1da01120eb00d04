//! Penalties: how earlier tokens change the next row of logits.

use super::OutOfRange;
use crate::TokenId;
use fxhash::FxHashMap;

/// The penalties on tokens that already occur, see [`super::SamplingFields`]; within their ranges.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Penalties {
    frequency: f32,
    presence: f32,
    repetition: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self {
            frequency: 0.0,
            presence: 0.0,
            repetition: 1.0,
        }
    }
}

/// The penalties of a sequence, and the distinct tokens that they apply to, each with the number of times that it was
/// *generated* (0 for tokens of the prompt only). Updated token by token, so that a step costs the number of distinct
/// tokens and not the length.
#[derive(Clone, Debug)]
pub(super) struct History {
    penalties: Penalties,
    generated: FxHashMap<TokenId, u32>,
}

impl Penalties {
    pub(super) fn new(frequency: f32, presence: f32, repetition: f32) -> Result<Self, OutOfRange> {
        for (name, value) in [
            ("frequency_penalty", frequency),
            ("presence_penalty", presence),
        ] {
            let within = (-2.0..=2.0).contains(&value);
            OutOfRange::check(name, value, within, "within -2 to 2")?;
        }
        let (name, within) = ("repetition_penalty", repetition > 0.0 && repetition <= 2.0);
        OutOfRange::check(name, repetition, within, "above 0 and at most 2")?;
        Ok(Self {
            frequency,
            presence,
            repetition,
        })
    }

    fn neutral(&self) -> bool {
        *self == Self::default()
    }
}

impl History {
    /// Returns the history of a sequence with this prompt, before its first generated token.
    pub(super) fn new(penalties: Penalties, prompt: &[TokenId]) -> Self {
        let mut generated = FxHashMap::default();
        if penalties.repetition != 1.0 {
            generated.extend(prompt.iter().map(|token| (*token, 0)));
        }
        Self {
            penalties,
            generated,
        }
    }

    /// Returns whether [`History::penalise`] may change logits: false if all penalties are neutral.
    pub(super) fn is_active(&self) -> bool {
        !self.penalties.neutral()
    }

    pub(super) fn push(&mut self, token: TokenId) {
        if self.is_active() {
            *self.generated.entry(token).or_insert(0) += 1;
        }
    }

    pub(super) fn penalise(&self, logits: &mut [f32]) {
        let Penalties {
            frequency,
            presence,
            repetition,
        } = self.penalties;
        for (token, count) in &self.generated {
            let Some(logit) = logits.get_mut(*token as usize) else {
                continue;
            };
            *logit = if *logit > 0.0 {
                *logit / repetition
            } else {
                *logit * repetition
            };
            if *count > 0 {
                *logit -= frequency * *count as f32 + presence;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalised(penalties: (f32, f32, f32), prompt: &[TokenId], answer: &[TokenId]) -> Vec<f32> {
        let penalties = Penalties::new(penalties.0, penalties.1, penalties.2).unwrap();
        let mut history = History::new(penalties, prompt);
        for token in answer {
            history.push(*token);
        }
        let mut row = vec![4.0, 3.0, -2.0, 1.0];
        history.penalise(&mut row);
        row
    }

    #[test]
    fn openais_penalties_count_the_answer_only() {
        assert_eq!(
            penalised((0.5, 0.0, 1.0), &[3, 3], &[0, 1, 0]),
            [3.0, 2.5, -2.0, 1.0]
        );
        assert_eq!(
            penalised((0.0, 0.5, 1.0), &[3, 3], &[0, 1, 0]),
            [3.5, 2.5, -2.0, 1.0]
        );
        assert_eq!(
            penalised((-1.0, 2.0, 1.0), &[], &[2, 2, 2]),
            [4.0, 3.0, -1.0, 1.0]
        );
    }

    #[test]
    fn repetition_counts_prompt_and_answer_and_comes_first() {
        assert_eq!(
            penalised((0.0, 0.0, 2.0), &[0, 2], &[3, 3]),
            [2.0, 3.0, -4.0, 0.5]
        );
        assert_eq!(
            penalised((1.0, 0.5, 2.0), &[0], &[0]),
            [0.5, 3.0, -2.0, 1.0]
        );
    }

    #[test]
    fn without_penalties_nothing_is_counted() {
        let mut history = History::new(Penalties::default(), &[1, 2]);
        history.push(3);
        assert!(!history.is_active() && history.generated.is_empty());
    }

    #[test]
    fn tokens_beyond_the_row_are_passed_over() {
        assert_eq!(
            penalised((1.0, 0.0, 2.0), &[99], &[77, 1]),
            [4.0, 0.5, -2.0, 1.0]
        );
    }

    #[test]
    fn values_out_of_range_are_named() {
        for (values, word) in [
            ((2.5, 0.0, 1.0), "frequency_penalty is 2.5"),
            ((0.0, -3.0, 1.0), "presence_penalty is -3"),
            ((0.0, f32::NAN, 1.0), "presence_penalty is NaN"),
            ((0.0, 0.0, 0.0), "repetition_penalty is 0"),
            ((0.0, 0.0, 2.5), "repetition_penalty is 2.5"),
        ] {
            let error = Penalties::new(values.0, values.1, values.2).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
