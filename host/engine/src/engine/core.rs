//! What the engine decides, step by step, without threads, locks, clock or device: the state, and its two moves.
//!
//! [`Core::prepare`] drops what was cancelled, asks the [scheduler](crate::scheduler) for a plan, carries out all of it
//! but the device's part, and says what that is ([`Work`]). Whoever holds the core has it computed and comes back with
//! what came of it ([`Core::complete`]). Meanwhile the core can be held by somebody else: it is all that is needed to
//! go on on another device. Events and counters gather inside until they are fetched.

use super::work::Work;
use super::{Bounds, EngineConfig, Event, Failure, FinishReason, Stats};
use crate::backend::{Backend, BackendError, Output, Segment, TokenId};
use crate::cache::{Lease, PrefixCache};
use crate::sampling::Sampling;
use crate::scheduler::{Limits, Plan, Running, State, Waiting, plan};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) struct Core {
    cache: PrefixCache,
    limits: Limits,
    bounds: Bounds,
    /// See [`EngineConfig::max_retries`].
    max_retries: u32,
    /// Oldest first; all younger than those running.
    waiting: VecDeque<Sequence>,
    /// Oldest first.
    running: Vec<Active>,
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
    pub(super) sampling: Sampling,
    pub(super) stop_tokens: SmallVec<[TokenId; 4]>,
    pub(super) salt: Arc<str>,
    /// Has room for every event to come. Closed when the caller has gone.
    pub(super) events: mpsc::Sender<Event>,
    /// Whether it has ever run.
    pub(super) started: bool,
    /// Times that the device failed under it.
    pub(super) faults: u32,
}

struct Active {
    sequence: Sequence,
    lease: Lease,
    /// Tokens whose KV state stands in the lease's pages; fewer than the sequence has.
    computed: u32,
    /// Tokens of the prepared work.
    share: u32,
    /// Whether the prepared work writes to its pages.
    touched: bool,
}

impl Core {
    /// A core for a device like `backend`.
    pub(super) fn new(backend: &dyn Backend, config: &EngineConfig) -> Self {
        Self {
            cache: PrefixCache::new(backend.pages(), backend.page_tokens().max(1)),
            limits: Limits {
                max_step_tokens: config.max_step_tokens.max(1),
                max_running: config.max_running.max(1),
                page_tokens: backend.page_tokens().max(1),
            },
            bounds: Bounds::of(backend),
            max_retries: config.max_retries,
            waiting: VecDeque::new(),
            running: Vec::new(),
            outbox: Vec::new(),
            totals: Stats::default(),
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
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

    /// Decides what is computed next. The work is to be carried out and given back to [`Core::complete`] before the
    /// next call.
    pub(super) fn prepare(&mut self) -> Work {
        self.drop_cancelled();
        let (running, admitted) = loop {
            match plan(&self.state()) {
                Plan::Preempt(index) => self.preempt(index),
                Plan::Compute { running, admitted } => break (running, admitted),
            }
        };
        let mut work = Work::default();
        for (index, share) in running.into_iter().enumerate() {
            self.schedule(index, share, &mut work);
        }
        for share in admitted {
            // A match may have shrunk since it was looked up, if admitting another request took its pages.
            if !self.admit(&mut work) {
                break;
            }
            self.schedule(self.running.len() - 1, share, &mut work);
        }
        work
    }

    /// Deals with what came of the prepared `work`: its logits, `[rows, vocabulary] f32`, one row for each segment that
    /// asks for one, or why there are none.
    pub(super) fn complete(&mut self, work: &Work, outcome: Result<&[f32], BackendError>) {
        if work.is_empty() {
            return;
        }
        self.totals.steps += 1;
        let logits = match outcome.and_then(|logits| work.checked(logits, self.bounds.vocabulary)) {
            Ok(logits) => logits,
            Err(error) => return self.suffer(&error),
        };
        let mut rows = logits.chunks_exact(self.bounds.vocabulary.max(1) as usize);
        for mut active in std::mem::take(&mut self.running) {
            let share = std::mem::take(&mut active.share);
            active.touched = false;
            if share == 0 {
                self.running.push(active);
            } else {
                active.computed += share;
                let finished = active.computed == active.sequence.length();
                let row = if finished { rows.next() } else { None };
                self.advance(active, row);
            }
        }
    }

    /// Deals with a device that failed. What the work was to write is lost, and with it the requests that it was for:
    /// they wait, ahead of all others, to be computed again from what the cache holds of them.
    fn suffer(&mut self, error: &BackendError) {
        let (hit, spared) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|active| active.touched);
        self.running = spared;
        let hit: Vec<Active> = hit;
        for mut active in hit.into_iter().rev() {
            self.cache.abandon(active.lease);
            active.sequence.faults += 1;
            // A malformed step would be as malformed again.
            let retry = !matches!(error, BackendError::Malformed(_))
                && active.sequence.faults <= self.max_retries;
            if retry {
                self.totals.retries += 1;
                self.waiting.push_front(active.sequence);
            } else {
                self.end(
                    &active.sequence,
                    Event::Failed(Failure::Device(error.to_string())),
                );
            }
        }
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
    fn admit(&mut self, work: &mut Work) -> bool {
        let Some(mut sequence) = self.waiting.pop_front() else {
            return false;
        };
        let Some(opening) = self.cache.open(&sequence.salt, &sequence.tokens) else {
            self.waiting.push_front(sequence);
            return false;
        };
        let mut computed = opening.shared_tokens;
        if let Some(copy) = opening.copy {
            computed += copy.tokens;
            work.copies.push(copy);
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
            touched: opening.copy.is_some(),
        });
        true
    }

    /// Puts `share` tokens of a running sequence into the step; without a page for them it sits this one out.
    fn schedule(&mut self, index: usize, share: u32, work: &mut Work) {
        let Active {
            sequence,
            lease,
            computed,
            share: planned,
            touched,
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
            *touched = true;
            work.step.segments.push(Segment {
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
    fn advance(&mut self, mut active: Active, logits: Option<&[f32]>) {
        let Some(logits) = logits else {
            self.keep(active);
            return;
        };
        let sequence = &mut active.sequence;
        match sequence.sampling.choose(logits, sequence.length()) {
            Err(error) => {
                // What yields no numbers must not be served again.
                self.cache.forget(active.lease);
                let failure = Failure::Sampling(error.to_string());
                self.end(&active.sequence, Event::Failed(failure));
            }
            Ok(token) if sequence.stop_tokens.contains(&token) => {
                self.finish(active, FinishReason::Stop);
            }
            Ok(token) => {
                sequence.tokens.push(token);
                self.totals.generated_tokens += 1;
                self.outbox
                    .push((sequence.events.clone(), Event::Token(token)));
                if sequence.length() == sequence.end {
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
