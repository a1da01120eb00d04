//! The engine's decisions, step by step, without threads, locks, a clock or a device: the state and its two
//! transitions.
//!
//! [`Core::prepare`] drops cancelled requests, asks the [scheduler](crate::scheduler) for a plan, carries out all of it
//! except the device's part, and returns that part as [`Work`]. The holder of the core has the work computed and passes
//! the outcome to [`Core::complete`]. In between, another thread may take the core and continue with it on another
//! device. Events and counters accumulate in the core until they are fetched.

use self::speculation::HeldPrefill;
use self::tiers::{Fetching, Replication, pools};
use super::admission::WaitingSlot;
use super::prompt_scores::{PromptScores, max_scored_tokens};
use super::work::{Answers, Work, rows};
use super::{Bounds, EngineConfig, Event, Failure, FinishReason, Kind, SpeculationId, Stats};
use crate::TokenId;
use crate::backend::{Backend, BackendError, Output, Segment};
use crate::cache::{
    CacheConfig, CacheEvent, CacheUse, CachedLookup, DocumentPath, Lease, PrefixCache,
};
use crate::sampling::{Logprobs, NextToken, Sampler, SamplingError};
use crate::scheduler::{
    Entry, Limits, Plan, Queue, Rule, Running, SchedulerState, Ticket, Waiting, plan,
};
use foreword_ordering::document::Fingerprint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::mpsc;

#[cfg(any(test, feature = "invariants"))]
#[path = "tests/check.rs"]
mod check;
mod faults;
mod speculation;
mod tiers;

pub(super) struct Core {
    cache: PrefixCache,
    cache_config: CacheConfig,
    /// Requests that wait for pages from disk; they enter the queue once these have arrived.
    fetching: Vec<Fetching>,
    replication: Replication,
    limits: Limits,
    /// Maximum number of tokens of a step in which no sequence generates tokens and no request is a [`Kind::Prefill`].
    max_prefill_step_tokens: u32,
    /// Maximum number of running sequences of one tenant.
    max_running_per_tenant: u32,
    bounds: Bounds,
    /// Maximum number of tokens of a step whose logits are needed to score prompts, see [`max_scored_tokens`].
    pub(super) max_scored_tokens: u32,
    /// Maximum number of times that a request is computed again after device failures, see
    /// [`EngineConfig::max_retries`].
    max_retries: u32,
    /// True if requests may use the prefix cache, as [`EngineConfig::prefix_caching`] says.
    prefix_caching: bool,
    rule: Rule,
    waiting: Queue<Sequence>,
    /// A time not later than any waiting request's deadline; `None` if no waiting request has a deadline.
    next_deadline: Option<Instant>,
    /// Running sequences, with their pages, in the order of their admission.
    running: Vec<Active>,
    /// Speculative prefills whose prompts are computed, and whose pages are kept for the request that they anticipate.
    held: Vec<HeldPrefill>,
    /// Number of generations that callers have dropped before their end (cancelled). Each
    /// [`Generation`](super::Generation) shares this counter and increments it when that happens.
    bell: Arc<AtomicU64>,
    /// The value of `bell` at the last search for cancelled requests; if it differs from `bell`, there are new ones.
    rung: u64,
    /// Events that have not been sent to their requests' callers yet, each with its channel.
    outbox: Vec<(mpsc::Sender<Event>, Event)>,
    totals: Stats,
}

