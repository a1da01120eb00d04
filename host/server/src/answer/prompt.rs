//! The part of a response that is about the prompt: the log-probabilities of its tokens (`prompt_logprobs`), or its
//! text (`echo`).

use super::Scored;
use crate::model::Model;
use foreword_engine::TokenId;
use foreword_engine::sampling::Logprobs;

/// A request's options for reporting its prompt in the response (`prompt_logprobs` and `echo`), and the prompt's
/// tokens.
#[derive(Clone, Debug)]
pub struct PromptReading {
    /// All tokens of the prompt, in order, as the engine receives them.
    pub tokens: Vec<TokenId>,
    /// Number of alternatives for each token in vLLM's `prompt_logprobs`; `None` if that was not requested.
    pub logprobs: Option<u32>,
    /// The options for repeating the prompt before the answer's text; `None` if the request has no `echo`.
    pub echo: Option<Echo>,
}

/// The options of a completion with `echo`, whose text begins with the prompt.
#[derive(Clone, Debug)]
pub struct Echo {
    /// The prompt's text as the client sent it; `None` if it was sent as tokens.
    pub text: Option<String>,
    /// Number of alternatives for each prompt token in `logprobs`; `None` if log-probabilities were not requested.
    pub logprobs: Option<u32>,
}

/// A token of a prompt with its log-probability and the likeliest tokens at its position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptToken {
    /// The token itself, then the other likeliest tokens, likeliest first. Empty if the engine did not compute the
    /// token's log-probability.
    pub candidates: Vec<Candidate>,
}

/// A possible token at a position of the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Id of the token in the vocabulary.
    pub id: TokenId,
    /// Bytes of the token, which may be part of a character; for a special token, its name.
    pub bytes: Vec<u8>,
    /// Log-probability of the token.
    pub logprob: f32,
    /// Rank of the token at this position, 1 for the likeliest.
    pub rank: u32,
}

impl PromptReading {
    /// Returns whether reporting the prompt requires the engine's log-probabilities.
    pub(super) fn needs_logprobs(&self) -> bool {
        self.logprobs.is_some()
            || self
                .echo
                .as_ref()
                .is_some_and(|echo| echo.logprobs.is_some())
    }

    /// Returns the number of prompt tokens before those with log-probabilities; at least 1. `found` has the
    /// log-probabilities of the last tokens.
    fn unscored(&self, found: &[Logprobs]) -> usize {
        self.tokens.len().saturating_sub(found.len())
    }

    /// Returns the prompt's tokens with their log-probabilities and alternatives. `found` has the engine's
    /// log-probabilities, of the last tokens.
    pub(super) fn scored(&self, model: &Model, found: &[Logprobs]) -> Vec<PromptToken> {
        let count = self.logprobs.unwrap_or(0) as usize;
        let candidate = |id, logprob, rank| Candidate {
            id,
            bytes: model.bytes_of(id).unwrap_or_default(),
            logprob,
            rank,
        };
        let unscored = self.unscored(found);
        let (without, with) = self.tokens.split_at(unscored);
        let without = without.iter().map(|_| PromptToken::default());
        let with = with.iter().zip(found).map(|(&id, logprobs)| {
            let top = logprobs.top.iter().take(count).zip(1..);
            let others = top.filter(|((other, _), _)| *other != id);
            let others = others.map(|((id, logprob), rank)| candidate(*id, *logprob, rank));
            let own = candidate(id, logprobs.chosen, logprobs.rank);
            PromptToken {
                candidates: std::iter::once(own).chain(others).collect(),
            }
        });
        without.chain(with).collect()
    }

    /// Returns the prompt's text, and its tokens if their log-probabilities were requested. `found` has the engine's
    /// log-probabilities, of the last tokens. `None` if the request has no `echo`.
    pub(super) fn echoed(
        &self,
        model: &Model,
        found: &[Logprobs],
    ) -> Option<(String, Vec<Scored>)> {
        let echo = self.echo.as_ref()?;
        let bytes = |id| model.bytes_of(id).unwrap_or_default();
        let mut decoder = model.tokenizer().decoder();
        let (mut text, mut characters) = (String::new(), 0);
        let unscored = self.unscored(found);
        let mut scored = Vec::new();
        for (at, &id) in self.tokens.iter().enumerate() {
            if let Some(count) = echo.logprobs {
                let own = at.checked_sub(unscored).and_then(|at| found.get(at));
                let top = own.map_or(&[][..], |own| &own.top);
                let top = top.iter().take(count as usize);
                scored.push(Scored {
                    bytes: bytes(id),
                    logprob: own.map(|own| own.chosen),
                    top: top.map(|(id, logprob)| (bytes(*id), *logprob)).collect(),
                    offset: characters,
                });
            }
            let piece = decoder.push(id);
            characters += piece.chars().count() as u32;
            text.push_str(&piece);
        }
        text.push_str(&decoder.finish());
        Some((echo.text.clone().unwrap_or(text), scored))
    }
}
