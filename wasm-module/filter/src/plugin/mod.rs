//! The state that the requests of one configuration share: the validated configuration, the knowledge, the metrics.
//!
//! | file | content |
//! | --- | --- |
//! | `load` | loading a plugin |
//! | `knowledge` | the state that requests share |
//! | `gateways` | the exchange of updates with gateways of other proxies |
//! | `clock` | ticks |
//! | `bursts` | holds requests that wait for another one's documents |
//! | this file | the methods for requests |

mod bursts;
mod clock;
mod gateways;
mod knowledge;
mod load;

use std::sync::MutexGuard;

use foreword_ordering::cuts::{Cut, CutOptions};
use foreword_ordering::feed::{Event, TenantKey};
use foreword_ordering::head::{Diagnosis, HeadReport};
use foreword_ordering::{
    Arm, Config as Ordering, EngineCandidate, EngineId, OrderingRecord, Parsed, PeerUpdate,
    Residency, Retrieved, Rewrite, RewriteOptions, Skip, Trial, Usage, parse, parse_with,
};

use self::bursts::InFlight;
use self::clock::Clock;
pub use self::clock::Tick;
use self::knowledge::Knowledge;
use crate::answers::{AnswerReader, Answers};
use crate::config::{Config, Mode};
use crate::engines::{Dispatch, DispatchResult, Engines};
use crate::feed::{Feed, MAX_BATCH_BYTES, Outbox};
use crate::host::{CallResponse, Host, LogLevel};
use crate::metrics::Metrics;
use crate::misses::{self, Misses, Ticket};
use crate::outcome::RequestOutcome;
use crate::retrieval::Retrieval;
use crate::salt::{Identity, Salts};
use crate::shared::Shared;
use crate::usage::PromptUsage;

/// One loaded configuration, with the state that its requests share.
pub struct Plugin {
    config: Config,
    engines: Engines,
    knowledge: Shared<Knowledge>,
    /// The requests to diagnose, separate from the knowledge, so that no request waits for a diagnosis.
    misses: Shared<Misses>,
    /// The feeds, separate from the knowledge, so that no request waits while a batch is read.
    feeds: Shared<Vec<Feed>>,
    /// Updates queued for gateways of other proxies.
    outbox: Shared<Outbox>,
    clock: Clock,
    metrics: Metrics,
    salts: Option<Salts>,
    /// The retrieval of documents; `None` if it is not configured.
    retrieval: Option<Retrieval>,
    /// The requests in flight that others may wait for; `None` if `bursts` is not configured.
    in_flight: Option<InFlight>,
    /// The stored answers, from which later requests are restored; `None` if they are not configured.
    answers: Option<Answers>,
}

/// The engine chosen for a request, and the fallbacks.
pub(crate) struct Route {
    pub(crate) dispatch: Dispatch,
    /// The value of [`DESTINATION_HEADER`](crate::engines::DESTINATION_HEADER); `None` if there is no choice.
    pub(crate) destinations: Option<String>,
}

/// The core's result for a body.
pub(crate) struct Rewritten {
    pub(crate) answer: Result<Rewrite, Skip>,
    pub(crate) route: Route,
    /// The changes to the body's head, made or only proposed.
    pub(crate) head: HeadReport,
    /// The body with the gateway's cache markers, and their counts. `None` if no markers are set: the engine's cache
    /// has none, the mode is `dry-run`, the chat is in an experiment's control arm, or the body cannot be read.
    pub(crate) cut: Option<Cut>,
    /// The ticket for the request's diagnosis; `None` if diagnoses are off, or the body cannot be read.
    pub(crate) miss: Option<Ticket>,
}