/// An accepted request, waiting or running, and its tokens so far.
pub(super) struct Sequence {
    /// The prompt, followed by the generated tokens.
    pub(super) tokens: Vec<TokenId>,
    /// Number of tokens at which the sequence ends: more than the prompt has, unless the prompt is only to be computed
    /// or scored.
    pub(super) end: u32,
    pub(super) kind: Kind,
    pub(super) tenant: Arc<str>,
    pub(super) deadline: Option<Instant>,
    pub(super) speculation: Option<SpeculationId>,
    pub(super) sampler: Sampler,
    /// Log-probabilities of the prompt's tokens computed so far; `None` if they were not requested or have been
    /// reported.
    pub(super) scores: Option<PromptScores>,
    pub(super) salt: Arc<str>,
    pub(super) documents: Option<Arc<DocumentPath>>,
    pub(super) cache_use: CacheUse,
    /// Channel to the caller, with room for all of the request's events; closed when the caller has dropped its
    /// generation.
    pub(super) events: mpsc::Sender<Event>,
    /// True if the sequence has run at least once, so that its prompt has been counted and reported.
    pub(super) started: bool,
    /// Number of times that the device failed while it was computing this sequence.
    pub(super) faults: u32,
    /// The request's place among the waiting requests; `None` once it has run.
    pub(super) place: Option<WaitingSlot>,
    /// The result of the last cache lookup of the sequence while it waited; `None` if there was none.
    pub(super) lookup: Option<CachedLookup>,
}

impl Sequence {
    /// Returns whether this request has a speculation id, and the other one has the same id and salt.
    fn has_speculation_of(&self, other: &Self) -> bool {
        self.speculation.is_some()
            && self.speculation == other.speculation
            && self.salt == other.salt
    }
}

struct Active {
    sequence: Sequence,
    lease: Lease,
    /// Number of leading tokens whose KV state the lease's pages hold; fewer than the sequence has.
    computed: u32,
    /// Number of this sequence's tokens in the work that was prepared last.
    share: u32,
    /// True if a failure of the work that was prepared last may leave this sequence's pages undefined: the work writes
    /// to them, or the sequence was admitted with it and may share pages that the work loads.
    touched: bool,
}

impl Core {
    /// Returns the state of an engine without requests, for a device with the dimensions of `backend`. It searches for
    /// cancelled requests whenever the counter `bell` has changed.
    pub(super) fn new(backend: &dyn Backend, config: &EngineConfig, bell: Arc<AtomicU64>) -> Self {
        Self {
            cache: PrefixCache::new(pools(backend), &config.cache),
            cache_config: config.cache.clone(),
            fetching: Vec::new(),
            replication: Replication::new(&config.cache.disk_replicas),
            limits: Limits {
                max_step_tokens: config.max_step_tokens.max(1),
                max_running: config.max_running.max(1),
                page_tokens: backend.shape().page_tokens.max(1),
            },
            max_prefill_step_tokens: (config.max_prefill_step_tokens.unwrap_or(1))
                .max(config.max_step_tokens),
            max_running_per_tenant: config.max_running_per_tenant.max(1),
            bounds: Bounds::of(backend),
            max_scored_tokens: max_scored_tokens(backend.shape().vocabulary),
            max_retries: config.max_retries,
            prefix_caching: config.prefix_caching,
            rule: config.order,
            waiting: Queue::new(config.order),
            next_deadline: None,
            running: Vec::new(),
            held: Vec::new(),
            bell,
            rung: 0,
            outbox: Vec::new(),
            totals: Stats::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn bounds(&self) -> Bounds {
        self.bounds
    }

    pub(super) fn enqueue(&mut self, sequences: impl IntoIterator<Item = Sequence>) {
        for mut sequence in sequences {
            if !self.prefix_caching {
                sequence.cache_use = CacheUse {
                    reads: 0,
                    keeps: false,
                };
            }
            if let Some(sequence) = self.join_speculation(sequence) {
                self.arrive(sequence);
            }
        }
    }

    fn arrive(&mut self, sequence: Sequence) {
        self.totals.speculations_started += u64::from(sequence.kind == Kind::Prefill);
        if let Some(sequence) = self.fetch(sequence) {
            self.queue(sequence);
        }
    }

    /// Adds a sequence to the queue of waiting requests.
    fn queue(&mut self, sequence: Sequence) {
        self.next_deadline = earlier(self.next_deadline, sequence.deadline);
        self.waiting.push(sequence.entry(), sequence);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.running.is_empty()
            && self.fetching.is_empty()
            && self.joined() == 0
    }

    /// Returns whether computed speculative prefills hold pages. Their callers may cancel them while the engine is
    /// idle, so that it must look for that.
    pub(super) fn holds_guesses(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            waiting: (self.waiting.len() + self.fetching.len()) as u32,
            running: self.running.len() as u32,
            cache: self.cache.stats(),
            prefix_caching: self.prefix_caching,
            ..self.totals
        }
    }

    pub(super) fn clear_cache(&mut self) -> u32 {
        self.release_held(|_| true);
        self.cache.clear()
    }

    /// Removes and returns the cache's events since the last call, oldest first.
    pub(super) fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.cache.take_events()
    }

