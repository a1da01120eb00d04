//! What the engine does, step by step, without threads or locks: the state, and its two moves.
//!
//! [`Core::prepare`] drops what was cancelled, asks the [scheduler](crate::scheduler) for a plan and carries out all
//! of it but the arithmetic; [`Core::compute`] runs the step and deals with what came of it. Events and counters
//! gather inside until they are fetched.

use super::{Bounds, EngineConfig, Event, FinishReason, Stats};
use crate::backend::{Backend, BackendError, Output, Segment, Step, TokenId};
use crate::cache::{Lease, PrefixCache, SlotCopy};
use crate::sampling::{Choice, Sampler, SamplingError};
use crate::scheduler::{Limits, Plan, Running, State, Waiting, plan};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) struct Core {
    backend: Box<dyn Backend>,
    cache: PrefixCache,
    limits: Limits,
    vocabulary: u32,
    max_positions: u32,
    /// Oldest first; all younger than those running.
    waiting: VecDeque<Sequence>,
    /// Oldest first.
    running: Vec<Active>,
    /// Prepared and not yet computed: a segment for each running sequence with a share, in order.
    step: Step,
    /// The backend's, kept for its allocation: `[rows, vocabulary]`.
    logits: Vec<f32>,
    /// Events that nobody has seen yet.
    outbox: Vec<(mpsc::Sender<Event>, Event)>,
    totals: Stats,
}

/// A request that was accepted.
pub(super) struct Sequence {
    /// The prompt and what was generated.
    pub(super) tokens: Vec<TokenId>,
    /// How many tokens end it; more than the prompt has.
    pub(super) end: u32,
    pub(super) sampler: Sampler,
    pub(super) salt: Arc<str>,
    /// Has room for every event to come. Closed when the caller has gone.
    pub(super) events: mpsc::Sender<Event>,
    /// Whether it has ever run.
    pub(super) started: bool,
}

struct Active {
    sequence: Sequence,
    lease: Lease,
    /// Tokens whose KV state stands in the lease's pages; fewer than the sequence has.
    computed: u32,
    /// Tokens of the prepared step.
    share: u32,
}