/// A body's documents, as known before it is rewritten.
pub(crate) enum RequestDocuments<'b> {
    Nothing,
    /// The body, already parsed.
    Parsed(Box<Parsed<'b>>),
    /// Documents retrieved for the body.
    Retrieved(Retrieved<'b>),
}

impl<'b> RequestDocuments<'b> {
    fn parsed(self, body: &'b [u8], ordering: &Ordering) -> Result<Parsed<'b>, Skip> {
        match self {
            Self::Nothing => parse(body, ordering),
            Self::Parsed(parsed) => Ok(*parsed),
            Self::Retrieved(retrieved) => parse_with(body, &retrieved, ordering),
        }
    }
}

impl Plugin {
    /// Returns whether the plugin follows engines' feeds.
    pub fn has_feeds(&self) -> bool {
        self.config.has_feeds()
    }

    /// Handles a tick, every [`Plugin::TICK_MS`] and when the plugin has requested one: pushes its requests' updates to
    /// gateways of other proxies, and resumes released requests. At full ticks it also applies other workers' updates,
    /// so that the next request has few to apply, diagnoses forwarded requests, and follows engines' feeds.
    pub fn on_tick(&self, host: &impl Host) -> Tick {
        let now_ms = host.now_ms();
        let tick = self.clock.tick(now_ms);
        if tick == Tick::Full {
            if let Some(mut knowledge) = self.knowledge() {
                knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
            }
            self.metrics.memory(host);
            if let Some(mut misses) = self.misses() {
                misses.explain_waiting(EXPLAINED_AT_A_TICK, &self.config.ordering);
            }
        }
        for feed in self.feeds().iter_mut().flat_map(|feeds| feeds.iter_mut()) {
            if tick == Tick::Full
                && let Err(error) = feed.on_tick(host, now_ms)
            {
                host.log(LogLevel::Warn, &error.to_string());
            }
            self.exchange(host, now_ms, feed, tick);
        }
        // Last: resuming other requests may change the host's context.
        self.resume_released(host);
        tick
    }

    /// The maximum length of a response to a [`Host::call_for_plugin`], in bytes.
    pub const MAX_ANSWER_BYTES: usize = MAX_BATCH_BYTES;

    /// Handles the response to a call: its status, if there was a response, and its body, unless it exceeds
    /// [`Plugin::MAX_ANSWER_BYTES`].
    pub fn on_answer(&self, host: &impl Host, call: u32, status: Option<u16>, body: Option<&[u8]>) {
        let (now_ms, answer) = (host.now_ms(), CallResponse { status, body });
        if self.receive(host, now_ms, call, answer) {
            return;
        }
        let said = self.feeds().and_then(|mut feeds| {
            let mut feeds = feeds.iter_mut();
            feeds.find_map(|feed| feed.on_answer(host, now_ms, call, answer))
        });
        if said.as_ref().is_some_and(|said| said.is_keyed_otherwise) {
            self.metrics.feed_key_mismatch(host);
        }
        let (Some(said), Some(mut knowledge)) = (said, self.knowledge()) else {
            return;
        };
        // Updates that other workers published earlier are applied first.
        knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
        for residency in said.messages {
            let update = PeerUpdate::Residency(residency);
            knowledge.take(host, &self.metrics, &update);
        }
        // Counted last, so a reader who sees the count also sees the updates applied.
        self.metrics.fed(host, said.events);
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn engines(&self) -> &Engines {
        &self.engines
    }

    pub(crate) fn retrieval(&self) -> Option<&Retrieval> {
        self.retrieval.as_ref()
    }

    /// Returns the stored answers; `None` in a dry run, or if answers are not kept.
    pub(crate) fn answers(&self) -> Option<&Answers> {
        (self.answers.as_ref()).filter(|_| self.config.mode == Mode::Order)
    }

    /// Counts the messages of a request that were restored.
    pub(crate) fn restored(&self, host: &impl Host, messages: u64) {
        if messages > 0 {
            self.metrics.restored(host, messages);
        }
    }

    /// Stores an answer that was read to its end, and counts it.
    pub(crate) fn keep(&self, host: &impl Host, answer: AnswerReader) {
        let kept = self
            .answers
            .as_ref()
            .map(|answers| answer.keep(host, answers));
        match kept {
            Some(Ok(true)) => self.metrics.answer_kept(host),
            Some(Err(error)) => host.log(LogLevel::Warn, &error.to_string()),
            Some(Ok(false)) | None => {}
        }
    }

    /// Returns the tenant of that name with its salt.
    pub(crate) fn identity(&self, name: String) -> Identity {
        Identity::new(name, self.salts.as_ref())
    }

    /// Returns whether salts are on: a request with a prompt then carries the gateway's salt, or is refused.
    pub(crate) fn is_salted(&self) -> bool {
        self.salts.is_some()
    }

    /// Calls the core and records the elapsed time, including lock waits. `model` is the one named in the request's
    /// path. Applies other workers' updates before, and publishes its own afterwards. `None` only if the orderer is
    /// locked by an outer callback, which no known proxy causes.
    pub(crate) fn rewrite<'b>(
        &self,
        host: &impl Host,
        identity: &Identity,
        body: &'b [u8],
        known: RequestDocuments<'b>,
        model: Option<&str>,
    ) -> Option<Rewritten> {
        // The body is parsed before anything is locked: shells whose requests share a plugin parse several at once.
        let start = host.now_ns();
        let parsed = known.parsed(body, &self.config.ordering);
        let parsed = parsed.and_then(|parsed| for_model(parsed, model));
        let mut knowledge = self.knowledge()?;
        knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_REQUEST);
        let now_ms = self.now_ms(host);
        knowledge.request_number = knowledge.request_number.wrapping_add(1);
        let choices = self.engines.choices(host, now_ms, knowledge.request_number);
        let trial = match (self.config.mode, &self.config.experiment) {
            (Mode::DryRun, _) => Trial::DryRun,
            (Mode::Order, Some(experiment)) => Trial::Experiment(experiment),
            (Mode::Order, None) => Trial::None,
        };
        let Knowledge {
            orderer, cutter, ..
        } = &mut *knowledge;
        let response = parsed.as_ref().ok().and_then(Parsed::previous_response);
        let named = parsed
            .as_ref()
            .map_or_else(|_| String::new(), |parsed| parsed.model().to_owned());
        let tenant = identity.tenant().name;
        let choices = (self.engines).keeping(host, choices, tenant, response.as_deref());
        let options = RewriteOptions {
            salt: identity.salt(),
            key_of: Some(TenantKey::of),
            trial,
            choices: &choices,
        };
        let mut parsed = parsed;
        let (answer, head) = match &mut parsed {
            Ok(parsed) => {
                let answer = orderer.rewrite_parsed(&options, identity.tenant(), parsed);
                (answer, orderer.last_head().clone())
            }
            Err(skip) => (Err(skip.clone()), HeadReport::default()),
        };
        let engine = match &answer {
            Ok(rewrite) => Some(rewrite.record.engine()),
            Err(Skip::NoDocuments) => Some(least_loaded(&choices)),
            Err(_) => None,
        };
        let is_control = matches!(&answer, Ok(rewrite) if rewrite.arm == Some(Arm::Control));
        let configured = |engine: EngineId| self.config.engines.get(usize::from(engine.0));
        let kind = engine.and_then(configured).map(|engine| engine.cache);
        let kind = kind.filter(|kind| kind.has_markers() && !is_control);
        let kind = kind.filter(|_| self.config.mode == Mode::Order);
        // The rewritten body is parsed only if it is marked; its diagnosis shares that parse.
        let rewritten = answer.as_ref().ok();
        let again = kind.and(rewritten).and_then(|rewrite| {
            let again = parse(rewrite.body.as_deref()?, orderer.config());
            for_model(again.ok()?, model).ok()
        });
        let miss = parsed.as_ref().ok().and_then(|parsed| {
            let engine = configured(engine.unwrap_or_else(|| least_loaded(&choices)));
            let matched = rewritten.filter(|_| self.has_feeds());
            let sent = misses::Sent {
                tenant: identity.tenant(),
                engine: engine.map_or("", |engine| engine.name.as_str()),
                parsed,
                rewritten,
                again: again.as_ref(),
                believed: matched.map(|rewrite| rewrite.report.matched_tokens),
            };
            let mut misses = self.misses()?;
            misses.take(&sent, orderer.config())
        });
        let cut = engine.zip(kind).and_then(|(engine, kind)| {
            let options = CutOptions {
                rules: kind.rules(&named),
                tenant: identity.tenant(),
                model: &named,
                engine,
                now_ms: host.now_ms(),
            };
            let is_rewritten = rewritten.is_some_and(|rewrite| rewrite.body.is_some());
            let sent = match is_rewritten {
                true => again.as_ref(),
                false => parsed.as_ref().ok(),
            };
            cutter.cut_parsed(&options, orderer.config(), sent?).ok()
        });
        // Saturates, since Envoy's clock is the wall clock, which may be set back.
        let elapsed = host.now_ns().saturating_sub(start);
        self.metrics.time(host, elapsed);
        self.metrics.head(host, &head);
        self.metrics.marked(host, cut.as_ref());
        let (engine, tokens) = match &answer {
            Ok(rewrite) => {
                knowledge.tell_record(host, &self.metrics, &rewrite.record);
                self.note(|outbox| outbox.add_record(&rewrite.record));
                (rewrite.record.engine(), rewrite.record.uncached())
            }
            Err(_) => (least_loaded(&choices), estimated_tokens(body.len())),
        };
        let route = Route {
            dispatch: self.send(host, now_ms, engine, tokens),
            destinations: self.engines.destinations(host, engine, &choices),
        };
        Some(Rewritten {
            answer,
            route,
            head,
            cut,
            miss,
        })
    }

    /// Returns the route of a request that the core does not process: to the engine with the fewest outstanding tokens.
    pub(crate) fn route(&self, host: &impl Host, bytes: usize) -> Route {
        let now_ms = self.now_ms(host);
        let choices = self.engines.choices(host, now_ms, now_ms);
        let engine = least_loaded(&choices);
        let tokens = estimated_tokens(bytes);
        Route {
            dispatch: self.send(host, now_ms, engine, tokens),
            destinations: self.engines.destinations(host, engine, &choices),
        }
    }

    /// Drops the state of an engine id of the shell's pool that now belongs to another engine.
    pub fn forget_engine(&self, host: &impl Host, engine: EngineId) {
        self.engines.forget(host, engine);
        let cleared = Residency {
            engine,
            // An empty name stands for every model.
            model: "".into(),
            events: vec![Event::Cleared],
        };
        if let Some(mut knowledge) = self.knowledge() {
            knowledge.reporting.remove(&engine);
            let update = PeerUpdate::Residency(cleared);
            knowledge.take(host, &self.metrics, &update);
        }
    }

    fn send(&self, host: &impl Host, now_ms: u64, engine: EngineId, tokens: u64) -> Dispatch {
        let dispatch = self.engines.send(host, now_ms, engine, tokens);
        if tokens > 0 {
            self.note_load(engine);
        }
        dispatch
    }

    pub(crate) fn settle(&self, host: &impl Host, dispatch: Dispatch, result: DispatchResult) {
        self.engines
            .settle(host, self.now_ms(host), dispatch, result);
        if dispatch.has_tokens() {
            self.note_load(dispatch.engine);
        }
    }

    /// Records a response from an engine that this plugin did not choose.
    pub(crate) fn answered_by(&self, host: &impl Host, engine: EngineId) {
        let dispatch = self.engines.send(host, self.now_ms(host), engine, 0);
        self.settle(host, dispatch, DispatchResult::Answered);
    }

    /// Returns the time for judging engines' health; 0 with one engine, to save the host call.
    fn now_ms(&self, host: &impl Host) -> u64 {
        if self.engines.are_several() {
            host.now_ms()
        } else {
            0
        }
    }

    /// Records that the chosen engine did not compute the request: the documents recorded for this request alone are
    /// removed.
    pub(crate) fn undo(&self, host: &impl Host, record: &OrderingRecord) {
        let undone = record.undone();
        if !undone.events.is_empty()
            && let Some(mut knowledge) = self.knowledge()
        {
            let update = PeerUpdate::Residency(undone);
            self.publish(host, &mut knowledge, &update);
        }
    }

    /// Records that another engine than the chosen one received the request, and so computed its documents.
    pub(crate) fn went_to(&self, host: &impl Host, record: &mut OrderingRecord, engine: EngineId) {
        record.redirect(engine);
        if let Some(mut knowledge) = self.knowledge() {
            let update = PeerUpdate::OrderingRecord(record.clone());
            self.publish(host, &mut knowledge, &update);
        }
    }

    /// Applies an engine's usage report of a prompt; `record` is `None` if the core did not process the request.
    /// Returns the report, with 0 cached tokens if it has none and the engine reports them at other times: vLLM and
    /// Gemini omit a zero.
    pub(crate) fn counted(
        &self,
        host: &impl Host,
        record: Option<&OrderingRecord>,
        arm: Option<Arm>,
        mut counted: PromptUsage,
    ) -> PromptUsage {
        let Some((record, mut knowledge)) = record.zip(self.knowledge()) else {
            self.metrics.counted(host, arm, counted);
            return counted;
        };
        let engine = record.engine();
        if counted.cached.is_some() {
            knowledge.reporting.insert(engine);
        } else if knowledge.reporting.contains(&engine) {
            counted.cached = Some(0);
        }
        self.metrics.counted(host, arm, counted);
        let Some(cached_tokens) = counted.cached else {
            return counted;
        };
        let usage = Usage {
            prompt_tokens: counted.prompt,
            cached_tokens,
        };
        if let Some(correction) = record.judged(usage) {
            self.metrics.corrected(host);
            let update = PeerUpdate::Correction(correction);
            self.publish(host, &mut knowledge, &update);
        }
        counted
    }

    /// Applies and publishes an update, and queues it for gateways of other proxies.
    fn publish(&self, host: &impl Host, knowledge: &mut Knowledge, update: &PeerUpdate) {
        knowledge.take(host, &self.metrics, update);
        self.note(|outbox| outbox.add(update));
    }

    /// Locks the feeds; `None` in a nested callback: ticks and responses to calls come on one thread.
    fn feeds(&self) -> Option<MutexGuard<'_, Vec<Feed>>> {
        self.feeds.try_lock()
    }

    fn knowledge(&self) -> Option<MutexGuard<'_, Knowledge>> {
        self.knowledge
            .lock(|knowledge| knowledge.begin_anew(&self.config))
    }

    fn misses(&self) -> Option<MutexGuard<'_, Misses>> {
        self.misses.lock(|misses| *misses = misses_of(&self.config))
    }

    /// Returns why the prefix that a finished request shared with earlier ones was not longer, corrected by the
    /// engine's usage report (`counted`), and counts the cause. `None` if the body could not be read or the diagnosis
    /// was evicted.
    pub(crate) fn missed(
        &self,
        host: &impl Host,
        ticket: Ticket,
        counted: Option<PromptUsage>,
    ) -> Option<Diagnosis> {
        let ordering = &self.config.ordering;
        let mut miss = self.misses()?.explain(ticket, ordering)?;
        if let Some(PromptUsage {
            prompt,
            cached: Some(cached),
        }) = counted
        {
            miss.apply_usage(prompt, cached, ordering.block_tokens());
        }
        self.metrics.missed(host, &miss);
        Some(miss)
    }

    pub(crate) fn count(&self, host: &impl Host, outcome: &RequestOutcome) {
        self.metrics.count(host, outcome);
    }
}

/// Sets the model named in the request's path, if the body names none.
pub(crate) fn for_model<'b>(
    mut parsed: Parsed<'b>,
    model: Option<&str>,
) -> Result<Parsed<'b>, Skip> {
    if let Some(model) = model {
        parsed.for_model(model)?;
    }
    Ok(parsed)
}

fn least_loaded(choices: &[EngineCandidate]) -> EngineId {
    let least = choices.iter().min_by_key(|choice| choice.outstanding);
    least.map_or(EngineId::default(), |choice| choice.engine)
}

fn estimated_tokens(bytes: usize) -> u64 {
    u64::from(foreword_ordering::document::estimate_tokens(bytes))
}

fn misses_of(config: &Config) -> Misses {
    Misses::new(config.explain, config.ordering.block_tokens())
}

/// The maximum number of updates applied while a request waits, at about three microseconds each.
const LEARNT_AT_A_REQUEST: u64 = 256;
/// The maximum number of updates applied at a tick, so that the worker soon returns to its streams.
const LEARNT_AT_A_TICK: u64 = 2048;
/// The maximum number of requests diagnosed at a tick.
const EXPLAINED_AT_A_TICK: usize = 16;

#[cfg(test)]
mod tests;
