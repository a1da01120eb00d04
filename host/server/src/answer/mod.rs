//! Turns the engine's events for one request into pieces of its answer, and records counts and times.
//!
//! ```text
//!   generation 0 ─┐             Choice (one for each of `n`)
//!   generation 1 ─┼─ Event ──▶ decoder ─▶ stop strings ─▶ tool calls ─▶ Piece { choice, parts, logprobs, end }
//!   …             ┘               └─ log-probabilities wait for their text ─┘
//!   deadline, cut ───▶ Failure
//! ```
//!
//! An answer has `n` choices (alternatives). The first choice computes the prompt. The others are submitted after its
//! first token, when the engine's queue has room, and find the prompt in the cache. Dropping an [`Answer`] cancels all
//! its generations, so the engine computes nothing for disconnected clients.

mod choice;
mod prompt;
mod record;

pub use choice::{End, Piece, Scored};
pub use prompt::{Candidate, Echo, PromptReading, PromptToken};
pub use record::{Record, Usage};

use crate::failure::Failure;
use crate::gate::Pass;
use crate::model::{Calls, Model};
use choice::ChoiceStream;
use foreword_engine::engine::{Event, Generation, Request};
use foreword_engine::sampling::Logprobs;
use foreword_engine::text::{Decoder, ToolCalls};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// An answer that is being generated. Until it is dropped, it counts as one request in flight for each of its choices.
pub struct Answer<'m> {
    model: &'m Model,
    choices: Vec<ChoiceStream<'m>>,
    /// The engine's requests that are not submitted yet. They belong to the last of the `choices`, in the same order.
    waiting: VecDeque<Request>,
    /// Time of the next attempt to submit the requests in `waiting`; `None` until an attempt has found the engine's
    /// queue full.
    next_attempt: Option<Instant>,
    /// The request's field that requires the grammar of the answer, for errors; empty if there is no grammar.
    grammar_field: &'static str,
    /// The options for reporting the prompt in the response; `None` if only the answer is reported.
    prompt: Option<PromptReading>,
    /// Log-probabilities of the last prompt tokens, of all but the first at most; empty until the engine has sent them.
    prompt_logprobs: Vec<Logprobs>,
    /// Index of the choice that had the last event. The next poll starts with the choice after it, so a fast choice
    /// starves no other.
    last: usize,
    passes: Vec<Pass>,
    time: TimeLimit,
    record: Record,
}

/// The arrival time of a request, and the time limit that starts then.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimit {
    /// Time when the request's head was received.
    pub arrival: Instant,
    /// Maximum time from the request's arrival to the end of its answer.
    pub limit: Duration,
}

impl TimeLimit {
    /// Returns the time at which the answer must be complete.
    pub fn deadline(&self) -> Instant {
        self.arrival + self.limit
    }
}

/// Options for turning a choice's tokens into text.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Stop strings, each of which ends a choice.
    pub stop: Vec<String>,
    /// True if the answer continues the prompt's text, as in a text completion; false if it is a new message of a chat.
    pub continues: bool,
    /// The places at which tool calls can occur in the answer.
    pub calls: Calls,
    /// The request's field that requires the grammar of the answer, for errors; empty if there is no grammar.
    pub grammar_field: &'static str,
    /// The options for reporting the prompt in the response; `None` if only the answer is reported.
    pub prompt: Option<PromptReading>,
}

impl Reading {
    fn decoder<'m>(&self, model: &'m Model) -> Decoder<'m> {
        if self.continues {
            model.tokenizer().continuation()
        } else {
            model.tokenizer().decoder()
        }
    }

    fn calls(&self) -> Option<ToolCalls> {
        match self.calls {
            Calls::None => None,
            Calls::Tagged | Calls::First => Some(ToolCalls::within_text()),
            Calls::Bare => Some(ToolCalls::bare()),
        }
    }
}

/// A request that was submitted to the engine, with everything that its [`Answer`] needs.
pub struct Submitted {
    /// The engine's generation of the first choice.
    pub generation: Generation,
    /// The engine requests of the other choices, which are submitted once the first choice has computed the prompt.
    pub waiting: Vec<Request>,
    /// Options for turning the choices' tokens into text.
    pub reading: Reading,
    /// The admission of the request by the gate: one for each choice.
    pub passes: Vec<Pass>,
    /// The arrival of the request and its time limit.
    pub time: TimeLimit,
    /// The record of the answer's counts and times, which is reported when the answer is dropped.
    pub record: Record,
}

impl<'m> Answer<'m> {
    /// Returns the answer that the engine generates for a submitted request.
    pub fn new(model: &'m Model, submitted: Submitted) -> Self {
        let Submitted {
            generation: first,
            waiting,
            reading,
            passes,
            time,
            record,
        } = submitted;
        let choice = |generation| {
            ChoiceStream::new(
                model.tokenizer(),
                generation,
                reading.decoder(model),
                reading.stop.clone(),
                reading.calls(),
                reading.calls == Calls::First,
            )
        };
        let mut choices = vec![choice(Some(first))];
        choices.extend(waiting.iter().map(|_| choice(None)));
        Self {
            model,
            choices,
            waiting: waiting.into(),
            next_attempt: None,
            grammar_field: reading.grammar_field,
            prompt: reading.prompt,
            prompt_logprobs: Vec::new(),
            last: 0,
            passes,
            time,
            record,
        }
    }