    /// Sends the accumulated events to the callers of their requests, in order.
    pub(super) fn send_events(&mut self) {
        for (receiver, event) in self.outbox.drain(..) {
            // The channel has room. If the caller has dropped its end, the next step notices.
            let _ = receiver.try_send(event);
        }
    }

    /// Decides what the device computes in the next step, at time `now`, and returns it. Carry the work out and pass
    /// its outcome to [`Core::complete`] before the next call.
    pub(super) fn prepare(&mut self, now: Instant) -> Work {
        self.replicate(now);
        self.queue_fetched(now);
        self.continue_joined();
        self.drop_cancelled();
        self.drop_expired(now);
        self.refresh();
        let (running, tickets, admitted) = loop {
            let (state, tickets) = self.state();
            let plan = plan(&state);
            let lacks_pages = match &plan {
                Plan::Preempt(_) => true,
                Plan::Compute { admitted, .. } => {
                    state.available_pages == 0 || (admitted.is_empty() && !tickets.is_empty())
                }
            };
            if lacks_pages && self.release_held(|_| true) {
                continue;
            }
            match plan {
                Plan::Preempt(index) => self.preempt(index),
                Plan::Compute { running, admitted } => break (running, tickets, admitted),
            }
        };
        let mut work = Work::default();
        for (index, share) in running.into_iter().enumerate() {
            self.schedule(index, share, &mut work);
        }
        for (ticket, share) in tickets.iter().zip(admitted) {
            // The match may have shrunk since the lookup, if admitting another request took its pages.
            if !self.admit(ticket, &mut work, now) {
                break;
            }
            self.schedule(self.running.len() - 1, share, &mut work);
        }
        self.add_transfers(&mut work);
        work
    }

    /// Processes the outcome of the work that was prepared last: its results, or the error that prevented them.
    /// Continues or ends the sequences that it computed.
    pub(super) fn complete(&mut self, work: &Work, outcome: Result<&mut Answers, BackendError>) {
        if work.is_empty() {
            return;
        }
        let Answers {
            logits,
            drawn,
            scores,
        } = match outcome {
            Ok(answers) => answers,
            Err(error) => return self.handle_failure(&error),
        };
        if !work.step.segments.is_empty() {
            self.totals.steps += 1;
            self.totals.step_sizes.add(work.step.segments.len());
        }
        self.cache.landed();
        let mut logits = logits.chunks_exact_mut(self.bounds.vocabulary.max(1) as usize);
        let mut drawn = drawn.drain(..);
        let mut scores = scores.drain(..);
        // There is one segment for each sequence with a share, in the same order.
        let mut segments = work.step.segments.iter();
        for mut active in std::mem::take(&mut self.running) {
            let share = std::mem::take(&mut active.share);
            active.touched = false;
            if share == 0 {
                self.running.push(active);
            } else {
                active.computed += share;
                let segment = segments.next();
                let asked = segment.map(|segment| segment.output);
                // The last row is the distribution of the next token.
                let others = segment.map_or(0, rows).checked_sub(1);
                let row = others.and_then(|others| logits.nth(others));
                if asked == Some(Output::All)
                    && let Some(scores) = scores.next()
                    && let Err(error) = active.sequence.add_scores(scores)
                {
                    self.apply_choice(active, Err(error));
                    continue;
                }
                let complete = active.computed == active.sequence.length();
                if complete && let Some(scores) = active.sequence.scores.take() {
                    self.send_event(&active.sequence, Event::Prompt(scores.into_found()));
                }
                match active.sequence.kind {
                    Kind::Answer if complete && active.sequence.is_full() => {
                        self.finish(active, FinishReason::Length);
                    }
                    Kind::Answer if complete => match asked {
                        Some(Output::Token(_)) => self.follow(active, drawn.next()),
                        _ => self.advance(active, row),
                    },
                    Kind::Prefill if complete => match row {
                        Some(row) if asked == Some(Output::Last) => self.hold(active, row),
                        _ => self.finish(active, FinishReason::Prefilled),
                    },
                    Kind::Answer | Kind::Prefill => self.keep(active),
                }
            }
        }
    }

