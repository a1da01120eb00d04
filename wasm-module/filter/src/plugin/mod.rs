//! The state that the requests under one plugin configuration share: the validated configuration, what is known of
//! engines' caches, the metrics.
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
mod retired;

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

/// One loaded plugin configuration, with the state that its requests share. In Wasm each worker has its own; otherwise
/// all workers share it.
pub struct Plugin {
    config: Config,
    engines: Engines,
    knowledge: Shared<Knowledge>,
    /// The requests that await their cache-miss diagnosis. Locked separately from `knowledge`, so that no request waits
    /// for a diagnosis.
    misses: Shared<Misses>,
    /// The engines' event feeds. Locked separately from `knowledge`, so that no request waits while events are read.
    feeds: Shared<Vec<Feed>>,
    /// For each engine, a queue of updates about cached prefixes that are to be pushed to gateways of other proxies.
    outbox: Shared<Outbox>,
    clock: Clock,
    metrics: Metrics,
    salts: Option<Salts>,
    /// The retrieval of documents for chats that have none; `None` if it is not configured.
    retrieval: Option<Retrieval>,
    /// The bursts of requests in flight, in which requests are held behind others that compute the same documents;
    /// `None` if `bursts` is not configured.
    in_flight: Option<InFlight>,
    /// The stored answers of models, which are restored in later requests; `None` if storing them is not configured.
    answers: Option<Answers>,
}

/// The engine chosen for a request, and the addresses to send it to.
pub(crate) struct Route {
    pub(crate) dispatch: Dispatch,
    /// The value of [`DESTINATION_HEADER`](crate::engines::DESTINATION_HEADER): the address of the chosen engine, then
    /// of others for retries. `None` if there is only one engine, or the embedding module's pool of engines has none
    /// for the request.
    pub(crate) destinations: Option<String>,
}

/// The ordering core's result for a request body, with the engine chosen for the request.
pub(crate) struct Rewritten {
    pub(crate) answer: Result<Rewrite, Skip>,
    pub(crate) route: Route,
    /// The changes to the prompt's head (tools, system text, history), made or only reported.
    pub(crate) head: HeadReport,
    /// The body with the gateway's cache markers, and their counts. `None` if no markers are set: the engine's cache
    /// has none, the mode is `dry-run`, the chat is in an experiment's control arm, or the body cannot be parsed.
    pub(crate) cut: Option<Cut>,
    /// The ticket for the request's cache-miss diagnosis; `None` if diagnosis is off, or the body cannot be parsed.
    pub(crate) miss: Option<Ticket>,
}

