//! What the requests of one configuration share: the checked configuration, what is known, the metrics.
//!
//! | file | answers |
//! | --- | --- |
//! | `load` | how a plugin begins |
//! | `knowledge` | what its requests know together |
//! | here | what a request asks of it |

mod knowledge;
mod load;

use std::sync::MutexGuard;

use foreword_ordering::feed::TenantKey;
use foreword_ordering::head::{Diagnosis, HeadReport};
use foreword_ordering::{
    Arm, Config as Ordering, EngineCandidate, EngineId, OrderingRecord, Parsed, PeerUpdate,
    Retrieved, Rewrite, RewriteOptions, Skip, Trial, Usage, parse, parse_with,
};

use self::knowledge::Knowledge;
use crate::config::{Config, Mode};
use crate::engines::{Dispatch, DispatchResult, Engines};
use crate::feed::{Feed, MAX_BATCH_BYTES};
use crate::host::{CallResponse, Host, LogLevel};
use crate::metrics::Metrics;
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
    /// Apart from what is known, so that no request waits while a batch is read.
    feeds: Shared<Vec<Feed>>,
    metrics: Metrics,
    salts: Option<Salts>,
    /// `None`: documents are looked for nowhere.
    retrieval: Option<Retrieval>,
}

/// Where a request goes.
pub(crate) struct Route {
    pub(crate) dispatch: Dispatch,
    /// For [`DESTINATION_HEADER`](crate::engines::DESTINATION_HEADER); `None`: there is nothing to choose.
    pub(crate) destinations: Option<String>,
}

/// What the core says of a body.
pub(crate) struct Rewritten {
    pub(crate) answer: Result<Rewrite, Skip>,
    pub(crate) route: Route,
    /// What was done with its head, or would be.
    pub(crate) head: HeadReport,
    /// Why it could not begin like an earlier one; `None`: nobody asked, or it cannot be read.
    pub(crate) miss: Option<Diagnosis>,
}