    /// Returns the input of the scheduler: counts of running and of the next waiting requests. Also returns a ticket,
    /// which identifies it in the queue, for each of these waiting requests, in the same order.
    fn state(&mut self) -> (SchedulerState, Vec<Ticket>) {
        let running = self.running.iter().map(|active| Running {
            tokens: active.sequence.length(),
            computed: active.computed,
            pages: active.lease.pages().len() as u32,
        });
        let running: Vec<Running> = running.collect();
        let available_pages = self.cache.available();
        // The head includes as many requests as could be admitted, bounded by slots, tokens and pages.
        let slots = (self.limits.max_running as usize).saturating_sub(running.len());
        let busy: u32 = running.iter().map(|one| one.tokens - one.computed).sum();
        let speculates = |sequence: &Sequence| sequence.kind == Kind::Prefill;
        // A long step would delay the next token of an answer, or the request that a speculation is for.
        let mut short = running.iter().any(Running::decodes)
            || (self.running.iter()).any(|active| speculates(&active.sequence));
        let mut limits = self.limits;
        if !short {
            limits.max_step_tokens = self.max_prefill_step_tokens;
        }
        let mut tokens = limits.max_step_tokens.saturating_sub(busy);
        let mut pages = available_pages;
        let most = if tokens == 0 { 0 } else { slots };
        let page_tokens = limits.page_tokens;
        let cache = &self.cache;
        let look = |sequence: &Sequence| {
            short |= speculates(sequence);
            let found = cache.lookup(&sequence.salt, sequence.readable());
            let waiting = Waiting {
                tokens: sequence.length(),
                cached: found.tokens,
                shared_pages: found.pages,
                idle_pages: found.idle_pages,
            };
            (found.tokens, waiting)
        };
        let more = |waiting: &Waiting| {
            tokens = tokens.saturating_sub(waiting.tokens - waiting.cached);
            let needed = waiting.needed_pages(page_tokens);
            let fits = needed <= pages;
            pages = pages.saturating_sub(needed);
            fits && tokens > 0
        };
        let is_bounded = self.max_running_per_tenant < self.limits.max_running;
        let room = |tenant: &str| {
            if !is_bounded {
                return u32::MAX;
            }
            let running = self.running.iter();
            let own = running.filter(|active| &*active.sequence.tenant == tenant);
            self.max_running_per_tenant
                .saturating_sub(own.count() as u32)
        };
        let head = self.waiting.head(most, room, look, more);
        let (tickets, waiting) = head.into_iter().unzip();
        if short {
            limits.max_step_tokens = self.limits.max_step_tokens;
        }
        let state = SchedulerState {
            limits,
            available_pages,
            running,
            waiting,
        };
        (state, tickets)
    }

