//! Turns the generated tokens of one choice (one of an answer's `n` alternatives) into pieces of text, tool calls and
//! log-probabilities.

use foreword_engine::TokenId;
use foreword_engine::engine::{FinishReason, Generation};
use foreword_engine::sampling::Logprobs;
use foreword_engine::text::{Decoder, Part, StopStrings, Tokenizer, ToolCalls};
use std::collections::VecDeque;

/// A piece of new output of one choice of an answer.
#[derive(Debug)]
pub struct Piece {
    /// Index of the choice among the answer's choices.
    pub choice: usize,
    /// The new text and tool calls, in order.
    pub parts: Vec<Part>,
    /// The tokens of the new text with their log-probabilities; empty if these were not requested.
    pub logprobs: Vec<Scored>,
    /// The reason that the choice ended; `None` unless this is its last piece.
    pub end: Option<End>,
    /// The stop string that ended the choice; `None` if none did.
    pub stopped_by: Option<String>,
}

/// The reason that a choice of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model generated a token that ends answers, a stop string occurred, or the grammar of the answer was
    /// complete.
    Stop,
    /// The choice reached its maximum length.
    Length,
    /// The choice ended as for [`End::Stop`], and it has tool calls.
    Calls,
}

/// A token with its log-probability and those of the likeliest alternatives at its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Bytes of the token, which may be part of a character; for a special token, its name.
    pub bytes: Vec<u8>,
    /// Log-probability of the token; `None` for the first token of a prompt.
    pub logprob: Option<f32>,
    /// The likeliest tokens at this position with their log-probabilities, likeliest first.
    pub top: Vec<(Vec<u8>, f32)>,
    /// Number of characters of the choice's text before the token.
    pub offset: u32,
}

/// A choice of an answer, while it is being generated.
pub(super) struct ChoiceStream<'m> {
    tokenizer: &'m Tokenizer,
    /// The engine's generation of the choice; `None` before it is submitted and after the choice has ended.
    generation: Option<Generation>,
    decoder: Decoder<'m>,
    stops: StopStrings,
    calls: Option<ToolCalls>,
    /// True if the first tool call ends the choice.
    ends_with_call: bool,
    called: bool,
    ended: bool,
    /// Tokens with log-probabilities whose text may still turn out to be part of a stop string, each with the byte
    /// offset of its text in the choice.
    unsettled: VecDeque<(usize, Scored)>,
    decoded_bytes: usize,
    decoded_characters: u32,
    settled_bytes: usize,
}

impl<'m> ChoiceStream<'m> {
    pub(super) fn new(
        tokenizer: &'m Tokenizer,
        generation: Option<Generation>,
        decoder: Decoder<'m>,
        stop: Vec<String>,
        calls: Option<ToolCalls>,
        ends_with_call: bool,
    ) -> Self {
        Self {
            tokenizer,
            generation,
            decoder,
            stops: StopStrings::new(stop),
            calls,
            ends_with_call,
            called: false,
            ended: false,
            unsettled: VecDeque::new(),
            decoded_bytes: 0,
            decoded_characters: 0,
            settled_bytes: 0,
        }
    }

    pub(super) fn begin(&mut self, generation: Generation) {
        self.generation = Some(generation);
    }