impl Core {
    pub(super) fn new(backend: Box<dyn Backend>, config: &EngineConfig) -> Self {
        let page_tokens = backend.page_tokens().max(1);
        Self {
            cache: PrefixCache::new(backend.pages(), page_tokens),
            limits: Limits {
                max_step_tokens: config.max_step_tokens.max(1),
                max_running: config.max_running.max(1),
                page_tokens,
            },
            vocabulary: backend.vocabulary(),
            max_positions: backend.max_positions(),
            backend,
            waiting: VecDeque::new(),
            running: Vec::new(),
            step: Step::default(),
            logits: Vec::new(),
            outbox: Vec::new(),
            totals: Stats::default(),
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        let slots = self
            .cache
            .stats()
            .pages
            .saturating_mul(self.limits.page_tokens);
        Bounds {
            vocabulary: self.vocabulary,
            capacity: self.max_positions.min(slots),
        }
    }

    pub(super) fn enqueue(&mut self, sequences: impl IntoIterator<Item = Sequence>) {
        self.waiting.extend(sequences);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    pub(super) fn stats(&self) -> Stats {
        let cache = self.cache.stats();
        Stats {
            waiting: self.waiting.len() as u32,
            running: self.running.len() as u32,
            evicted_pages: cache.evicted,
            pages: cache.pages,
            pages_in_use: cache.in_use,
            pages_cached: cache.cached,
            ..self.totals
        }
    }

    pub(super) fn clear_cache(&mut self) -> u32 {
        self.cache.clear()
    }

    /// Hands out the events so far, in order.
    pub(super) fn send_events(&mut self) {
        for (receiver, event) in self.outbox.drain(..) {
            // There is room for it; the caller may have gone, which is seen in the next step.
            let _ = receiver.try_send(event);
        }
    }

    /// Decides the next step and makes it ready.
    pub(super) fn prepare(&mut self) {
        self.drop_cancelled();
        let (running, admitted) = loop {
            match plan(&self.state()) {
                Plan::Preempt(index) => self.preempt(index),
                Plan::Compute { running, admitted } => break (running, admitted),
            }
        };
        self.step.segments.clear();
        for (index, share) in running.into_iter().enumerate() {
            self.schedule(index, share);
        }
        for share in admitted {
            // A match may have shrunk since it was looked up, if admitting another request took its pages.
            if !self.admit() {
                break;
            }
            self.schedule(self.running.len() - 1, share);
        }
    }

    /// Computes the prepared step, if there is anything in it.
    pub(super) fn compute(&mut self) {
        if self.step.segments.is_empty() {
            return;
        }
        self.totals.steps += 1;
        self.totals.step_sizes.add(self.step.segments.len());
        let outcome = self.run_step();
        let width = self.vocabulary.max(1) as usize;
        let mut logits = std::mem::take(&mut self.logits);
        let mut rows = logits.chunks_exact_mut(width);
        for mut active in std::mem::take(&mut self.running) {
            let share = std::mem::take(&mut active.share);
            if share == 0 {
                self.running.push(active);
            } else if let Err(reason) = &outcome {
                self.cache.abandon(active.lease);
                self.end(&active.sequence, Event::Failed(reason.clone()));
            } else {
                active.computed += share;
                let finished = active.computed == active.sequence.length();
                let row = if finished { rows.next() } else { None };
                self.advance(active, row);
            }
        }
        self.logits = logits;
    }

    /// Runs the step; the logits are one row for each segment that asks for one.
    fn run_step(&mut self) -> Result<(), String> {
        let Self {
            backend,
            step,
            logits,
            vocabulary,
            ..
        } = self;
        guard(|| backend.run(step, logits))?;
        let rows = step
            .segments
            .iter()
            .filter(|segment| segment.output == Output::Last)
            .count();
        if logits.len() != rows * *vocabulary as usize {
            let found = logits.len();
            return Err(format!(
                "the backend computed {found} logits, not {rows} rows of {vocabulary}"
            ));
        }
        Ok(())
    }

    /// What there is to plan with.
    fn state(&self) -> State {
        let running = self.running.iter().map(|active| Running {
            tokens: active.sequence.length(),
            computed: active.computed,
            pages: active.lease.pages().len() as u32,
        });
        // As many as could be admitted: there is a bound of slots, and one of tokens.
        let slots = (self.limits.max_running as usize).saturating_sub(self.running.len());
        let mut tokens = self.limits.max_step_tokens;
        let mut waiting = Vec::new();
        for sequence in self.waiting.iter().take(slots) {
            if tokens == 0 {
                break;
            }
            let found = self.cache.lookup(&sequence.salt, &sequence.tokens);
            tokens = tokens.saturating_sub(sequence.length() - found.tokens);
            waiting.push(Waiting {
                tokens: sequence.length(),
                cached: found.tokens,
                shared_pages: found.pages,
                idle_pages: found.idle_pages,
            });
        }
        State {
            limits: self.limits,
            available_pages: self.cache.available(),
            running: running.collect(),
            waiting,
        }
    }

    /// Ends the requests that nobody listens to any more; what was computed for them stays cached.
    fn drop_cancelled(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|sequence| !sequence.events.is_closed());
        self.totals.finished += (before - self.waiting.len()) as u64;
        let cancelled = self
            .running
            .extract_if(.., |active| active.sequence.events.is_closed());
        for Active {
            sequence,
            lease,
            computed,
            ..
        } in cancelled
        {
            self.cache.close(lease, &sequence.tokens, computed);
            self.totals.finished += 1;
        }
    }

    /// Takes a running sequence's pages and lets it wait, ahead of all others.
    fn preempt(&mut self, index: usize) {
        let Active {
            sequence,
            lease,
            computed,
            ..
        } = self.running.remove(index);
        self.cache.close(lease, &sequence.tokens, computed);
        self.waiting.push_front(sequence);
        self.totals.preemptions += 1;
    }

    /// Lets the first waiting sequence run; `false` if there is no room for it.
    fn admit(&mut self) -> bool {
        let Some(mut sequence) = self.waiting.pop_front() else {
            return false;
        };
        let Some(opening) = self.cache.open(&sequence.salt, &sequence.tokens) else {
            self.waiting.push_front(sequence);
            return false;
        };
        let mut computed = opening.shared_tokens;
        if let Some(SlotCopy { from, to, tokens }) = opening.copy {
            // A failure costs nothing but the computation of these tokens.
            if guard(|| self.backend.copy_slots(from, to, tokens)).is_ok() {
                computed += tokens;
            }
        }
        if !sequence.started {
            sequence.started = true;
            self.totals.prompt_tokens += sequence.tokens.len() as u64;
            self.totals.cached_tokens += u64::from(computed);
            self.totals.lookups += 1;
            if computed > 0 && computed + 1 == sequence.length() {
                self.totals.full_hits += 1;
            } else if computed > 0 {
                self.totals.partial_hits += 1;
            }
            self.outbox.push((
                sequence.events.clone(),
                Event::Started {
                    cached_tokens: computed,
                },
            ));
        }
        self.running.push(Active {
            sequence,
            lease: opening.lease,
            computed,
            share: 0,
        });
        true
    }

    /// Puts `share` tokens of a running sequence into the step; without a page for them it sits this one out.
    fn schedule(&mut self, index: usize, share: u32) {
        let Active {
            sequence,
            lease,
            computed,
            share: planned,
        } = &mut self.running[index];
        let end = (*computed + share).min(sequence.length());
        let pages = end.div_ceil(self.limits.page_tokens) as usize;
        while lease.pages().len() < pages {
            if !self.cache.grow(lease) {
                return;
            }
        }
        *planned = end - *computed;
        if *planned > 0 {
            self.step.segments.push(Segment {
                tokens: sequence.tokens[*computed as usize..end as usize].to_vec(),
                start: *computed,
                pages: lease.pages()[..pages].to_vec(),
                output: if end == sequence.length() {
                    Output::Last
                } else {
                    Output::None
                },
            });
        }
    }

    /// Deals with a sequence that was computed further; `logits` of its last token, if it has them all.
    fn advance(&mut self, mut active: Active, logits: Option<&mut [f32]>) {
        let Some(logits) = logits else {
            self.keep(active);
            return;
        };
        let sequence = &mut active.sequence;
        let position = sequence.length();
        match sequence.sampler.next(logits, position) {
            Err(error @ SamplingError::Constraint { .. }) => {
                self.cache
                    .close(active.lease, &active.sequence.tokens, active.computed);
                self.end(&active.sequence, Event::Failed(error.to_string()));
            }
            Err(error) => {
                // What yields no numbers must not be served again.
                self.cache.forget(active.lease);
                self.end(&active.sequence, Event::Failed(error.to_string()));
            }
            Ok(Choice::Stop) => self.finish(active, FinishReason::Stop),
            Ok(Choice::Token { id, logprobs, last }) => {
                sequence.tokens.push(id);
                self.totals.generated_tokens += 1;
                self.outbox
                    .push((sequence.events.clone(), Event::Token { id, logprobs }));
                if last {
                    self.finish(active, FinishReason::Stop);
                } else if sequence.length() == sequence.end {
                    self.finish(active, FinishReason::Length);
                } else {
                    self.keep(active);
                }
            }
        }
    }

    /// Goes on with a sequence, and lets others share the pages that it has filled.
    fn keep(&mut self, mut active: Active) {
        self.cache
            .commit(&mut active.lease, &active.sequence.tokens, active.computed);
        self.running.push(active);
    }

    /// Ends a sequence; its KV state, all but that of the newest token, stays cached.
    fn finish(&mut self, active: Active, reason: FinishReason) {
        self.cache
            .close(active.lease, &active.sequence.tokens, active.computed);
        self.end(&active.sequence, Event::Finished(reason));
    }

    fn end(&mut self, sequence: &Sequence, event: Event) {
        self.totals.finished += 1;
        self.outbox.push((sequence.events.clone(), event));
    }

    /// Asserts every invariant.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.cache
            .check(self.running.iter().map(|active| &active.lease));
        assert!(self.running.len() <= self.limits.max_running as usize);
        for active in &self.running {
            assert!(
                active.computed < active.sequence.length()
                    && active.sequence.length() < active.sequence.end
            );
            let pages = active.lease.pages().len() as u32;
            assert!(active.computed + active.share <= pages * self.limits.page_tokens);
        }
        let planned: u32 = self.running.iter().map(|active| active.share).sum();
        assert!(planned <= self.limits.max_step_tokens);
    }
}

impl Sequence {
    fn length(&self) -> u32 {
        self.tokens.len() as u32
    }
}

/// Calls the backend; a panic in it is an error like any other. What it leaves behind is what a failed device leaves:
/// the pages it was to write are undefined and go back to the pool.
fn guard(call: impl FnOnce() -> Result<(), BackendError>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(panic) => {
            let message = panic.downcast_ref::<&str>().copied();
            let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(format!(
                "the backend panicked: {}",
                message.unwrap_or("no message")
            ))
        }
    }
}