    /// Checks for some waiting requests whether their last cache lookup is current, and looks up again if it is not.
    /// Their rank in the queue depends on it.
    fn refresh(&mut self) {
        if self.rule == Rule::Arrival {
            return;
        }
        let cache = &self.cache;
        let mut looks = LOOKS;
        self.waiting.sweep(SWEPT, |sequence| {
            if sequence.cache_use.reads == 0 {
                return Some(0);
            }
            let seen = sequence.lookup.as_ref();
            if looks > 0 && seen.is_none_or(|seen| !cache.is_current(seen)) {
                looks -= 1;
                sequence.lookup = Some(cache.remember_lookup(&sequence.salt, sequence.readable()));
            }
            sequence.lookup.as_ref().map(|seen| seen.tokens)
        });
    }

    /// Ends the requests whose callers have dropped their generations (cancelled them). What was computed for them
    /// stays cached.
    fn drop_cancelled(&mut self) {
        self.release_held(|sequence| sequence.events.is_closed());
        let rung = self.bell.load(Ordering::Acquire);
        if std::mem::replace(&mut self.rung, rung) == rung {
            return;
        }
        let mut gone = self.waiting.extract(|sequence| sequence.events.is_closed());
        gone.extend(self.take_unwanted_fetches());
        let cancelled: Vec<Active> = self
            .running
            .extract_if(.., |active| active.sequence.events.is_closed())
            .collect();
        for active in cancelled {
            gone.push(self.close(active));
        }
        self.totals.finished += gone.len() as u64;
        let guesses = gone
            .iter()
            .filter(|sequence| sequence.kind == Kind::Prefill);
        self.totals.speculations_cancelled += guesses.count() as u64;
    }

    /// Ends the requests whose deadline is at or before `now`.
    fn drop_expired(&mut self, now: Instant) {
        let expired = |deadline: Option<Instant>| deadline.is_some_and(|deadline| deadline <= now);
        if expired(self.next_deadline) {
            for sequence in self.waiting.extract(|sequence| expired(sequence.deadline)) {
                self.totals.expired += 1;
                self.end(&sequence, Event::Failed(Failure::Expired));
            }
            let deadlines = self.waiting.iter().map(|sequence| sequence.deadline);
            self.next_deadline = deadlines.fold(None, earlier);
        }
        self.release_held(|sequence| expired(sequence.deadline));
        let late: Vec<Active> = self
            .running
            .extract_if(.., |active| expired(active.sequence.deadline))
            .collect();
        for active in late {
            self.totals.expired += 1;
            let sequence = self.close(active);
            self.end(&sequence, Event::Failed(Failure::Expired));
        }
    }

    /// Preempts the running sequence with index `index` in `running`: releases its pages and puts it at the head of the
    /// queue.
    fn preempt(&mut self, index: usize) {
        let active = self.running.remove(index);
        let sequence = self.close(active);
        self.put_back(sequence);
        self.totals.preemptions += 1;
    }

    /// Puts a sequence that has run before at the head of the queue of waiting requests.
    fn put_back(&mut self, sequence: Sequence) {
        self.next_deadline = earlier(self.next_deadline, sequence.deadline);
        self.waiting.put_back(sequence);
    }

    /// Ends the lease (hold on pages) of a running sequence and returns the sequence. What was computed stays cached.
    fn close(&mut self, active: Active) -> Sequence {
        self.cache
            .close(active.lease, &active.sequence.tokens, active.computed);
        active.sequence
    }

    /// Admits the waiting sequence that `ticket` identifies: opens a lease on pages for it, adds the loads and copies
    /// that fill them to `work`, and makes it run. Returns `false` if there are too few pages or the sequence has left
    /// the queue.
    fn admit(&mut self, ticket: &Ticket, work: &mut Work, now: Instant) -> bool {
        let Some(sequence) = self.waiting.get(ticket) else {
            return false;
        };
        let Some(opening) = self.cache.open(
            &sequence.salt,
            &sequence.tokens,
            sequence.documents.as_deref(),
            sequence.cache_use,
        ) else {
            return false;
        };
        let Some(mut sequence) = self.waiting.take(ticket) else {
            self.cache.abandon(opening.lease);
            return false;
        };
        let mut computed = opening.cached_tokens;
        let from_host = opening.host_tokens;
        work.step.loads.extend(opening.loads);
        if let Some(copy) = opening.copy {
            computed += copy.tokens;
            work.copies.push(copy);
        }
        if let Some(place) = sequence.place.take() {
            place.leave(now);
        }
        if !sequence.started {
            sequence.started = true;
            self.count_prompt(&sequence, computed);
            self.totals.host_tokens += u64::from(from_host);
        }
        self.running.push(Active {
            sequence,
            lease: opening.lease,
            computed,
            share: 0,
            touched: true,
        });
        true
    }

