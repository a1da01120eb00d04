//! The state that the requests of one configuration share: the checked configuration, the knowledge, the metrics.
//!
//! | file | answers |
//! | --- | --- |
//! | `load` | how a plugin is loaded |
//! | `knowledge` | what its requests know together |
//! | `gateways` | what gateways of other proxies are told, and tell |
//! | `clock` | when it ticks |
//! | this file | what a request asks of it |

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

use self::clock::Clock;
pub use self::clock::Tick;
use self::knowledge::Knowledge;
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

/// One loaded configuration.
pub struct Plugin {
    config: Config,
    engines: Engines,
    knowledge: Shared<Knowledge>,
    /// The requests to explain, apart from the knowledge, so that no request waits for an explanation.
    misses: Shared<Misses>,
    /// The feeds, apart from the knowledge, so that no request waits while a batch is read.
    feeds: Shared<Vec<Feed>>,
    /// What gateways of other proxies are yet to be told.
    outbox: Shared<Outbox>,
    clock: Clock,
    metrics: Metrics,
    salts: Option<Salts>,
    /// The retrieval of documents; `None`: it is not configured.
    retrieval: Option<Retrieval>,
}

/// The route of a request.
pub(crate) struct Route {
    pub(crate) dispatch: Dispatch,
    /// The value of [`DESTINATION_HEADER`](crate::engines::DESTINATION_HEADER); `None`: there is one engine.
    pub(crate) destinations: Option<String>,
}

/// The core's result for a body.
pub(crate) struct Rewritten {
    pub(crate) answer: Result<Rewrite, Skip>,
    pub(crate) route: Route,
    /// What was done with the body's head, or would be.
    pub(crate) head: HeadReport,
    /// What was marked, and the body with markers; `None`: the engine's cache knows none, or the body cannot be read.
    pub(crate) cut: Option<Cut>,
    /// The ticket for why it could not begin like an earlier one; `None`: this is not explained, or the body cannot be
    /// read.
    pub(crate) miss: Option<Ticket>,
}

