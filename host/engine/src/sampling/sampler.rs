//! The choices of one sequence's tokens, from the first generated one to the last.

use super::penalties::History;
use super::{Constraint, Draw, Logprobs, Sampling, SamplingError};
use crate::TokenId;
use smallvec::SmallVec;

/// Chooses the tokens of one sequence, one after another, and keeps the state for it: penalties and grammar.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    history: History,
    constraint: Option<Constraint>,
    stop_tokens: SmallVec<[TokenId; 4]>,
    /// Number of most likely tokens whose log-probabilities are computed with each choice; `None` for no
    /// log-probabilities at all.
    top_logprobs: Option<u32>,
}

/// The outcome of choosing a sequence's next token.
#[derive(Clone, Debug, PartialEq)]
pub enum NextToken {
    /// A token of the answer was chosen.
    Token {
        /// The id of the chosen token.
        id: TokenId,
        /// Log-probabilities of the token and of alternatives; `None` if they were not requested.
        logprobs: Option<Box<Logprobs>>,
        /// True if the grammar that the answer must follow allows no further token.
        last: bool,
    },
    /// A stop token was chosen, which ends the answer and does not belong to it.
    Stop,
}

impl Sampler {
    /// Returns a sampler for a sequence with this prompt, before its first generated token. `constraint` is the grammar
    /// that the answer must follow, if any.
    pub fn new(
        sampling: Sampling,
        prompt: &[TokenId],
        stop_tokens: &[TokenId],
        constraint: Option<Constraint>,
        top_logprobs: Option<u32>,
    ) -> Self {
        Self {
            history: History::new(sampling.penalties.clone(), prompt),
            sampling,
            constraint,
            stop_tokens: stop_tokens.into(),
            top_logprobs,
        }
    }

    /// Returns the parameters by which a device can choose the token at `position` from the logits alone. Returns
    /// `None` if the logits themselves are needed here: for penalties, a grammar or log-probabilities.
    pub fn draw(&self, position: u32) -> Option<Draw> {
        let needs_row = self.history.is_active() || self.constraint.is_some();
        (!needs_row && self.top_logprobs.is_none()).then(|| self.sampling.draw(position))
    }

    /// Records a token that the device chose with the parameters of [`Sampler::draw`], and returns the outcome: a stop
    /// token ends the answer.
    pub fn accept(&mut self, id: TokenId) -> NextToken {
        if self.stop_tokens.contains(&id) {
            return NextToken::Stop;
        }
        self.history.push(id);
        NextToken::Token {
            id,
            logprobs: None,
            last: false,
        }
    }

    /// Chooses the token at `position` from its row of logits, and overwrites the logits. Must be called once for each
    /// position, in order.
    ///
    /// # Errors
    /// Returns a [`SamplingError`] when the sequence cannot continue.
    pub fn next(&mut self, logits: &mut [f32], position: u32) -> Result<NextToken, SamplingError> {
        let changes = self.history.is_active() || self.constraint.is_some();
        // Log-probabilities are the model's own, so they are computed from the row before changes.
        let original = (changes && self.top_logprobs.is_some()).then(|| logits.to_vec());
        if self.history.is_active() {
            self.history.penalise(logits);
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits, &self.stop_tokens)?;
        }
        let id = self.sampling.choose(logits, position)?;
        if self.stop_tokens.contains(&id) {
            return Ok(NextToken::Stop);
        }
        let logprobs = self.top_logprobs.map(|count| {
            let row = original.as_deref().unwrap_or(logits);
            Box::new(Logprobs::of(row, id, count))
        });
        self.history.push(id);
        let last = match &mut self.constraint {
            Some(constraint) => constraint.push(id)?,
            None => false,
        };
        Ok(NextToken::Token { id, logprobs, last })
    }
}

#[cfg(test)]
mod tests {
    use super::super::SamplingFields;
    use super::*;

    fn token(choice: NextToken) -> (TokenId, Option<Box<Logprobs>>) {
        match choice {
            NextToken::Token { id, logprobs, .. } => (id, logprobs),
            NextToken::Stop => panic!("a token was expected"),
        }
    }

    /// Greedy sampling with this presence penalty.
    fn penalised(presence: f32) -> Sampling {
        let fields = SamplingFields {
            temperature: Some(0.0),
            presence_penalty: Some(presence),
            ..SamplingFields::default()
        };
        fields.sampling(0).unwrap()
    }

    #[test]
    fn a_penalty_sees_what_was_chosen_before() {
        let mut sampler = Sampler::new(penalised(1.0), &[], &[], None, None);
        let ids: Vec<TokenId> = (0..3)
            .map(|position| token(sampler.next(&mut [2.0, 1.6, 1.3, 0.0], position).unwrap()).0)
            .collect();
        assert_eq!(ids, [0, 1, 2]);
    }

    #[test]
    fn logprobs_are_those_of_the_row_before_penalties() {
        let row = [2.0, 1.9, 0.0];
        let with = |presence| {
            let mut sampler = Sampler::new(penalised(presence), &[], &[], None, Some(2));
            sampler.next(&mut row.clone(), 0).unwrap();
            token(sampler.next(&mut row.clone(), 1).unwrap())
        };
        let ((plain, expected), (penalised, found)) = (with(0.0), with(1.5));
        assert_eq!((plain, penalised), (0, 1));
        assert_eq!(found.as_ref().unwrap().top, expected.as_ref().unwrap().top);
        assert_eq!(found.unwrap().chosen, expected.unwrap().top[1].1);
    }

    #[test]
    fn a_stop_token_ends_the_answer() {
        let mut sampler = Sampler::new(Sampling::greedy(), &[], &[1, 2], None, Some(1));
        assert_eq!(sampler.next(&mut [0.0, 0.5, 1.0], 0), Ok(NextToken::Stop));
        assert_eq!(token(sampler.next(&mut [3.0, 0.5, 1.0], 0).unwrap()).0, 0);
    }

    #[test]
    fn a_token_chosen_elsewhere_is_the_one_that_would_have_been_chosen_here() {
        let row = [0.1, 2.0, 1.9, -3.0];
        let sampling = Sampling::new(1.3, 0.9, 3, 5).unwrap();
        for position in 0..20 {
            let mut here = Sampler::new(sampling.clone(), &[], &[2], None, None);
            let mut elsewhere = here.clone();
            assert_eq!(elsewhere.draw(position), Some(sampling.draw(position)));
            let chosen = sampling.choose(&row, position).unwrap();
            let expected = here.next(&mut row.clone(), position).unwrap();
            assert_eq!(elsewhere.accept(chosen), expected);
        }
        for sampler in [
            Sampler::new(penalised(0.5), &[], &[], None, None),
            Sampler::new(sampling, &[], &[], None, Some(0)),
        ] {
            assert_eq!(sampler.draw(3), None);
        }
    }
}
