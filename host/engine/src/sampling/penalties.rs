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

    /// Changes the row's logits by the penalties. A finite logit stays finite, so that only the model's own faults are
    /// taken for such.
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
            let finite = logit.is_finite();
            *logit = if *logit > 0.0 {
                *logit / repetition
            } else {
                *logit * repetition
            };
            if *count > 0 {
                *logit -= frequency * *count as f32 + presence;
            }
            if finite {
                *logit = logit.clamp(f32::MIN, f32::MAX);
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
    fn a_finite_logit_stays_finite() {
        let smallest = f32::from_bits(1);
        for (repetition, frequency) in [1e-40, f32::MIN_POSITIVE, smallest, 2.0]
            .into_iter()
            .flat_map(|repetition| [-2.0, 0.0, 2.0].map(|frequency| (repetition, frequency)))
        {
            let penalties = Penalties::new(frequency, 0.0, repetition).unwrap();
            let mut history = History::new(penalties, &[0, 1, 2, 3, 4]);
            history.push(0);
            let mut row = [4.0, -3.0, 0.0, f32::MAX, f32::MIN];
            history.penalise(&mut row);
            assert!(row.iter().all(|logit| logit.is_finite()), "{row:?}");
            for temperature in [0.0, 1.0] {
                let sampling = super::super::Sampling::new(temperature, 1.0, 0, 7).unwrap();
                assert!(sampling.choose(&row, 0).is_ok(), "{row:?}");
            }
        }
        // What the model itself gives is left for the sampler to refuse.
        let history = History::new(Penalties::new(0.0, 0.0, 1e-40).unwrap(), &[0, 1, 2]);
        let mut row = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        history.penalise(&mut row);
        assert!(row[0] == f32::INFINITY && row[1] == f32::NEG_INFINITY && row[2].is_nan());
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