/// What is known of a body's documents before it is rewritten.
pub(crate) enum RequestDocuments<'b> {
    Nothing,
    /// The body was read: it brings documents.
    Parsed(Box<Parsed<'b>>),
    /// These documents were retrieved for the body.
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
    /// Returns whether the plugin follows engines' feeds, which requires ticks.
    pub fn has_feeds(&self) -> bool {
        self.config.has_feeds()
    }

    /// Handles a tick, every [`Plugin::TICK_MS`] and when the plugin has asked for one: it tells gateways of other proxies
    /// what its requests did. At full ticks it also learns what other workers did meanwhile, so that the next request
    /// finds little left to learn, explains requests that have gone on, and looks at engines' feeds.
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
        tick
    }

    /// Most bytes of a response to a [`Host::call_for_plugin`] that are read.
    pub const MAX_ANSWER_BYTES: usize = MAX_BATCH_BYTES;

    /// Handles the response to a call: its status, unless there was no response, and its body, unless that is longer
    /// than [`Plugin::MAX_ANSWER_BYTES`].
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
        // Entries that were published before are older.
        knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
        for residency in said.messages {
            let update = PeerUpdate::Residency(residency);
            knowledge.take(host, &self.metrics, &update);
        }
        // The count comes last, so whoever sees it also sees the knowledge.
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

    /// Returns the identity of the tenant of that name.
    pub(crate) fn identity(&self, name: String) -> Identity {
        Identity::new(name, self.salts.as_ref())
    }

    /// Returns whether every request must have a salt of the gateway, or be refused.
    pub(crate) fn is_salted(&self) -> bool {
        self.salts.is_some()
    }

    /// Calls the core for the model that the request's path names and records the elapsed time, lock waits included. Updates
    /// of other workers are applied before, and its own is published afterwards. `None` if this very
    /// thread is using the orderer, which no known proxy can bring about.
    pub(crate) fn rewrite<'b>(
        &self,
        host: &impl Host,
        identity: &Identity,
        body: &'b [u8],
        known: RequestDocuments<'b>,
        model: Option<&str>,
    ) -> Option<Rewritten> {
        // A body is read before anything is locked: in a shell whose requests share a plugin, several read at once.
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
        // The rewritten body is read again only if it is marked; its explanation then shares that reading.
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
        // This saturates, since Envoy's clock is the wall clock, which may step back.
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

    /// Returns the route of a request that the core does not see: to the engine with the fewest outstanding tokens.
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

    /// Forgets what is known of an engine of the shell's pool, whose id another one has from now on.
    pub fn forget_engine(&self, host: &impl Host, engine: EngineId) {
        self.engines.forget(host, engine);
        let cleared = Residency {
            engine,
            // Every model's.
            model: "".into(),
            events: vec![Event::Cleared],
        };
        if let Some(mut knowledge) = self.knowledge() {
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

    /// Returns the time by which engines are judged. With one engine it is not needed, so the proxy is not asked.
    fn now_ms(&self, host: &impl Host) -> u64 {
        if self.engines.are_several() {
            host.now_ms()
        } else {
            0
        }
    }

    /// Records that the chosen engine did not take the request.
    pub(crate) fn undo(&self, host: &impl Host, record: &OrderingRecord) {
        let undone = record.undone();
        if !undone.events.is_empty()
            && let Some(mut knowledge) = self.knowledge()
        {
            let update = PeerUpdate::Residency(undone);
            self.tell(host, &mut knowledge, &update);
        }
    }

    /// Records that another engine than the chosen one got the request, and so holds the documents now.
    pub(crate) fn went_to(&self, host: &impl Host, record: &mut OrderingRecord, engine: EngineId) {
        record.redirect(engine);
        if let Some(mut knowledge) = self.knowledge() {
            let update = PeerUpdate::OrderingRecord(record.clone());
            self.tell(host, &mut knowledge, &update);
        }
    }

    /// Applies an engine's count of a prompt, that of `record` if the core decided on it.
    pub(crate) fn counted(
        &self,
        host: &impl Host,
        record: Option<&OrderingRecord>,
        arm: Option<Arm>,
        counted: PromptUsage,
    ) {
        self.metrics.counted(host, arm, counted);
        let (Some(record), Some(mut knowledge)) = (record, self.knowledge()) else {
            return;
        };
        let bit = 1_u64.checked_shl(record.engine().0.into()).unwrap_or(0);
        if counted.cached.is_some() {
            knowledge.reporting |= bit;
        } else if knowledge.reporting & bit == 0 {
            return;
        }
        let usage = Usage {
            prompt_tokens: counted.prompt,
            cached_tokens: counted.cached.unwrap_or(0),
        };
        if let Some(correction) = record.judged(usage) {
            self.metrics.corrected(host);
            let update = PeerUpdate::Correction(correction);
            self.tell(host, &mut knowledge, &update);
        }
    }

    /// Takes what one of this plugin's requests has found out, and notes it for gateways of other proxies.
    fn tell(&self, host: &impl Host, knowledge: &mut Knowledge, update: &PeerUpdate) {
        knowledge.take(host, &self.metrics, update);
        self.note(|outbox| outbox.add(update));
    }

    /// Locks the feeds. Ticks and responses come on one thread, so a caller that finds them in use is nested.
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

    /// Explains a request that is over, with the engine's report of its prompt, and counts its miss.
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
            miss.told(prompt, cached, ordering.block_tokens());
        }
        self.metrics.missed(host, &miss);
        Some(miss)
    }

    pub(crate) fn count(&self, host: &impl Host, outcome: &RequestOutcome) {
        self.metrics.count(host, outcome);
    }
}

/// A body, for the model that its request's path names, if it names none itself.
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

/// Most entries that a request waits for, at some three microseconds each.
const LEARNT_AT_A_REQUEST: u64 = 256;
/// Most entries learnt at a tick, before the worker looks after its streams again.
const LEARNT_AT_A_TICK: u64 = 2048;
/// Most requests explained at a tick.
const EXPLAINED_AT_A_TICK: usize = 16;

#[cfg(test)]
mod tests;