    /// Counts a prompt that was admitted for the first time, with `cached` tokens served from the cache, and reports it
    /// to the caller.
    fn count_prompt(&mut self, sequence: &Sequence, cached: u32) {
        self.totals.prompt_tokens += u64::from(sequence.length());
        self.totals.cached_tokens += u64::from(cached);
        self.totals.lookups += 1;
        if cached > 0 && cached + 1 == sequence.length() {
            self.totals.full_hits += 1;
        } else if cached > 0 {
            self.totals.partial_hits += 1;
        }
        self.waiting
            .charge_prompt(&sequence.tenant, sequence.length() - cached);
        self.send_event(
            sequence,
            Event::Started {
                cached_tokens: cached,
            },
        );
    }

    /// Adds `share` tokens of the running sequence with index `index` to the step in `work`, or fewer if the step would
    /// yield too many logits for scoring prompts. If there is no page for them, the sequence is not part of this step.
    fn schedule(&mut self, index: usize, share: u32, work: &mut Work) {
        let Active {
            sequence,
            lease,
            computed,
            share: planned,
            touched,
        } = &mut self.running[index];
        let mut end = (*computed + share).min(sequence.length());
        let unscored = sequence.scores.as_ref().map_or(0, PromptScores::unscored);
        if *computed < unscored {
            end = end.min(unscored);
        }
        let rows = |end| {
            let scores = sequence.scores.as_ref()?;
            scores.rows(&sequence.tokens, *computed..end)
        };
        let mut scored = rows(end);
        if scored.is_some() {
            let segments = work.step.segments.iter();
            let planned = segments.filter(|segment| segment.output == Output::All);
            let planned: usize = planned.map(|segment| segment.tokens.len()).sum();
            let room = self.max_scored_tokens.saturating_sub(planned as u32);
            if room == 0 {
                return;
            }
            end = end.min(*computed + room);
            scored = rows(end);
        }
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
                output: match sequence.kind {
                    _ if scored.is_some() => Output::All,
                    _ if end < sequence.length() => Output::None,
                    // The anticipated request's first token is sampled from this row.
                    Kind::Prefill if sequence.speculation.is_some() => Output::Last,
                    Kind::Answer if !sequence.is_full() => {
                        let draw = sequence.sampler.draw(sequence.length());
                        draw.filter(|_| self.bounds.draws)
                            .map_or(Output::Last, Output::Token)
                    }
                    Kind::Prefill | Kind::Answer => Output::None,
                },
            });
            work.scored.extend(scored);
        }
    }

    /// Samples a sequence's next token from `logits`, the row of its last token, and continues or ends the sequence.
    fn advance(&mut self, mut active: Active, logits: Option<&mut [f32]>) {
        // Every segment that asks for logits has a row.
        let logits = logits.unwrap_or_default();
        let sequence = &mut active.sequence;
        let position = sequence.length();
        let choice = sequence.sampler.next(logits, position);
        self.apply_choice(active, choice);
    }

    /// Continues a sequence with the next token that the device sampled, or ends it if sampling failed or the token
    /// ends it.
    fn follow(&mut self, mut active: Active, drawn: Option<Result<TokenId, SamplingError>>) {
        // Every segment that asks for a token has one.
        let tokens = self.bounds.vocabulary;
        let drawn = drawn.unwrap_or(Err(SamplingError::NothingLeft { tokens }));
        let choice = drawn.map(|id| active.sequence.sampler.accept(id));
        self.apply_choice(active, choice);
    }

    /// Continues a sequence with the outcome of choosing its next token, or ends it, and reports to the caller.
    fn apply_choice(&mut self, mut active: Active, choice: Result<NextToken, SamplingError>) {
        let sequence = &mut active.sequence;
        match choice {
            Err(error @ SamplingError::Constraint { .. }) => {
                let failure = Failure::Grammar(error.to_string());
                let sequence = self.close(active);
                self.end(&sequence, Event::Failed(failure));
            }
            Err(error) => {
                // Pages that yield no valid numbers must not be served again.
                self.cache.forget(active.lease);
                let failure = Failure::Sampling(error.to_string());
                self.end(&active.sequence, Event::Failed(failure));
            }
            Ok(NextToken::Stop) => self.finish(active, FinishReason::Stop),
            Ok(NextToken::Token { id, logprobs, last }) => {
                sequence.tokens.push(id);
                self.totals.generated_tokens += 1;
                self.waiting.charge_token(&sequence.tenant);
                self.outbox
                    .push((sequence.events.clone(), Event::Token { id, logprobs }));
                if last {
                    self.finish(active, FinishReason::Stop);
                } else if sequence.is_full() {
                    self.finish(active, FinishReason::Length);
                } else {
                    self.keep(active);
                }
            }
        }
    }

    /// Puts a sequence back among the running ones, and makes the pages that its computed tokens fill available to
    /// other sequences.
    fn keep(&mut self, mut active: Active) {
        self.cache
            .commit(&mut active.lease, &active.sequence.tokens, active.computed);
        self.running.push(active);
    }

    /// Ends a running sequence for `reason` and reports it to the caller. The KV state that was computed for it stays
    /// cached.
    fn finish(&mut self, active: Active, reason: FinishReason) {
        let sequence = self.close(active);
        self.end(&sequence, Event::Finished(reason));
    }

    fn end(&mut self, sequence: &Sequence, event: Event) {
        self.totals.finished += 1;
        self.send_event(sequence, event);
    }

    fn send_event(&mut self, sequence: &Sequence, event: Event) {
        self.outbox.push((sequence.events.clone(), event));
    }
}