/// The documents of a request's body, as far as known before the body is rewritten.
pub(crate) enum RequestDocuments<'b> {
    Nothing,
    /// The body is already parsed, with the documents in it.
    Parsed(Box<Parsed<'b>>),
    /// The documents that were retrieved for the body, which has none.
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
    /// Returns whether the plugin reads the event feed of any engine.
    pub fn has_feeds(&self) -> bool {
        self.config.has_feeds()
    }

    /// Handles a tick (timer callback), every [`Plugin::TICK_MS`] and when the plugin has requested one, and returns
    /// its kind. Pushes updates about its requests to gateways of other proxies, and resumes held requests that were
    /// released. At a periodic tick ([`Tick::Full`]) it also applies other workers' updates about cached prefixes, so
    /// that the next request has few to apply, diagnoses cache misses of forwarded requests, and reads engines' event
    /// feeds.
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

    /// The maximum length in bytes of a response to a [`Host::call_for_plugin`] that is read.
    pub const MAX_ANSWER_BYTES: usize = MAX_BATCH_BYTES;

    /// Handles the response to a [`Host::call_for_plugin`] with the number `call`. `status` is `None` if there was no
    /// response, and `body` is `None` if there was none or it is longer than [`Plugin::MAX_ANSWER_BYTES`].
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
            self.metrics.feed_key_mismatches.add(host, 1);
        }
        let Some(said) = said else {
            return;
        };
        // Updates that other workers published earlier are applied first.
        if let Some(mut knowledge) = self.knowledge() {
            knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
        }
        for residency in said.messages {
            // Locked for each, so that requests need not wait for all.
            let Some(mut knowledge) = self.knowledge() else {
                return;
            };
            let update = PeerUpdate::Residency(residency);
            knowledge.take(host, &self.metrics, &update);
        }
        // Counted last, so a reader who sees the count also sees the updates applied.
        self.metrics.feed_events.add(host, said.events);
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

    /// Returns the store of models' answers, for restoring them in a request; `None` if the mode is `dry-run`, or
    /// storing answers is not configured.
    pub(crate) fn answers(&self) -> Option<&Answers> {
        (self.answers.as_ref()).filter(|_| self.config.mode == Mode::Order)
    }

    /// Adds to the metric of restored messages: those in which a client had changed the model's answer, and the filter
    /// put the stored original back. `messages` is the number in one request.
    pub(crate) fn restored(&self, host: &impl Host, messages: u64) {
        self.metrics.messages_restored.add(host, messages);
    }

    /// Stores the model's answer that `answer` has collected from a response, and counts it. Not stored if it is
    /// incomplete.
    pub(crate) fn keep(&self, host: &impl Host, answer: AnswerReader) {
        let kept = self
            .answers
            .as_ref()
            .map(|answers| answer.keep(host, answers));
        match kept {
            Some(Ok(true)) => self.metrics.answers_kept.add(host, 1),
            Some(Err(error)) => host.log(LogLevel::Warn, &error.to_string()),
            Some(Ok(false)) | None => {}
        }
    }

    /// Returns the tenant with this name, with its cache salt if salts are on.
    pub(crate) fn identity(&self, name: String) -> Identity {
        Identity::new(name, self.salts.as_ref())
    }

    /// Returns whether cache salts are on. A request with a prompt is then forwarded with the gateway's salt, or
    /// refused.
    pub(crate) fn is_salted(&self) -> bool {
        self.salts.is_some()
    }

    /// Has the ordering core rewrite a request's body, chooses an engine, and records the elapsed time, including lock
    /// waits. `known` has the body's documents as far as they are already parsed or retrieved, and `model` is the model
    /// named in the request's path.
    ///
    /// Applies other workers' updates before, and publishes the request's record to them afterwards. `None` only in a
    /// Wasm VM, if an outer callback holds the lock of the orderer; no known proxy causes that.
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
        let choices = (self.engines).keeping(host, now_ms, choices, tenant, response.as_deref());
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
        let kind = kind.filter(|kind| kind.takes_markers(&named) && !is_control);
        let kind = kind.filter(|_| self.config.mode == Mode::Order);
        // The rewritten body is parsed only if it is marked; its diagnosis shares that parse.
        let rewritten = answer.as_ref().ok();
        let again = kind.and(rewritten).and_then(|rewrite| {
            let again = parse(rewrite.body.as_deref()?, orderer.config());
            for_model(again.ok()?, model).ok()
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
        let (chosen, tokens) = match &answer {
            Ok(rewrite) => {
                knowledge.publish_record(host, &self.metrics, &rewrite.record);
                self.note(|outbox| outbox.add_record(&rewrite.record));
                (rewrite.record.engine(), rewrite.record.uncached())
            }
            Err(_) => (least_loaded(&choices), estimated_tokens(body.len())),
        };
        // From here on, other workers' requests are ordered.
        drop(knowledge);
        let miss = parsed.as_ref().ok().and_then(|parsed| {
            let engine = configured(engine.unwrap_or_else(|| least_loaded(&choices)));
            let rewritten = answer.as_ref().ok();
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
            misses.take(&sent, &self.config.ordering)
        });
        let route = Route {
            dispatch: self.send(host, now_ms, chosen, tokens),
            destinations: self.engines.destinations(host, chosen, &choices),
        };
        Some(Rewritten {
            answer,
            route,
            head,
            cut,
            miss,
        })
    }

    /// Chooses an engine for a request with a body of `bytes` bytes that the ordering core does not process: the one
    /// with the fewest tokens yet to compute. Records the request in the engine's load.
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

    /// Drops all state recorded under an engine id of the embedding module's pool ([`EnginePool`](crate::EnginePool))
    /// that now belongs to another engine.
    pub fn forget_engine(&self, host: &impl Host, engine: EngineId) {
        self.engines.forget(host, engine);
        let cleared = Residency {
            engine,
            // An empty name stands for every model.
            model: "".into(),
            events: vec![Event::Cleared],
        };
        if let Some(mut knowledge) = self.knowledge() {
            knowledge.reporting.retain(|(other, ..)| *other != engine);
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

    /// Records a response from an engine that this plugin did not choose, but Envoy on a retry. It shows that the
    /// engine is healthy.
    pub(crate) fn answered_by(&self, host: &impl Host, engine: EngineId) {
        let dispatch = self.engines.send(host, self.now_ms(host), engine, 0);
        self.settle(host, dispatch, DispatchResult::Answered);
    }

    /// Returns the time in milliseconds for judging engines' health; 0 if there is one engine, to save the host call.
    fn now_ms(&self, host: &impl Host) -> u64 {
        if self.engines.are_several() {
            host.now_ms()
        } else {
            0
        }
    }

    /// Records that the chosen engine did not compute the request: documents that are recorded as cached there only
    /// because of this request are removed. The other workers and other gateways learn of it.
    pub(crate) fn undo(&self, host: &impl Host, record: &OrderingRecord) {
        let undone = record.undone();
        if !undone.events.is_empty()
            && let Some(mut knowledge) = self.knowledge()
        {
            let update = PeerUpdate::Residency(undone);
            self.publish(host, &mut knowledge, &update);
        }
    }

    /// Records that `engine`, which Envoy chose on a retry, computed the request's documents. Changes `record`
    /// accordingly.
    pub(crate) fn went_to(&self, host: &impl Host, record: &mut OrderingRecord, engine: EngineId) {
        record.redirect(engine);
        if let Some(mut knowledge) = self.knowledge() {
            let update = PeerUpdate::OrderingRecord(record.clone());
            self.publish(host, &mut knowledge, &update);
        }
    }

    /// Records again that a request's engine computed its documents: another request of its burst, which was to compute
    /// the same ones first, may have failed, so that they are recorded as cached no longer.
    pub(crate) fn computed_too(&self, host: &impl Host, record: &OrderingRecord) {
        if let Some(mut knowledge) = self.knowledge() {
            let mut again = record.clone();
            again.redirect(record.engine());
            let update = PeerUpdate::Remote((&again).into());
            self.publish(host, &mut knowledge, &update);
        }
    }

    /// Applies an engine's report on a request's prompt tokens: corrects what is recorded as cached there, and counts
    /// the tokens. `record` is `None` if the ordering core did not process the request.
    ///
    /// Returns the report. If it lacks the number of cached tokens but the engine has reported it for other requests to
    /// the same model in the same fields, the number is 0: vLLM and Gemini omit a zero.
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
        if knowledge.reports(record, counted) {
            counted.cached = counted.cached.or(Some(0));
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
            self.metrics.corrections.add(host, 1);
            let update = PeerUpdate::Correction(correction);
            self.publish(host, &mut knowledge, &update);
        }
        counted
    }

    /// Applies an update about cached prefixes, publishes it to the other workers, and queues it for gateways of other
    /// proxies.
    fn publish(&self, host: &impl Host, knowledge: &mut Knowledge, update: &PeerUpdate) {
        knowledge.take(host, &self.metrics, update);
        self.note(|outbox| outbox.add(update));
    }

    /// Locks the event feeds. `None` if they are locked: in a nested callback, since timer callbacks and responses to
    /// calls come on one thread.
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

    /// Returns the diagnosis why a finished request did not share a longer cached prefix with earlier ones, corrected
    /// by the engine's usage report (`counted`), and counts its cause. `None` if the body could not be read or the
    /// diagnosis was evicted.
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
            ..
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

/// Sets the model named in the request's path (`model`), if the body names none. Returns an error if the ordering core
/// refuses it.
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

/// The maximum number of other workers' updates about cached prefixes that are applied while a request waits, at about
/// three microseconds each.
const LEARNT_AT_A_REQUEST: u64 = 256;
/// The maximum number of other workers' updates about cached prefixes that are applied at one tick (timer callback), so
/// that the worker soon returns to its streams.
const LEARNT_AT_A_TICK: u64 = 2048;
/// The maximum number of requests whose cache misses are diagnosed at one tick (timer callback).
const EXPLAINED_AT_A_TICK: usize = 16;

#[cfg(test)]
mod tests;