/// What is known of a body beside its bytes.
pub(crate) enum RequestDocuments<'b> {
    Nothing,
    /// It was read: it brings documents.
    Parsed(Box<Parsed<'b>>),
    /// These documents were found for it.
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
    /// Whether engines' feeds are to be followed, for which ticks are needed.
    pub fn has_feeds(&self) -> bool {
        self.config
            .engines
            .iter()
            .any(|engine| engine.feed.is_some())
    }

    /// Some time has passed: what other workers did meanwhile is learnt, so that a request that comes late finds little
    /// left to learn.
    pub fn on_tick(&self, host: &impl Host) {
        self.metrics.memory(host);
        if let Some(mut knowledge) = self.knowledge() {
            knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
        }
        for feed in self.feeds().iter_mut().flat_map(|feeds| feeds.iter_mut()) {
            if let Err(error) = feed.on_tick(host, host.now_ms()) {
                host.log(LogLevel::Warn, &error.to_string());
            }
        }
    }

    /// Bytes of an answer to a [`Host::call_for_plugin`] that are looked at.
    pub const MAX_ANSWER_BYTES: usize = MAX_BATCH_BYTES;

    /// The answer to a call has come: its status, unless there was no answer, and its body, unless that is longer than
    /// [`Plugin::MAX_ANSWER_BYTES`].
    pub fn on_answer(&self, host: &impl Host, call: u32, status: Option<u16>, body: Option<&[u8]>) {
        let (now_ms, answer) = (host.now_ms(), CallResponse { status, body });
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
        // What was told before is older.
        knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_TICK);
        for residency in said.messages {
            knowledge.take(host, &self.metrics, PeerUpdate::Residency(residency));
        }
        // Whoever sees the count sees what is known.
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

    /// Whose request it is, by the tenant's name.
    pub(crate) fn identity(&self, name: String) -> Identity {
        Identity::new(name, self.salts.as_ref())
    }

    /// Whether every request must go on with a salt of ours, or not at all.
    pub(crate) fn is_salted(&self) -> bool {
        self.salts.is_some()
    }

    /// Asks the core and times it, for the model that the request's path names; learns before what other workers did, and tells them afterwards. `None` if this very
    /// thread is using the orderer, which no known proxy can bring about.
    pub(crate) fn rewrite<'b>(
        &self,
        host: &impl Host,
        identity: &Identity,
        body: &'b [u8],
        known: RequestDocuments<'b>,
        model: Option<&str>,
    ) -> Option<Rewritten> {
        let mut knowledge = self.knowledge()?;
        knowledge.catch_up(host, &self.metrics, LEARNT_AT_A_REQUEST);
        let now_ms = self.now_ms(host);
        knowledge.request_number = knowledge.request_number.wrapping_add(1);
        let choices = self.engines.choices(host, now_ms, knowledge.request_number);
        let start = host.now_ns();
        let trial = match (self.config.mode, &self.config.experiment) {
            (Mode::DryRun, _) => Trial::DryRun,
            (Mode::Order, Some(experiment)) => Trial::Experiment(experiment),
            (Mode::Order, None) => Trial::None,
        };
        let Knowledge {
            orderer, misses, ..
        } = &mut *knowledge;
        let parsed = known.parsed(body, orderer.config());
        let parsed = parsed.and_then(|parsed| for_model(parsed, model));
        let response = parsed.as_ref().ok().and_then(Parsed::previous_response);
        let tenant = identity.tenant().name;
        let choices = (self.engines).keeping(host, choices, tenant, response.as_deref());
        let options = RewriteOptions {
            salt: identity.salt(),
            key_of: Some(TenantKey::of),
            trial,
            choices: &choices,
        };
        let mut miss = None;
        let answer = parsed.and_then(|mut parsed| {
            let answer = orderer.rewrite_parsed(&options, identity.tenant(), &mut parsed);
            let rewritten = answer.as_ref().ok();
            let engine = match rewritten {
                Some(rewrite) => rewrite.record.engine(),
                None => least_loaded(&choices),
            };
            let engine = self.config.engines.get(usize::from(engine.0));
            let engine = engine.map_or("", |engine| engine.name.as_str());
            let ordering = orderer.config();
            miss = misses.explain(identity.tenant(), engine, &parsed, ordering, rewritten);
            if let (Some(miss), Some(rewrite), true) = (&mut miss, rewritten, self.has_feeds()) {
                let tokens = rewrite.report.matched_tokens;
                miss.believed(tokens, ordering.block_tokens());
            }
            answer
        });
        // Saturating: Envoy's clock is the wall clock, which may step back.
        let elapsed = host.now_ns().saturating_sub(start);
        self.metrics.time(host, elapsed);
        let head = orderer.last_head().clone();
        self.metrics.head(host, &head);
        let (engine, tokens) = match &answer {
            Ok(rewrite) => {
                knowledge.tell(host, &self.metrics, &rewrite.record.encode());
                (rewrite.record.engine(), rewrite.record.uncached())
            }
            Err(_) => (least_loaded(&choices), estimated_tokens(body.len())),
        };
        let route = Route {
            dispatch: self.engines.send(host, now_ms, engine, tokens),
            destinations: self.engines.destinations(engine, &choices),
        };
        Some(Rewritten {
            answer,
            route,
            head,
            miss,
        })
    }

    /// A request that the core does not see goes to the engine that has least to do.
    pub(crate) fn route(&self, host: &impl Host, bytes: usize) -> Route {
        let now_ms = self.now_ms(host);
        let choices = self.engines.choices(host, now_ms, now_ms);
        let engine = least_loaded(&choices);
        let tokens = estimated_tokens(bytes);
        Route {
            dispatch: self.engines.send(host, now_ms, engine, tokens),
            destinations: self.engines.destinations(engine, &choices),
        }
    }

    pub(crate) fn settle(&self, host: &impl Host, dispatch: Dispatch, result: DispatchResult) {
        self.engines
            .settle(host, self.now_ms(host), dispatch, result);
    }

    /// An engine answered that was not sent to by us.
    pub(crate) fn answered_by(&self, host: &impl Host, engine: EngineId) {
        let dispatch = self.engines.send(host, self.now_ms(host), engine, 0);
        self.settle(host, dispatch, DispatchResult::Answered);
    }

    /// By which engines are judged. Where there is nothing to choose nobody looks at it, and nobody need ask for it.
    fn now_ms(&self, host: &impl Host) -> u64 {
        if self.engines.are_several() {
            host.now_ms()
        } else {
            0
        }
    }

    /// The engine that was chosen did not take the request.
    pub(crate) fn undo(&self, host: &impl Host, record: &OrderingRecord) {
        let undone = record.undone();
        if !undone.events.is_empty()
            && let Some(mut knowledge) = self.knowledge()
        {
            knowledge.take(host, &self.metrics, PeerUpdate::Residency(undone));
        }
    }

    /// Another engine got the request than was chosen: it holds the documents now.
    pub(crate) fn went_to(&self, host: &impl Host, record: &mut OrderingRecord, engine: EngineId) {
        record.redirect(engine);
        if let Some(mut knowledge) = self.knowledge() {
            knowledge.take(
                host,
                &self.metrics,
                PeerUpdate::OrderingRecord(record.clone()),
            );
        }
    }

    /// An engine has counted a prompt, that of `record` if the core decided on it.
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
            knowledge.take(host, &self.metrics, PeerUpdate::Correction(correction));
        }
    }

    /// Ticks and answers come on one thread: who finds it in use is nested in it.
    fn feeds(&self) -> Option<MutexGuard<'_, Vec<Feed>>> {
        self.feeds.try_lock()
    }

    fn knowledge(&self) -> Option<MutexGuard<'_, Knowledge>> {
        self.knowledge
            .lock(|knowledge| knowledge.begin_anew(&self.config))
    }

    /// Counts a request's miss, with what the engine said of its prompt.
    pub(crate) fn missed(
        &self,
        host: &impl Host,
        miss: &mut Diagnosis,
        counted: Option<PromptUsage>,
    ) {
        if let Some(PromptUsage {
            prompt,
            cached: Some(cached),
        }) = counted
        {
            miss.told(prompt, cached, self.config.ordering.block_tokens());
        }
        self.metrics.missed(host, miss);
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

/// Entries that a request may have to wait for, some three microseconds each.
const LEARNT_AT_A_REQUEST: u64 = 256;
/// Entries between which a worker looks after its streams.
const LEARNT_AT_A_TICK: u64 = 2048;

#[cfg(test)]
mod tests;