impl Sequence {
    fn length(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Returns the leading tokens that may be looked up in the cache for this request.
    fn readable(&self) -> &[TokenId] {
        self.cache_use.readable(&self.tokens)
    }

    /// Returns whether the sequence has all the tokens that it may have, so that no further one is generated.
    fn is_full(&self) -> bool {
        self.length() == self.end
    }

    fn add_scores(
        &mut self,
        found: Result<Vec<Logprobs>, SamplingError>,
    ) -> Result<(), SamplingError> {
        if let Some(scores) = &mut self.scores {
            scores.extend(found?);
        }
        Ok(())
    }

    /// Returns the properties by which the queue ranks this request: its tenant, its length and its documents.
    fn entry(&self) -> Entry {
        let documents = self.documents.iter().flat_map(|path| {
            // The same documents after a different scope share nothing. Mixing the scope into the first fingerprint
            // separates them.
            let mut salt = path.scope.rotate_left(32);
            path.documents.iter().map(move |document| {
                let name = document.fingerprint ^ std::mem::take(&mut salt);
                (Fingerprint(name), document.end)
            })
        });
        Entry {
            tenant: self.tenant.clone(),
            tokens: self.length(),
            documents: documents.collect(),
        }
    }
}

/// Maximum number of waiting requests for which [`Core::refresh`] checks in one step whether their last cache lookup is
/// current.
const SWEPT: usize = 64;

/// Maximum number of waiting requests that [`Core::refresh`] looks up again in one step; a lookup follows a prompt's
/// pages through memory.
const LOOKS: u32 = 8;

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