    pub(super) fn generation(&mut self) -> Option<&mut Generation> {
        self.generation.as_mut()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns a piece with the prompt's text, which precedes the choice's own text. `index` is the choice's index.
    pub(super) fn echo(&mut self, index: usize, text: String, logprobs: Vec<Scored>) -> Piece {
        self.decoded_characters += text.chars().count() as u32;
        Piece {
            choice: index,
            parts: vec![Part::Text(text)],
            logprobs,
            end: None,
            stopped_by: None,
        }
    }

    /// Adds a generated token to the choice with the index `index`. Returns new output, if any; `None` while the text
    /// may be a part of a character or of a stop string.
    pub(super) fn push(
        &mut self,
        index: usize,
        token: TokenId,
        logprobs: Option<Box<Logprobs>>,
    ) -> Option<Piece> {
        if let Some(logprobs) = logprobs {
            let scored = self.score(token, *logprobs);
            self.unsettled.push_back((self.decoded_bytes, scored));
        }
        let text = self.decoder.push(token);
        self.decoded_bytes += text.len();
        self.decoded_characters += text.chars().count() as u32;
        let (text, met) = self.stops.push(&text);
        self.settled_bytes += text.len();
        let logprobs = self.settle(self.settled_bytes);
        let parts = self.parts(&text);
        if met || self.is_last_call() {
            return Some(self.end(index, parts, logprobs, FinishReason::Stop));
        }
        (!parts.is_empty() || !logprobs.is_empty()).then_some(Piece {
            choice: index,
            parts,
            logprobs,
            end: None,
            stopped_by: None,
        })
    }

    /// Returns the choice's last piece, after its generation has ended for `reason`.
    pub(super) fn finish(&mut self, index: usize, reason: FinishReason) -> Piece {
        let (mut text, met) = self.stops.push(&self.decoder.finish());
        let (settled, reason) = if met {
            self.settled_bytes += text.len();
            (self.settled_bytes, FinishReason::Stop)
        } else {
            text.push_str(&self.stops.finish());
            (usize::MAX, reason)
        };
        let logprobs = self.settle(settled);
        let parts = self.parts(&text);
        self.end(index, parts, logprobs, reason)
    }

    fn end(
        &mut self,
        index: usize,
        mut parts: Vec<Part>,
        logprobs: Vec<Scored>,
        reason: FinishReason,
    ) -> Piece {
        self.ended = true;
        // After a stop string or the last call the generation is still running; this cancels it.
        self.generation = None;
        if !self.is_last_call()
            && let Some(calls) = &mut self.calls
        {
            let rest = calls.finish();
            parts.extend(self.called(rest));
        }
        let end = match reason {
            FinishReason::Length => End::Length,
            FinishReason::Stop if self.called => End::Calls,
            FinishReason::Stop | FinishReason::Prefilled => End::Stop,
        };
        Piece {
            choice: index,
            parts,
            logprobs,
            end: Some(end),
            stopped_by: self.stops.met().map(str::to_owned),
        }
    }

    /// Returns whether the choice has made the tool call that ends it.
    fn is_last_call(&self) -> bool {
        self.ends_with_call && self.called
    }

    fn parts(&mut self, text: &str) -> Vec<Part> {
        match &mut self.calls {
            Some(calls) => {
                let parts = calls.push(text);
                self.called(parts)
            }
            None if text.is_empty() => Vec::new(),
            None => vec![Part::Text(text.to_owned())],
        }
    }

    /// Records a call among `parts`, and removes what follows the call that ends the choice.
    fn called(&mut self, mut parts: Vec<Part>) -> Vec<Part> {
        let call = parts.iter().position(|part| matches!(part, Part::Call(_)));
        self.called |= call.is_some();
        if let Some(call) = call.filter(|_| self.ends_with_call) {
            parts.truncate(call + 1);
        }
        parts
    }

    /// Removes and returns the tokens that start before byte `settled` of the choice's text, oldest first.
    fn settle(&mut self, settled: usize) -> Vec<Scored> {
        let mut tokens = Vec::new();
        while let Some((_, scored)) = self.unsettled.pop_front_if(|(start, _)| *start < settled) {
            tokens.push(scored);
        }
        tokens
    }

    fn score(&self, token: TokenId, logprobs: Logprobs) -> Scored {
        let bytes = |token| {
            let special = || self.tokenizer.special_name(token).map(String::into_bytes);
            self.tokenizer
                .bytes(token)
                .or_else(special)
                .unwrap_or_default()
        };
        Scored {
            bytes: bytes(token),
            logprob: Some(logprobs.chosen),
            top: logprobs
                .top
                .into_iter()
                .map(|(token, logprob)| (bytes(token), logprob))
                .collect(),
            offset: self.decoded_characters,
        }
    }
}