    /// Returns the next piece of output of any choice; `None` when all choices have ended. Cancel-safe. Must not be
    /// called after an error.
    ///
    /// # Errors
    /// Returns an error if the engine failed, the time limit passed, or the server aborts its requests.
    pub async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        while !self.choices.iter().all(ChoiceStream::has_ended) {
            let (index, event) = tokio::select! {
                biased;
                event = next_event(&mut self.choices, self.last) => event,
                () = next_attempt(self.next_attempt), if !self.waiting.is_empty() => {
                    self.submit_others()?;
                    continue;
                }
                failure = expired(&mut self.passes, self.time) => return Err(self.record.fail(failure)),
            };
            self.last = index;
            match event {
                Some(Event::Started { cached_tokens }) => {
                    if index == 0 {
                        self.record.start(cached_tokens);
                    }
                    let waits = index == 0 && self.needs_prompt_logprobs();
                    if !waits && let Some(piece) = self.echo(index) {
                        return Ok(Some(piece));
                    }
                }
                Some(Event::Prompt(logprobs)) => {
                    if self.needs_prompt_logprobs() {
                        self.prompt_logprobs = logprobs;
                        if let Some(piece) = self.echo(index) {
                            return Ok(Some(piece));
                        }
                    }
                }
                Some(Event::Token { id, logprobs }) => {
                    self.record.token(index);
                    self.submit_others()?;
                    if let Some(piece) = self.choices[index].push(index, id, logprobs) {
                        return Ok(Some(self.note(piece)));
                    }
                }
                Some(Event::Finished(reason)) => {
                    self.submit_others()?;
                    let piece = self.choices[index].finish(index, reason);
                    return Ok(Some(self.note(piece)));
                }
                Some(Event::Failed(cause)) => {
                    let failure = Failure::from_engine(cause, self.time.limit, self.grammar_field);
                    return Err(self.record.fail(failure));
                }
                None => {
                    return Err(self
                        .record
                        .fail(Failure::internal("the engine ended within an answer")));
                }
            }
        }
        Ok(None)
    }

    /// Returns the prompt's tokens with their log-probabilities; `None` if the request has no `prompt_logprobs`.
    pub fn prompt(&self) -> Option<Vec<PromptToken>> {
        let prompt = self
            .prompt
            .as_ref()
            .filter(|prompt| prompt.logprobs.is_some())?;
        Some(prompt.scored(self.model, &self.prompt_logprobs))
    }

    fn needs_prompt_logprobs(&self) -> bool {
        self.prompt
            .as_ref()
            .is_some_and(PromptReading::needs_logprobs)
    }

    /// Returns the piece with which the choice repeats the prompt's text; `None` if the request has no `echo`.
    fn echo(&mut self, index: usize) -> Option<Piece> {
        let prompt = self.prompt.as_ref()?;
        let (text, logprobs) = prompt.echoed(self.model, &self.prompt_logprobs)?;
        Some(self.choices[index].echo(index, text, logprobs))
    }

    /// Waits until the time limit passes or the server aborts its requests, and returns the failure.
    pub async fn expired(&mut self) -> Failure {
        let failure = expired(&mut self.passes, self.time).await;
        self.record.fail(failure)
    }

    /// Returns the token counts so far of all choices together; the prompt counts once.
    pub fn usage(&self) -> Usage {
        self.record.usage()
    }

    /// Returns the number of choices of the answer.
    pub fn choices(&self) -> usize {
        self.choices.len()
    }

    /// Submits the choices that waited for the first choice's first token, as many as the engine's queue has room for.
    /// If it has no room for all, later calls submit the rest, at most every [`ROOM_PAUSE`].
    fn submit_others(&mut self) -> Result<(), Failure> {
        if (self.next_attempt).is_some_and(|next| Instant::now() < next) {
            return Ok(());
        }
        while let Some(request) = self.waiting.front() {
            let index = self.choices.len() - self.waiting.len();
            match self.model.submit(request.clone()) {
                Ok(generation) => self.choices[index].begin(generation),
                Err(Failure::QueueFull { .. }) => {
                    self.next_attempt = Some(Instant::now() + ROOM_PAUSE);
                    return Ok(());
                }
                Err(failure) => return Err(self.record.fail(failure)),
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    fn note(&mut self, piece: Piece) -> Piece {
        if let Some(end) = piece.end {
            self.record.end(end);
        }
        piece
    }
}

/// Pause between attempts to submit a choice while the engine's queue is full.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Waits until `time`; forever if `time` is `None`.
async fn next_attempt(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits for an event of any choice that is being generated, and returns the choice's index with the event (`None` if
/// the engine has ended). Polls the choice after `last` first.
async fn next_event(choices: &mut [ChoiceStream<'_>], last: usize) -> (usize, Option<Event>) {
    poll_fn(|context| {
        let count = choices.len();
        for index in (last + 1..=last + count).map(|index| index % count) {
            if let Some(generation) = choices[index].generation()
                && let Poll::Ready(event) = generation.poll_next(context)
            {
                return Poll::Ready((index, event));
            }
        }
        Poll::Pending
    })
    .await
}

async fn expired(passes: &mut [Pass], time: TimeLimit) -> Failure {
    let cut = async {
        match passes.first_mut() {
            Some(pass) => pass.cut().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = tokio::time::sleep_until(time.deadline()) => Failure::Timeout { limit: time.limit },
        () = cut => Failure::Stopping,
    }
}
